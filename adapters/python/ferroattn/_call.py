"""A call for the C interface, from arrays of any library: inputs and options, and where they lie in the host's memory."""

from __future__ import annotations

import ctypes
import math
import operator
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from . import _fp8, _library
from ._fp8 import Fp8

Array = npt.NDArray[Any]
Window = tuple[int, int]

NO_WINDOW: Window = (-1, -1)
_WIDEST = 2**63 - 1

# Numbers of the C interface.
DTYPES = {"float16": 1, "bfloat16": 2, "float32": 3}
E4M3 = "float8_e4m3fn"
_PACKED, _PADDED, _PACKED_QUERIES = 1, 2, 3
_E4M3_INPUTS, _E4M3_CACHE = 1, 2
_EXCEPTIONS = {1: ValueError, 2: NotImplementedError, 3: MemoryError}


class Tensor(ctypes.Structure):
    """`AttentionTensor`."""

    _fields_ = [("address", ctypes.c_uint64), ("shape", ctypes.c_int64 * 4), ("strides", ctypes.c_int64 * 4)]


TensorPointer = ctypes.POINTER(Tensor)


class Options(ctypes.Structure):
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
        ("alibi", TensorPointer),
        ("sinks", TensorPointer),
        ("bias", TensorPointer),
        ("mask", TensorPointer),
        ("sequences_q", TensorPointer),
        ("sequences_kv", TensorPointer),
        ("first_keys", TensorPointer),
        ("cache_entries", TensorPointer),
        ("pages", TensorPointer),
        ("batch_invariant", ctypes.c_uint32),
        ("split_keys", ctypes.c_uint32),
        ("prefix_k", TensorPointer),
        ("prefix_v", TensorPointer),
        ("prefix_pages", TensorPointer),
        ("prefix_keys", ctypes.c_uint64),
        ("fp8", ctypes.c_uint32),
        ("e4m3", ctypes.c_uint32),
        *((name, TensorPointer) for name in ("q_descale", "k_descale", "v_descale")),
        ("page_descales", ctypes.c_uint32),
        ("f32_o", ctypes.c_uint32),
    ]


class Forward(ctypes.Structure):
    """`AttentionForward`."""

    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("dtype", ctypes.c_uint32),
        ("options", ctypes.POINTER(Options)),
        *((name, Tensor) for name in ("q", "k", "v", "o", "lse")),
    ]


class Backward(ctypes.Structure):
    """`AttentionBackward`."""

    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("dtype", ctypes.c_uint32),
        ("options", ctypes.POINTER(Options)),
        *((name, Tensor) for name in ("q", "k", "v", "o", "lse", "d_o", "dq", "dk", "dv")),
        *((name, TensorPointer) for name in ("d_lse", "d_sinks", "d_bias")),
    ]


class CsrPages(ctypes.Structure):
    """`FerroattnCsrPages`."""

    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("check_lengths", ctypes.c_uint32),
        ("page", ctypes.c_uint64),
        *((name, Tensor) for name in ("indptr", "indices", "last_page", "table", "lengths")),
    ]


_Args = TypeVar("_Args", Forward, Backward)


class Kept:
    """Arrays that a call of the C interface reads or writes, and keeps alive."""

    def __init__(self, dtype: str, packed: bool, heads_first: bool) -> None:
        self.dtype = dtype
        self._packed = packed
        self._form, self._order = form_of(packed, heads_first)
        self._kept: list[Array] = []

    def tensor(self, name: str, value: Any, dtype: str | None = None, *, of_pages: bool = False) -> Tensor:
        """An array of the inputs' form, or that of pages, and of this type, the call's if it is None."""
        array = array_of(name, value, dtype or self.dtype)
        packed = self._packed and not of_pages
        form, order = form_of(False, False) if self._packed and of_pages else (self._form, self._order)
        expect_axes(name, array, len(order), form)
        array = in_rows(array).transpose(order)
        return self.keep(array[None] if packed else array)

    def keep(self, array: Array) -> Tensor:
        """Tells the C interface where an array lies."""
        array = in_rows(array)
        self._kept.append(array)
        return tensor_of(array)


class Call(Kept):
    """Inputs and options of a call for the C interface, and the memory where they lie."""

    def __init__(self, q: Any, k: Any, v: Any, heads_first: bool, dtype: Any = None, in_pages: bool = False) -> None:
        """Reads q, k and v, which may be pages; with dtype, the type of o then, they may be of e4m3."""
        e4m3 = () if dtype is None else (E4M3,)
        self.q = array_of("q", q, *DTYPES, *e4m3)
        of_q = str(self.q.dtype)
        super().__init__(_type_of_o(dtype) if of_q == E4M3 else of_q, self.q.ndim == 3, heads_first)
        self.k = array_of("k", k, *dict.fromkeys((of_q, *e4m3)))
        self.v = array_of("v", v, str(self.k.dtype))
        inputs = {"q": self.q, "k": self.k, "v": self.v}
        self._packed_queries = in_pages and self._packed
        self._tensors = {
            name: self.tensor(name, array, str(array.dtype), of_pages=in_pages and name != "q")
            for name, array in inputs.items()
        }
        batch, heads, seqlen_q, _dim = self._tensors["q"].shape
        self.rows = (heads, seqlen_q) if self._packed else (batch, heads, seqlen_q)
        self._repeats = (batch, heads, seqlen_q)
        self.options = Options()
        check(interface().ferroattn_options_init(ctypes.byref(self.options), ctypes.sizeof(Options)))

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
        options.window_left, options.window_right = bounds_of(window)

    def set_arrays(self, bias: Any, mask: Any, sinks: Any, alibi: Any) -> tuple[Array | None, Array | None]:
        """Sets the options that are arrays of scores or of heads.

        Returns:
            Bias and sinks as arrays of NumPy.
        """
        options = self.options
        if bias is not None:
            bias = array_of("bias", bias, *DTYPES)
            options.bias_dtype = DTYPES[str(bias.dtype)]
            options.bias = ctypes.pointer(self._tensor_of_pairs("bias", bias))
        if mask is not None:
            mask = array_of("mask", mask, "bool")
            options.mask = ctypes.pointer(self._tensor_of_pairs("mask", mask))
        if sinks is not None:
            sinks = array_of("sinks", sinks, "float32")
            expect_axes("sinks", sinks, 1, "[heads]")
            options.sinks = ctypes.pointer(self.keep(sinks))
        if alibi is not None:
            alibi = array_of("alibi_slopes", alibi, "float32")
            if alibi.ndim == 1:
                alibi = np.broadcast_to(in_rows(alibi), (self._repeats[0], *alibi.shape))
            expect_axes("alibi_slopes", alibi, 2, "[heads] or [batch, heads]")
            options.alibi = ctypes.pointer(self.keep(alibi))
        return bias, sinks

    def set_lengths(self, seqlens_q: Any, seqlens_k: Any, first_keys: Any, cache_entries: Any, pages: Any) -> None:
        """Sets the options that are whole numbers of each sequence."""
        options = self.options
        if self._packed and (seqlens_q is None or seqlens_k is None):
            raise ValueError("packed sequences need the offsets of both queries and keys")
        if seqlens_k is None and seqlens_q is not None:
            raise ValueError("padded sequences need the lengths of keys, too")
        if seqlens_k is not None:
            packed = _PACKED_QUERIES if self._packed_queries else _PACKED
            options.sequences = packed if self._packed else _PADDED
        row = "a row of numbers"
        for field, name, numbers, axes, form in [
            ("sequences_q", "seqlens_q", seqlens_q, 1, row),
            ("sequences_kv", "seqlens_k", seqlens_k, 1, row),
            ("first_keys", "first_keys", first_keys, 1, row),
            ("cache_entries", "cache_entries", cache_entries, 1, row),
            ("pages", "pages", pages, 2, "[batch, most pages]"),
        ]:
            if numbers is not None:
                numbers = array_of(name, numbers, "int32")
                expect_axes(name, numbers, axes, form)
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
            pages = array_of("prefix_pages", pages, "int32")
            expect_axes("prefix_pages", pages, 1, "a row of numbers")
            options.prefix_pages = ctypes.pointer(self.keep(pages))
            # A tensor of the library is `[pages, kv_heads, page, dim]`.
            options.prefix_keys = pages.size * self._tensors["k"].shape[2]
        if keys is not None:
            options.prefix_keys = count("prefix_keys", keys)

    def set_fp8(self, fp8: Fp8, q_descale: Any, k_descale: Any, v_descale: Any, page_descales: bool) -> None:
        """Sets how inputs are rounded to e4m3, or what multiplies those that are."""
        options = self.options
        options.fp8, options.page_descales = _fp8.number(fp8), bool(page_descales)
        descales = {"q_descale": q_descale, "k_descale": k_descale, "v_descale": v_descale}
        if str(self.k.dtype) == E4M3:
            options.e4m3 = _E4M3_INPUTS if str(self.q.dtype) == E4M3 else _E4M3_CACHE
        elif any(descale is not None for descale in descales.values()):
            raise TypeError(f"descales need k and v of {E4M3}")
        for name, descale in descales.items():
            if descale is not None:
                descale = array_of(name, descale, "float32")
                expect_axes(name, descale, 2, "[batch, kv_heads]; of pages [pages, kv_heads]")
                setattr(options, name, ctypes.pointer(self.keep(descale)))

    def type_of_o(self, dtype: Any) -> str:
        """The type of o, which of inputs that the call rounds may be float32."""
        of_inputs = str(self.q.dtype), str(self.k.dtype)
        if _type_of_o(dtype) != "float32" or E4M3 in of_inputs or self.dtype == "float32":
            return self.dtype
        self.options.f32_o = True
        return "float32"

    def args(self, struct: type[_Args], **tensors: Tensor) -> _Args:
        """Arguments of a pass, those of its own beside the inputs and the options."""
        return struct(
            struct_size=ctypes.sizeof(struct),
            dtype=DTYPES[self.dtype],
            options=ctypes.pointer(self.options),
            **self._tensors,
            **tensors,
        )

    def tensor_of_rows(self, name: str, value: Any) -> Tensor:
        """An array with a number for each row of scores, `[batch, heads, seqlen_q]` or `[heads, total_q]`."""
        array = array_of(name, value, "float32")
        axes = "[heads, total]" if self._packed else "[batch, heads, seqlen]"
        expect_axes(name, array, len(self.rows), axes)
        array = np.require(array, requirements=["C", "ALIGNED"])
        return self.keep(array[None] if self._packed else array)

    def _tensor_of_pairs(self, name: str, array: Array) -> Tensor:
        """An array with an element for each pair of a query and a key; axes of one element are repeated."""
        expect_axes(name, array, 4, "[batch or 1, heads or 1, seqlen_q or 1, seqlen_k]")
        shape = [full if own == 1 else own for own, full in zip(array.shape, self._repeats, strict=False)]
        return self.keep(np.broadcast_to(in_rows(array), (*shape, array.shape[3])))


def form_of(packed: bool, heads_first: bool) -> tuple[str, list[int]]:
    """The axes of inputs by name, and where batch, heads, seqlen and dim are among them."""
    if packed:
        return "[total, heads, dim]", [1, 0, 2]
    if heads_first:
        return "[batch, heads, seqlen, dim]", [0, 1, 2, 3]
    return "[batch, seqlen, heads, dim]", [0, 2, 1, 3]


def tensor_of(array: Array) -> Tensor:
    """Where an array of whole rows lies."""
    steps = [step // array.itemsize for step in array.strides]
    if array.size == 0:
        # NumPy's are 0, which the C interface refuses.
        steps = [math.prod(max(extent, 1) for extent in array.shape[axis + 1 :]) for axis in range(array.ndim)]
    rest = [0] * (4 - array.ndim)
    return Tensor(array.ctypes.data, (*array.shape, *rest), (*steps, *rest))


def _type_of_o(dtype: Any) -> str:
    """The name of a type that o may have."""
    try:
        name = str(np.dtype(dtype))
    except TypeError:
        name = str(dtype)
    if name not in DTYPES:
        raise TypeError(f"dtype is {name}; it must be {' or '.join(DTYPES)}")
    return name


def bounds_of(window: Window) -> Window:
    """The bounds of a window as the C interface takes them: -1 for none."""
    try:
        left, right = (min(max(operator.index(bound), -1), _WIDEST) for bound in window)
    except (TypeError, ValueError):
        raise TypeError(f"window must be two whole numbers, not {window!r}") from None
    return left, right


def count(name: str, number: Any) -> int:
    """A number of things."""
    try:
        count = operator.index(number)
    except TypeError:
        raise TypeError(f"{name} must be a whole number, not {number!r}") from None
    if not 0 <= count <= _WIDEST:
        raise ValueError(f"{name} is {count}; it must be at least 0")
    return count


def array_of(name: str, value: Any, *dtypes: str) -> Array:
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


def in_rows(array: Array) -> Array:
    """The array, or a copy with elements where the C interface reads them: whole, and side by side in the last axis."""
    size = array.itemsize
    whole = array.ctypes.data % size == 0 and all(step % size == 0 for step in array.strides)
    return array if array.size == 0 or (whole and array.strides[-1] == size) else array.copy()


def expect_axes(name: str, array: Array, axes: int, form: str) -> None:
    if array.ndim != axes:
        raise ValueError(f"{name} has {array.ndim} axes; it must be {form}")


@cache
def interface() -> ctypes.CDLL:
    """The binary, with the types of the functions that this module calls."""
    library = _library.load()
    library.ferroattn_last_error.restype = ctypes.c_char_p
    library.ferroattn_options_init.argtypes = [ctypes.c_void_p, ctypes.c_uint32]
    for launch in (library.ferroattn_append, library.ferroattn_csr_pages):
        launch.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    for run in (library.ferroattn_forward, library.ferroattn_backward):
        run.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p]
    for plan in (library.ferroattn_plan_forward, library.ferroattn_plan_backward):
        plan.argtypes = [ctypes.c_void_p] * 3
    library.ferroattn_plan_workspace_bytes.argtypes = library.ferroattn_plan_free.argtypes = [ctypes.c_void_p]
    library.ferroattn_plan_workspace_bytes.restype = ctypes.c_size_t
    return library


@cache
def cpu() -> ctypes.c_void_p:
    """The CPU as a device, opened once."""
    device = ctypes.c_void_p()
    check(interface().ferroattn_open_cpu(ctypes.byref(device)))
    return device


def run(function: str, args: ctypes.Structure) -> None:
    check(getattr(interface(), function)(cpu(), ctypes.byref(args), 0, 0, None))


def check(status: int) -> None:
    """Raises what a status means, with the library's reason."""
    if status != 0:
        reason = interface().ferroattn_last_error().decode()
        raise _EXCEPTIONS.get(status, RuntimeError)(reason)
