"""Attention on arrays of the CPU: of NumPy, of JAX, or of any library whose arrays have `__array__` or `__dlpack__`.

    from ferroattn.numpy import attention, attention_backward
    o, lse = attention(q, k, v, causal=True)  # arrays [batch, seqlen, heads, dim]
    dq, dk, dv, *_ = attention_backward(d_o, q, k, v, o, lse, causal=True)

Elements are of float16, bfloat16 (of `ml_dtypes`) or float32; inputs and caches of float8_e4m3fn, too. Results are arrays of
JAX if q is one, else of NumPy.
"""

from __future__ import annotations

import ctypes
import math
import operator
import sys
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from . import _fp8, _library
from ._fp8 import Fp8

__all__ = ["Gradients", "attention", "attention_backward", "csr_pages"]

Array = npt.NDArray[Any]
Window = tuple[int, int]

_NO_WINDOW: Window = (-1, -1)
_WIDEST = 2**63 - 1

# Numbers of the C interface.
_DTYPES = {"float16": 1, "bfloat16": 2, "float32": 3}
_E4M3 = "float8_e4m3fn"
_PACKED, _PADDED = 1, 2
_E4M3_INPUTS, _E4M3_CACHE = 1, 2
_EXCEPTIONS = {1: ValueError, 2: NotImplementedError, 3: MemoryError}


class Gradients(NamedTuple):
    """What `attention_backward` returns. Each has the shape and the type of what it is the gradient of."""

    dq: Any
    dk: Any
    dv: Any
    d_bias: Any
    """None in a call without a bias."""
    d_sinks: Any
    """None in a call without sinks."""


def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    bias: Any = None,
    mask: Any = None,
    sinks: Any = None,
    alibi_slopes: Any = None,
    seqlens_q: Any = None,
    seqlens_k: Any = None,
    first_keys: Any = None,
    cache_entries: Any = None,
    pages: Any = None,
    prefix: tuple[Any, Any] | None = None,
    prefix_pages: Any = None,
    prefix_keys: int | None = None,
    scale: float | None = None,
    causal: bool = False,
    window: Window = _NO_WINDOW,
    softcap: float = 0.0,
    batch_invariant: bool = False,
    fp8: Fp8 = False,
    q_descale: Any = None,
    k_descale: Any = None,
    v_descale: Any = None,
    page_descales: bool = False,
    dtype: Any = "bfloat16",
    heads_first: bool = False,
) -> tuple[Any, Any]:
    """Computes `o = softmax(scale * q k^T + bias) v` and `lse`, the row log-sum-exp.

    A query that sees no key gets `o = 0` and `lse = -inf`. Query heads share key heads if there are fewer of those.

    Args:
        q: Queries, `[batch, seqlen_q, heads, dim]`; of packed sequences `[total_q, heads, dim]`.
        k: Keys, `[batch, seqlen_k, kv_heads, dim]` or `[total_k, kv_heads, dim]`.
        v: Values, `[batch, seqlen_k, kv_heads, dim_v]` or `[total_k, kv_heads, dim_v]`.
        bias: Added to scores, `[batch or 1, heads or 1, seqlen_q or 1, seqlen_k]`.
        mask: Booleans of such a shape; a query sees the keys where it is true.
        sinks: Logits of keys without values, `float32[heads]`.
        alibi_slopes: `float32[heads]` or `float32[batch, heads]`; of packed sequences `float32[sequences, heads]`, too.
        seqlens_q: Lengths `int32[batch]`; of packed sequences offsets `int32[sequences + 1]`.
        seqlens_k: Lengths or offsets of keys; both are given or none.
        first_keys: The first key of each entry of the batch, `int32[batch]`.
        cache_entries: The entry of k and v for each entry of q, `int32[batch]`; such a call has no gradient.
        pages: The pages of k and v for each entry of q, `int32[batch, most]`: k is `[pages, page, kv_heads, dim]`, v alike, the
            keys of a page a power of 2. Key `j` is row `j % page` of page `pages[b, j // page]`, and seqlen_k is `most * page`.
            Numbers of pages behind an entry's last key may be any. Such a call has no gradient.
        prefix: Keys and values that all entries share, `[1, keys, kv_heads, dim]` and `[1, keys, kv_heads, dim_v]`, of packed
            sequences without the first axis: each query sees all of them before its own. lse counts both. `causal` hides own
            keys alone, of which an entry needs as many as it has queries, less one. Such a call has no gradient, bias, mask,
            slopes, window or first keys.
        prefix_pages: Such keys in pages of k and v, `int32[n]`, in a call with pages.
        prefix_keys: Keys of prefix_pages, of which the last page has 1 or more; None for full pages.
        scale: Factor of scores, `1 / sqrt(dim)` if it is None.
        causal: Whether query `i` sees only keys up to `i + seqlen_k - seqlen_q`.
        window: Keys before and after a query's own that it sees; -1 is no bound.
        softcap: The bound `c` of scores, which become `c * tanh(score / c)`; 0 is none.
        batch_invariant: Whether results of a query have the same bits beside any neighbours in the batch, and in any chunk of
            its sequence; gradients beside any neighbours.
        fp8: Whether q, k and v are rounded to e4m3, as on a GPU. With "hadamard" rows of q and k are rotated before, which
            spreads outliers. Such a call may have a window, a softcap, sinks and sequences, no other option, and no gradient.
            q, k and v may also be of float8_e4m3fn already.
        q_descale: What multiplies q of float8_e4m3fn, `float32[batch, kv_heads]`; None for 1.
        k_descale: What multiplies k of float8_e4m3fn, likewise. q may be of another type: k and v are then a cache. Such calls
            have no gradient, bias, mask or prefix, and are not batch invariant.
        v_descale: What multiplies v of float8_e4m3fn, likewise.
        page_descales: Whether k_descale and v_descale are `float32[pages, kv_heads]`.
        dtype: The type of o where q is of float8_e4m3fn.
        heads_first: Whether axes are `[batch, heads, seqlen, dim]`.

    Returns:
        o, of q's form with v's dim, and lse, `float32[batch, heads, seqlen_q]` or `float32[heads, total_q]`.

    Raises:
        ValueError, TypeError: An argument is wrong, alone or beside the others.
        MemoryError: Memory ran out.
    """
    call = _Call(q, k, v, heads_first, dtype)
    call.set_numbers(scale, causal, window, softcap, batch_invariant)
    call.set_arrays(bias, mask, sinks, alibi_slopes)
    call.set_lengths(seqlens_q, seqlens_k, first_keys, cache_entries, pages)
    call.set_prefix(prefix, prefix_pages, prefix_keys)
    call.set_fp8(fp8, q_descale, k_descale, v_descale, page_descales)
    o = np.empty((*call.q.shape[:-1], call.v.shape[-1]), call.dtype)
    lse = np.empty(call.rows, np.float32)
    _run("ferroattn_forward", call.args(_Forward, o=call.tensor("o", o), lse=call.tensor_of_rows("lse", lse)))
    return _like(q, o), _like(q, lse)


def attention_backward(
    d_o: Any,
    q: Any,
    k: Any,
    v: Any,
    o: Any,
    lse: Any,
    *,
    d_lse: Any = None,
    bias: Any = None,
    mask: Any = None,
    sinks: Any = None,
    alibi_slopes: Any = None,
    seqlens_q: Any = None,
    seqlens_k: Any = None,
    first_keys: Any = None,
    cache_entries: Any = None,
    pages: Any = None,
    scale: float | None = None,
    causal: bool = False,
    window: Window = _NO_WINDOW,
    softcap: float = 0.0,
    batch_invariant: bool = False,
    heads_first: bool = False,
) -> Gradients:
    """Computes the gradients of `attention`.

    Args:
        d_o: Gradient of o, of its shape and type.
        q, k, v: Inputs of the forward call.
        o, lse: Its results.
        d_lse: Gradient of lse, of its shape and type; None for zeros.
        bias, mask, sinks, alibi_slopes, seqlens_q, seqlens_k, first_keys: The forward call's options; see `attention`.
        cache_entries, pages: None; a call with them has no gradient.
        scale, causal, window, softcap, batch_invariant, heads_first: The forward call's options; see `attention`.

    Returns:
        Gradients of q, k and v; of bias and sinks, too, if they are given.

    Raises:
        ValueError, TypeError: An argument is wrong, alone or beside the others.
        NotImplementedError: There are cache_entries or pages.
        MemoryError: Memory ran out.
    """
    for name, numbers in [("cache_entries", cache_entries), ("pages", pages)]:
        if numbers is not None:
            raise NotImplementedError(f"there are no gradients of a call with {name}")
    call = _Call(q, k, v, heads_first)
    call.set_numbers(scale, causal, window, softcap, batch_invariant)
    bias, sinks = call.set_arrays(bias, mask, sinks, alibi_slopes)
    call.set_lengths(seqlens_q, seqlens_k, first_keys, None, None)
    dq, dk, dv = (np.empty(array.shape, array.dtype) for array in (call.q, call.k, call.v))
    args = call.args(
        _Backward,
        o=call.tensor("o", o),
        lse=call.tensor_of_rows("lse", lse),
        d_o=call.tensor("d_o", d_o),
        dq=call.tensor("dq", dq),
        dk=call.tensor("dk", dk),
        dv=call.tensor("dv", dv),
    )
    if d_lse is not None:
        args.d_lse = ctypes.pointer(call.tensor_of_rows("d_lse", d_lse))
    d_bias = d_sinks = None
    if bias is not None:
        d_bias = np.empty(bias.shape, np.float32)
        args.d_bias = ctypes.pointer(call.keep(d_bias))
    if sinks is not None:
        d_sinks = np.empty(sinks.shape, np.float32)
        args.d_sinks = ctypes.pointer(call.keep(d_sinks))
    _run("ferroattn_backward", args)
    if bias is not None and d_bias is not None:
        d_bias = d_bias.astype(bias.dtype, copy=False)
    return Gradients(*(_like(q, gradient) for gradient in (dq, dk, dv, d_bias, d_sinks)))


def csr_pages(indptr: Any, indices: Any, last_page_len: Any, page_size: int, max_pages: int | None = None) -> tuple[Any, Any]:
    """Makes a table of pages and lengths of FlashInfer's arrays.

    Args:
        indptr: Where the pages of each entry begin among the indices, and where the last one's end, `int32[batch + 1]`.
        indices: Page numbers, `int32[n]`.
        last_page_len: Keys of each entry's last page, `int32[batch]`, from 1 to page_size; of an entry without pages any.
        page_size: Keys of a page, a power of 2.
        max_pages: The most pages of an entry; None reads it from indptr.

    Returns:
        The table, `int32[batch, max_pages]`, with 0 behind an entry's last page, and the lengths, `int32[batch]`: `pages` and
        `seqlens_k` of `attention`.

    Raises:
        ValueError, TypeError: An argument is wrong, alone or beside the others.
        MemoryError: Memory ran out.
    """
    arrays = {"indptr": indptr, "indices": indices, "last_page": last_page_len}
    for name, value in arrays.items():
        arrays[name] = _in_rows(_array(name, value, "int32"))
        _expect_axes(name, arrays[name], 1, "a row of numbers")
    if arrays["indptr"].size == 0:
        raise ValueError("indptr is empty; it must be [batch + 1]")
    steps = np.diff(arrays["indptr"])
    most = max(steps.max(initial=0), 0) if max_pages is None else _count("max_pages", max_pages)
    table, lengths = np.zeros((steps.size, most), np.int32), np.empty(steps.size, np.int32)
    tensors = {name: _tensor(array) for name, array in {**arrays, "table": table, "lengths": lengths}.items()}
    args = _CsrPages(struct_size=ctypes.sizeof(_CsrPages), page=_count("page_size", page_size), **tensors)
    _check(_interface().ferroattn_csr_pages(_cpu(), ctypes.byref(args), None))
    return _like(indptr, table), _like(indptr, lengths)


class _Tensor(ctypes.Structure):
    """`AttentionTensor`."""

    _fields_ = [("address", ctypes.c_uint64), ("shape", ctypes.c_int64 * 4), ("strides", ctypes.c_int64 * 4)]


_TensorPointer = ctypes.POINTER(_Tensor)


class _Options(ctypes.Structure):
    """`AttentionOptions`."""

    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("causal", ctypes.c_uint32),
        ("window_left", ctypes.c_int64),
        ("window_right", ctypes.c_int64),
        ("scale", ctypes.c_float),
        ("softcap", ctypes.c_float),
        ("splits", ctypes.c_uint32),
        ("deterministic", ctypes.c_uint32),
        ("check_lengths", ctypes.c_uint32),
        ("sequences", ctypes.c_uint32),
        ("bias_dtype", ctypes.c_uint32),
        ("mask_type", ctypes.c_uint32),
        ("kernel", ctypes.c_char_p),
        ("alibi", _TensorPointer),
        ("sinks", _TensorPointer),
        ("bias", _TensorPointer),
        ("mask", _TensorPointer),
        ("sequences_q", _TensorPointer),
        ("sequences_kv", _TensorPointer),
        ("first_keys", _TensorPointer),
        ("cache_entries", _TensorPointer),
        ("pages", _TensorPointer),
        ("batch_invariant", ctypes.c_uint32),
        ("split_keys", ctypes.c_uint32),
        ("prefix_k", _TensorPointer),
        ("prefix_v", _TensorPointer),
        ("prefix_pages", _TensorPointer),
        ("prefix_keys", ctypes.c_uint64),
        ("fp8", ctypes.c_uint32),
        ("e4m3", ctypes.c_uint32),
        *((name, _TensorPointer) for name in ("q_descale", "k_descale", "v_descale")),
        ("page_descales", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
    ]


class _Forward(ctypes.Structure):
    """`AttentionForward`."""

    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("dtype", ctypes.c_uint32),
        ("options", ctypes.POINTER(_Options)),
        *((name, _Tensor) for name in ("q", "k", "v", "o", "lse")),
    ]


class _Backward(ctypes.Structure):
    """`AttentionBackward`."""

    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("dtype", ctypes.c_uint32),
        ("options", ctypes.POINTER(_Options)),
        *((name, _Tensor) for name in ("q", "k", "v", "o", "lse", "d_o", "dq", "dk", "dv")),
        *((name, _TensorPointer) for name in ("d_lse", "d_sinks", "d_bias")),
    ]


class _CsrPages(ctypes.Structure):
    """`FerroattnCsrPages`."""

    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("check_lengths", ctypes.c_uint32),
        ("page", ctypes.c_uint64),
        *((name, _Tensor) for name in ("indptr", "indices", "last_page", "table", "lengths")),
    ]


_Args = TypeVar("_Args", _Forward, _Backward)


class _Call:
    """Inputs and options of a call for the C interface, and the memory where they lie."""

    def __init__(self, q: Any, k: Any, v: Any, heads_first: bool, dtype: Any = None) -> None:
        """Reads q, k and v; with dtype, the type of o then, they may be of e4m3."""
        self._kept: list[Array] = []
        e4m3 = () if dtype is None else (_E4M3,)
        self.q = _array("q", q, *_DTYPES, *e4m3)
        of_q = str(self.q.dtype)
        self.dtype = _type_of_o(dtype) if of_q == _E4M3 else of_q
        self._packed = self.q.ndim == 3
        # Where batch, heads, seqlen and dim are among the axes.
        if self._packed:
            self._form, self._order = "[total, heads, dim]", [1, 0, 2]
        elif heads_first:
            self._form, self._order = "[batch, heads, seqlen, dim]", [0, 1, 2, 3]
        else:
            self._form, self._order = "[batch, seqlen, heads, dim]", [0, 2, 1, 3]
        self.k = _array("k", k, *dict.fromkeys((of_q, *e4m3)))
        self.v = _array("v", v, str(self.k.dtype))
        inputs = {"q": self.q, "k": self.k, "v": self.v}
        self._tensors = {name: self.tensor(name, array, str(array.dtype)) for name, array in inputs.items()}
        batch, heads, seqlen_q, _dim = self._tensors["q"].shape
        self.rows = (heads, seqlen_q) if self._packed else (batch, heads, seqlen_q)
        self._repeats = (batch, heads, seqlen_q)
        self.options = _Options()
        _check(_interface().ferroattn_options_init(ctypes.byref(self.options), ctypes.sizeof(_Options)))

    def set_numbers(self, scale: float | None, causal: bool, window: Window, softcap: float, batch_invariant: bool) -> None:
        """Sets the options that are numbers."""
        options = self.options
        if scale is not None:
            # NaN means none to the C interface.
            if math.isnan(scale):
                raise ValueError("scale is nan; it must be finite")
            options.scale = scale
        options.softcap = softcap
        if softcap != 0.0 and options.softcap == 0.0:
            raise ValueError(f"softcap is {softcap}; it must be 0, or a float32 above 0")
        options.causal, options.batch_invariant = bool(causal), bool(batch_invariant)
        try:
            left, right = (min(max(operator.index(bound), -1), _WIDEST) for bound in window)
        except (TypeError, ValueError):
            raise TypeError(f"window must be two whole numbers, not {window!r}") from None
        options.window_left, options.window_right = left, right

    def set_arrays(self, bias: Any, mask: Any, sinks: Any, alibi: Any) -> tuple[Array | None, Array | None]:
        """Sets the options that are arrays of scores or of heads.

        Returns:
            Bias and sinks as arrays of NumPy.
        """
        options = self.options
        if bias is not None:
            bias = _array("bias", bias, *_DTYPES)
            options.bias_dtype = _DTYPES[str(bias.dtype)]
            options.bias = ctypes.pointer(self._tensor_of_pairs("bias", bias))
        if mask is not None:
            mask = _array("mask", mask, "bool")
            options.mask = ctypes.pointer(self._tensor_of_pairs("mask", mask))
        if sinks is not None:
            sinks = _array("sinks", sinks, "float32")
            _expect_axes("sinks", sinks, 1, "[heads]")
            options.sinks = ctypes.pointer(self.keep(sinks))
        if alibi is not None:
            alibi = _array("alibi_slopes", alibi, "float32")
            if alibi.ndim == 1:
                alibi = np.broadcast_to(_in_rows(alibi), (self._repeats[0], *alibi.shape))
            _expect_axes("alibi_slopes", alibi, 2, "[heads] or [batch, heads]")
            options.alibi = ctypes.pointer(self.keep(alibi))
        return bias, sinks

    def set_lengths(self, seqlens_q: Any, seqlens_k: Any, first_keys: Any, cache_entries: Any, pages: Any) -> None:
        """Sets the options that are whole numbers of each sequence."""
        options = self.options
        if (seqlens_q is None) != (seqlens_k is None) or (self._packed and seqlens_q is None):
            what = "packed sequences need the offsets" if self._packed else "padded sequences need the lengths"
            raise ValueError(f"{what} of both queries and keys")
        if seqlens_q is not None:
            options.sequences = _PACKED if self._packed else _PADDED
        row = "a row of numbers"
        for field, name, numbers, axes, form in [
            ("sequences_q", "seqlens_q", seqlens_q, 1, row),
            ("sequences_kv", "seqlens_k", seqlens_k, 1, row),
            ("first_keys", "first_keys", first_keys, 1, row),
            ("cache_entries", "cache_entries", cache_entries, 1, row),
            ("pages", "pages", pages, 2, "[batch, most pages]"),
        ]:
            if numbers is not None:
                numbers = _array(name, numbers, "int32")
                _expect_axes(name, numbers, axes, form)
                setattr(options, field, ctypes.pointer(self.keep(numbers)))

    def set_prefix(self, prefix: Any, pages: Any, keys: int | None) -> None:
        """Sets the keys and values that all entries share."""
        options = self.options
        if prefix is not None:
            if not isinstance(prefix, (tuple, list)) or len(prefix) != 2:
                raise TypeError("prefix must be two arrays, its keys and its values")
            options.prefix_k, options.prefix_v = (
                ctypes.pointer(self.tensor(f"the prefix's {name}", part)) for name, part in zip("kv", prefix, strict=True)
            )
        if pages is not None:
            pages = _array("prefix_pages", pages, "int32")
            _expect_axes("prefix_pages", pages, 1, "a row of numbers")
            options.prefix_pages = ctypes.pointer(self.keep(pages))
            # A tensor of the library is `[pages, kv_heads, page, dim]`.
            options.prefix_keys = pages.size * self._tensors["k"].shape[2]
        if keys is not None:
            options.prefix_keys = _count("prefix_keys", keys)

    def set_fp8(self, fp8: Fp8, q_descale: Any, k_descale: Any, v_descale: Any, page_descales: bool) -> None:
        """Sets how inputs are rounded to e4m3, or what multiplies those that are."""
        options = self.options
        options.fp8, options.page_descales = _fp8.number(fp8), bool(page_descales)
        descales = {"q_descale": q_descale, "k_descale": k_descale, "v_descale": v_descale}
        if str(self.k.dtype) == _E4M3:
            options.e4m3 = _E4M3_INPUTS if str(self.q.dtype) == _E4M3 else _E4M3_CACHE
        elif any(descale is not None for descale in descales.values()):
            raise TypeError(f"descales need k and v of {_E4M3}")
        for name, descale in descales.items():
            if descale is not None:
                descale = _array(name, descale, "float32")
                _expect_axes(name, descale, 2, "[batch, kv_heads]; of pages [pages, kv_heads]")
                setattr(options, name, ctypes.pointer(self.keep(descale)))

    def args(self, struct: type[_Args], **tensors: _Tensor) -> _Args:
        """Arguments of a pass, those of its own beside the inputs and the options."""
        return struct(
            struct_size=ctypes.sizeof(struct),
            dtype=_DTYPES[self.dtype],
            options=ctypes.pointer(self.options),
            **self._tensors,
            **tensors,
        )

    def tensor(self, name: str, value: Any, dtype: str | None = None) -> _Tensor:
        """An array of q's form, and of a type, o's if it is None."""
        array = _array(name, value, dtype or self.dtype)
        _expect_axes(name, array, len(self._order), self._form)
        array = _in_rows(array).transpose(self._order)
        return self.keep(array[None] if self._packed else array)

    def tensor_of_rows(self, name: str, value: Any) -> _Tensor:
        """An array with a number for each row of scores, `[batch, heads, seqlen_q]` or `[heads, total_q]`."""
        array = _array(name, value, "float32")
        axes = "[heads, total]" if self._packed else "[batch, heads, seqlen]"
        _expect_axes(name, array, len(self.rows), axes)
        array = np.require(array, requirements=["C", "ALIGNED"])
        return self.keep(array[None] if self._packed else array)

    def keep(self, array: Array) -> _Tensor:
        """Tells the C interface where an array lies, and keeps it alive during the call."""
        array = _in_rows(array)
        self._kept.append(array)
        return _tensor(array)

    def _tensor_of_pairs(self, name: str, array: Array) -> _Tensor:
        """An array with an element for each pair of a query and a key; axes of one element are repeated."""
        _expect_axes(name, array, 4, "[batch or 1, heads or 1, seqlen_q or 1, seqlen_k]")
        shape = [full if own == 1 else own for own, full in zip(array.shape, self._repeats, strict=False)]
        return self.keep(np.broadcast_to(_in_rows(array), (*shape, array.shape[3])))


def _tensor(array: Array) -> _Tensor:
    """Where an array of whole rows lies."""
    steps = [step // array.itemsize for step in array.strides]
    if array.size == 0:
        # NumPy's are 0, which the C interface refuses.
        steps = [math.prod(max(extent, 1) for extent in array.shape[axis + 1 :]) for axis in range(array.ndim)]
    rest = [0] * (4 - array.ndim)
    return _Tensor(array.ctypes.data, (*array.shape, *rest), (*steps, *rest))


def _type_of_o(dtype: Any) -> str:
    """The name of a type that o may have."""
    try:
        name = str(np.dtype(dtype))
    except TypeError:
        name = str(dtype)
    if name not in _DTYPES:
        raise TypeError(f"dtype is {name}; it must be {' or '.join(_DTYPES)}")
    return name


def _count(name: str, number: Any) -> int:
    """A number of things."""
    try:
        count = operator.index(number)
    except TypeError:
        raise TypeError(f"{name} must be a whole number, not {number!r}") from None
    if not 0 <= count <= _WIDEST:
        raise ValueError(f"{name} is {count}; it must be at least 0")
    return count


def _array(name: str, value: Any, *dtypes: str) -> Array:
    """An array of any library by NumPy, on the same memory. It must be of one of the types."""
    if hasattr(value, "__array__"):
        read: Callable[[Any], Array] = np.asarray
    elif hasattr(value, "__dlpack__"):
        read = np.from_dlpack
    else:
        raise TypeError(f"{name} must be an array, not {type(value).__name__}")
    try:
        array = read(value)
    # Other libraries raise exceptions of any kind, with any number of lines.
    except Exception as error:
        reason = str(error).split("\n", 1)[0]
        raise TypeError(f"{name} is no array that NumPy reads: {reason}") from None
    if str(array.dtype) not in dtypes:
        raise TypeError(f"{name} is of {array.dtype}; it must be of {' or '.join(dtypes)}")
    return array


def _in_rows(array: Array) -> Array:
    """The array, or a copy with elements where the C interface reads them: whole, and side by side in the last axis."""
    size = array.itemsize
    whole = array.ctypes.data % size == 0 and all(step % size == 0 for step in array.strides)
    return array if array.size == 0 or (whole and array.strides[-1] == size) else array.copy()


def _expect_axes(name: str, array: Array, axes: int, form: str) -> None:
    if array.ndim != axes:
        raise ValueError(f"{name} has {array.ndim} axes; it must be {form}")


def _like(q: Any, array: Array | None) -> Any:
    """The array, of the library that q's is of."""
    jax = sys.modules.get("jax")
    if array is None or jax is None or not isinstance(q, jax.Array):
        return array
    return jax.numpy.asarray(array)


@cache
def _interface() -> ctypes.CDLL:
    """The binary, with the types of the functions that this module calls."""
    library = _library.load()
    library.ferroattn_last_error.restype = ctypes.c_char_p
    library.ferroattn_options_init.argtypes = [ctypes.c_void_p, ctypes.c_uint32]
    library.ferroattn_csr_pages.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    for run in (library.ferroattn_forward, library.ferroattn_backward):
        run.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p]
    return library


@cache
def _cpu() -> ctypes.c_void_p:
    """The CPU as a device, opened once."""
    device = ctypes.c_void_p()
    _check(_interface().ferroattn_open_cpu(ctypes.byref(device)))
    return device


def _run(function: str, args: ctypes.Structure) -> None:
    _check(getattr(_interface(), function)(_cpu(), ctypes.byref(args), 0, 0, None))


def _check(status: int) -> None:
    """Raises what a status means, with the library's reason."""
    if status != 0:
        reason = _interface().ferroattn_last_error().decode()
        raise _EXCEPTIONS.get(status, RuntimeError)(reason)
