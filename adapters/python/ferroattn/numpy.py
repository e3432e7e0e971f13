"""Attention on arrays of the CPU: of NumPy, of JAX, or of any library whose arrays have `__array__` or `__dlpack__`.

    from ferroattn.numpy import attention, attention_backward
    o, lse = attention(q, k, v, causal=True)  # arrays [batch, seqlen, heads, dim]
    dq, dk, dv, *_ = attention_backward(d_o, q, k, v, o, lse, causal=True)

A step of decoding writes new keys and values into a cache, and reads that:

    q, lengths = append(k, v, k_cache, v_cache, q=q, lengths=lengths, cos=cos, sin=sin)
    o, lse = attention(q, k_cache, v_cache, seqlens_q=numpy.ones_like(lengths), seqlens_k=lengths, causal=True)

Elements are of float16, bfloat16 (of `ml_dtypes`) or float32; inputs and caches of float8_e4m3fn, too. Results are arrays of
JAX if q is one, else of NumPy.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any, NamedTuple

import numpy as np

from ._append import AppendCall
from ._call import (
    NO_WINDOW,
    Array,
    Backward,
    Call,
    CsrPages,
    Forward,
    Window,
    array_of,
    check,
    count,
    cpu,
    expect_axes,
    in_rows,
    interface,
    run,
    tensor_of,
)
from ._fp8 import Fp8

__all__ = ["Gradients", "append", "attention", "attention_backward", "csr_pages"]


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
    window: Window = NO_WINDOW,
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
        seqlens_k: Lengths or offsets of keys; of keys in pages lengths always. Without seqlens_q all
            queries of each entry count.
        first_keys: The first key of each entry of the batch, `int32[batch]`.
        cache_entries: The entry of k and v for each entry of q, `int32[batch]`; such a call has no gradient.
        pages: The pages of k and v for each entry of q, or each packed sequence, `int32[batch, most]`: k is
            `[pages, page, kv_heads, dim]`, v alike, the keys of a page a power of 2. Key `j` is row `j % page` of page
            `pages[b, j // page]`, and seqlen_k is `most * page`. Numbers of pages behind an entry's last key may be any. Such
            a call has no gradient.
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
        dtype: The type of o where q is of float8_e4m3fn. With fp8 and q of another type o has q's, or float32 if this is.
        heads_first: Whether axes are `[batch, heads, seqlen, dim]`.

    Returns:
        o, of q's form with v's dim, and lse, `float32[batch, heads, seqlen_q]` or `float32[heads, total_q]`.

    Raises:
        ValueError, TypeError: An argument is wrong, alone or beside the others.
        MemoryError: Memory ran out.
    """
    call = Call(q, k, v, heads_first, dtype, in_pages=pages is not None)
    call.set_numbers(scale, causal, window, softcap, batch_invariant)
    call.set_arrays(bias, mask, sinks, alibi_slopes)
    call.set_lengths(seqlens_q, seqlens_k, first_keys, cache_entries, pages)
    call.set_prefix(prefix, prefix_pages, prefix_keys)
    call.set_fp8(fp8, q_descale, k_descale, v_descale, page_descales)
    of_o = call.type_of_o(dtype)
    o = np.empty((*call.q.shape[:-1], call.v.shape[-1]), of_o)
    lse = np.empty(call.rows, np.float32)
    run("ferroattn_forward", call.args(Forward, o=call.tensor("o", o, of_o), lse=call.tensor_of_rows("lse", lse)))
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
    window: Window = NO_WINDOW,
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
    call = Call(q, k, v, heads_first)
    call.set_numbers(scale, causal, window, softcap, batch_invariant)
    bias, sinks = call.set_arrays(bias, mask, sinks, alibi_slopes)
    call.set_lengths(seqlens_q, seqlens_k, first_keys, None, None)
    dq, dk, dv = (np.empty(array.shape, array.dtype) for array in (call.q, call.k, call.v))
    args = call.args(
        Backward,
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
    run("ferroattn_backward", args)
    if bias is not None and d_bias is not None:
        d_bias = d_bias.astype(bias.dtype, copy=False)
    return Gradients(*(_like(q, gradient) for gradient in (dq, dk, dv, d_bias, d_sinks)))


def append(
    k: Any,
    v: Any,
    k_cache: Array,
    v_cache: Array,
    *,
    q: Any = None,
    lengths: Any = None,
    pages: Any = None,
    cache_entries: Any = None,
    slots: Any = None,
    positions: Any = None,
    cos: Any = None,
    sin: Any = None,
    k_descale: Any = None,
    v_descale: Any = None,
    page_descales: bool = False,
    interleaved: bool = False,
    q_at_first: bool = False,
    heads_first: bool = False,
) -> tuple[Any, Any]:
    """Writes new keys and values into a cache, behind those that it has. All arguments are checked before it is written.

    With `cos` and `sin`, new keys are rotated on the way, and queries beside them: pair `i` of a row `(x, y)` at position `p`
    becomes `(x cos[p, i] - y sin[p, i], x sin[p, i] + y cos[p, i])`.

        k_cache, v_cache = np.zeros((2, batch, 4096, kv_heads, dim), np.float16)
        q, lengths = append(k, v, k_cache, v_cache, q=q, lengths=lengths, cos=cos, sin=sin)

    Args:
        k: New keys, `[batch, rows, kv_heads, dim]` or `[total, kv_heads, dim]`, which is a batch of one entry.
        v: New values, `[batch, rows, kv_heads, dim_v]` or `[total, kv_heads, dim_v]`.
        k_cache: Keys of the cache, `[batch, keys, kv_heads, dim]`, or any number of entries or pages; an array of NumPy, of k's
            type or float8_e4m3fn, whose dim has stride 1. Caches share no memory with other arrays.
        v_cache: Values of the cache, `[batch, keys, kv_heads, dim_v]`, alike.
        q: Queries to rotate, `[batch, seqlen_q, heads, dim]` or `[total_q, heads, dim]`.
        lengths: Keys that each entry has before, `int32[batch]`; None for 0. Row `i` becomes key `lengths[b] + i`.
        pages: The pages of each entry, `int32[batch, most]`; see `attention`.
        cache_entries: The entry of the cache for each entry of k, `int32[batch]`.
        slots: Where each row goes, `int64[batch, rows]` or `int64[total]`: row `slot % keys` of entry or page `slot // keys`,
            or nowhere if it is negative. Only one of pages, cache_entries and slots is given.
        positions: The position of each row of k and q, `int32[batch, rows]` or `int32[total]`; None for `lengths[b] + i`.
        cos, sin: Cosines and sines, `[positions, rotary_dim / 2]`, of float32 or k's type. Elements behind the first rotary_dim
            stay as they are.
        k_descale, v_descale: Of caches of float8_e4m3fn, what multiplies a head's numbers, `float32[batch, kv_heads]`: rows are
            divided by it and rounded, to 448 if they are larger. None for 1.
        page_descales: Whether they are `float32[pages, kv_heads]`.
        interleaved: Whether elements `2i` and `2i + 1` are a pair, not `i` and `i + rotary_dim / 2`.
        q_at_first: Whether all queries of an entry have the position of the first one.
        heads_first: Whether axes are `[batch, heads, seqlen, dim]`.

    Returns:
        The rotated queries, None without q, and how many keys each entry has now, `int32[batch]`.

    Raises:
        ValueError, TypeError: An argument is wrong, alone or beside the others; or a cache is an array of JAX, which never
            changes.
        MemoryError: Memory ran out.
    """
    call = AppendCall(k, v, k_cache, v_cache, heads_first)
    new_lengths = call.set_places(lengths, pages, cache_entries, slots, positions)
    call.set_rotary(cos, sin, interleaved, q_at_first)
    call.set_descales(k_descale, v_descale, page_descales)
    rotated = None if q is None else call.set_queries(q)
    call.run()
    return _like(q, rotated), _like(k, new_lengths)


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
        arrays[name] = in_rows(array_of(name, value, "int32"))
        expect_axes(name, arrays[name], 1, "a row of numbers")
    if arrays["indptr"].size == 0:
        raise ValueError("indptr is empty; it must be [batch + 1]")
    steps = np.diff(arrays["indptr"])
    most = max(steps.max(initial=0), 0) if max_pages is None else count("max_pages", max_pages)
    table, lengths = np.zeros((steps.size, most), np.int32), np.empty(steps.size, np.int32)
    tensors = {name: tensor_of(array) for name, array in {**arrays, "table": table, "lengths": lengths}.items()}
    args = CsrPages(struct_size=ctypes.sizeof(CsrPages), page=count("page_size", page_size), **tensors)
    check(interface().ferroattn_csr_pages(cpu(), ctypes.byref(args), None))
    return _like(indptr, table), _like(indptr, lengths)


def _like(q: Any, array: Array | None) -> Any:
    """The array, of the library that q's is of."""
    jax = sys.modules.get("jax")
    if array is None or jax is None or not isinstance(q, jax.Array):
        return array
    return jax.numpy.asarray(array)
