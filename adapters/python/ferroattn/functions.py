"""Attention on tensors of PyTorch: `attention` with every option, and FlashAttention's functions by their names and arguments.

Results have gradients. Tensors are of float16 or bfloat16; on the CPU of float32, too.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import _fp8, operators
from ._fp8 import Fp8

Window = tuple[int, int]
Prefix = tuple[Tensor, Tensor]

_NO_WINDOW: Window = (-1, -1)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    sinks: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    seqlens_q: Tensor | None = None,
    seqlens_k: Tensor | None = None,
    first_keys: Tensor | None = None,
    cache_entries: Tensor | None = None,
    pages: Tensor | None = None,
    prefix: Prefix | None = None,
    prefix_pages: Tensor | None = None,
    prefix_keys: int | None = None,
    scale: float | None = None,
    causal: bool = False,
    window: Window = _NO_WINDOW,
    softcap: float = 0.0,
    splits: int = 0,
    split_keys: int = 0,
    deterministic: bool = True,
    batch_invariant: bool = False,
    fp8: Fp8 = False,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    page_descales: bool = False,
    dtype: torch.dtype = torch.bfloat16,
    heads_first: bool = False,
) -> tuple[Tensor, Tensor]:
    """Computes `o = softmax(scale * q k^T + bias) v` and `lse`, the row log-sum-exp.

    A query that sees no key gets `o = 0` and `lse = -inf`. Query heads share key heads if there are fewer of those.

    Args:
        q: Queries, `[batch, seqlen_q, heads, dim]`; of packed sequences `[total_q, heads, dim]`.
        k: Keys, `[batch, seqlen_k, kv_heads, dim]` or `[total_k, kv_heads, dim]`.
        v: Values, `[batch, seqlen_k, kv_heads, dim_v]` or `[total_k, kv_heads, dim_v]`.
        bias: Added to scores, `[batch or 1, heads or 1, seqlen_q or 1, seqlen_k]`; it has a gradient.
        mask: Booleans of such a shape; a query sees the keys where it is true.
        sinks: Logits of keys without values, `float32[heads]`; they have a gradient.
        alibi_slopes: `float32[heads]` or `float32[batch, heads]`; of packed sequences `float32[sequences, heads]`, too.
        seqlens_q: Lengths `int32[batch]`; of packed sequences offsets `int32[sequences + 1]`, as of all `seqlens`.
        seqlens_k: Lengths or offsets of keys; of keys in pages lengths always. Without seqlens_q all
            queries of each entry count.
        first_keys: The first key of each entry of the batch, `int32[batch]`.
        cache_entries: The entry of k and v for each entry of q, `int32[batch]`; such a call has no gradient.
        pages: The pages of k and v for each entry of q, or each packed sequence, `int32[batch, most]`: k is
            `[pages, page, kv_heads, dim]`, v alike, the keys of a page a power of 2. Key `j` is row `j % page` of page
            `pages[b, j // page]`, and seqlen_k is `most * page`. Numbers of pages behind an entry's last key may be any. Such
            a call has no gradient.
        prefix: Keys and values that all entries share, `[1, keys, kv_heads, dim]` and `[1, keys, kv_heads, dim_v]`, of packed
            sequences without the first axis: each query sees all of them before its own, and they are read once for all
            entries. lse counts both. `causal` hides own keys alone, of which an entry needs as many as it has queries, less
            one. Such a call has no gradient, bias, mask, slopes, window or first keys.
        prefix_pages: Such keys in pages of k and v, `int32[n]`, in a call with pages.
        prefix_keys: Keys of prefix_pages, of which the last page has 1 or more; None for full pages.
        scale: Factor of scores, `1 / sqrt(dim)` if it is None.
        causal: Whether query `i` sees only keys up to `i + seqlen_k - seqlen_q`.
        window: Keys before and after a query's own that it sees; -1 is no bound.
        softcap: The bound `c` of scores, which become `c * tanh(score / c)`; 0 is none.
        splits: Splits of the keys, 0 for as many as fill the GPU.
        split_keys: Keys of a split, in place of splits, 0 for none; the CPU does not split.
        deterministic: Whether gradients are the same bits in every run; False may be faster.
        batch_invariant: Whether results of a query have the same bits beside any neighbours in the batch, and in any chunk of
            its sequence; gradients beside any neighbours.
        fp8: Whether q, k and v are rounded to e4m3, which Hopper's tensor cores multiply at twice the rate. With "hadamard"
            rows of q and k are rotated before, which spreads outliers. Such a call may have a window, a softcap, sinks and
            sequences, no other option, and no gradient. q, k and v may also be of float8_e4m3fn already.
        q_descale: What multiplies q of float8_e4m3fn, `float32[batch, kv_heads]`; None for 1.
        k_descale: What multiplies k of float8_e4m3fn, likewise. q may be of 16 bits: k and v are then a cache that few queries
            read, by decoding kernels. Such calls have no gradient, bias, mask or prefix, and are not batch invariant.
        v_descale: What multiplies v of float8_e4m3fn, likewise.
        page_descales: Whether k_descale and v_descale are `float32[pages, kv_heads]`.
        dtype: The type of o where q is of float8_e4m3fn: float16, bfloat16 or float32, on GPUs, too. With `fp8` o of other
            inputs is float32 if this says so, and has their type otherwise.
        heads_first: Whether axes are `[batch, heads, seqlen, dim]`.

    Returns:
        o, of q's form with v's dim, and lse, `float32[batch, heads, seqlen_q]` or `float32[heads, total_q]`.

    Raises:
        ValueError, TypeError: An argument is wrong, alone or beside the others.
        NotImplementedError: No kernel of the device computes the call.
        torch.OutOfMemoryError: Memory ran out.
    """
    left, right = window
    prefix_k, prefix_v = (None, None) if prefix is None else _prefix(prefix)
    options = (
        bias, mask, sinks, alibi_slopes, seqlens_q, seqlens_k, first_keys, cache_entries, pages, prefix_k, prefix_v,
        prefix_pages, prefix_keys, scale, causal, left, right, softcap, splits, split_keys, deterministic, batch_invariant,
        _fp8.number(fp8), heads_first,
    )  # fmt: skip
    if _is_e4m3(k):
        if dtype not in operators.DTYPES:
            raise TypeError(f"dtype is {dtype}; it must be torch.float16, torch.bfloat16 or torch.float32")
        descales = (q_descale, k_descale, v_descale, page_descales)
        return operators.call_e4m3(q, k, v, *descales, operators.DTYPES.index(dtype), *options)
    if q_descale is not None or k_descale is not None or v_descale is not None:
        raise TypeError("descales need k and v of float8_e4m3fn")
    if fp8 and dtype == torch.float32:
        no_descales = (None, None, None, False)
        return operators.call_e4m3(q, k, v, *no_descales, operators.DTYPES.index(dtype), *options)
    return operators.call(q, k, v, *options)


def append(
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    *,
    q: Tensor | None = None,
    lengths: Tensor | None = None,
    pages: Tensor | None = None,
    cache_entries: Tensor | None = None,
    slots: Tensor | None = None,
    positions: Tensor | None = None,
    cos: Tensor | None = None,
    sin: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    page_descales: bool = False,
    interleaved: bool = False,
    q_at_first: bool = False,
    heads_first: bool = False,
) -> tuple[Tensor | None, Tensor]:
    """Writes new keys and values into a cache, behind those that it has, by one launch, without a gradient.

    With `cos` and `sin`, new keys are rotated on the way, and queries beside them: pair `i` of a row `(x, y)` at position `p`
    becomes `(x cos[p, i] - y sin[p, i], x sin[p, i] + y cos[p, i])`.

    A GPU does not write rows that have no place in the cache; it takes the nearest position that `cos` has.

    Args:
        k: New keys, `[batch, rows, kv_heads, dim]` or `[total, kv_heads, dim]`, which is a batch of one entry.
        v: New values, `[batch, rows, kv_heads, dim_v]` or `[total, kv_heads, dim_v]`.
        k_cache: Keys of the cache, `[batch, keys, kv_heads, dim]`, or any number of entries or pages; dim has stride 1. Caches
            share no memory with other tensors.
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
        ValueError, TypeError: An argument is wrong, alone or beside the others.
        torch.OutOfMemoryError: Memory ran out.
    """
    rotated, new_lengths = operators.call_append(
        k, v, k_cache, v_cache, q, lengths, pages, cache_entries, slots, positions, cos, sin,
        k_descale, v_descale, page_descales, interleaved, q_at_first, heads_first,
    )  # fmt: skip
    return None if q is None else rotated, new_lengths


def csr_pages(
    indptr: Tensor, indices: Tensor, last_page_len: Tensor, page_size: int, max_pages: int | None = None
) -> tuple[Tensor, Tensor]:
    """Makes a table of pages and lengths of FlashInfer's arrays, by one launch, for all layers of a step.

    Arrays that are wrong are refused on the CPU; a GPU moves their numbers to the nearest ones that are allowed.

    Args:
        indptr: Where the pages of each entry begin among the indices, and where the last one's end, `int32[batch + 1]`.
        indices: Page numbers, `int32[n]`.
        last_page_len: Keys of each entry's last page, `int32[batch]`, from 1 to page_size; of an entry without pages any.
        page_size: Keys of a page, a power of 2.
        max_pages: The most pages of an entry; None reads it from indptr, for which a GPU is waited for.

    Returns:
        The table, `int32[batch, max_pages]`, and the lengths, `int32[batch]`: `pages` and `seqlens_k` of `attention`, or
        `block_table` and `cache_seqlens` of `flash_attn_with_kvcache`. Numbers behind an entry's last page may be any.

    Raises:
        ValueError, TypeError: An argument is wrong, alone or beside the others.
        torch.OutOfMemoryError: Memory ran out.
    """
    if max_pages is None:
        max_pages = max(int(indptr.diff().max()), 0) if indptr.numel() > 1 else 0
    return operators.call_csr_pages(indptr, indices, last_page_len, page_size, max_pages)


def output(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    sinks: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    seqlens_q: Tensor | None = None,
    seqlens_k: Tensor | None = None,
    scale: float | None = None,
    causal: bool = False,
    window: Window = _NO_WINDOW,
    softcap: float = 0.0,
    deterministic: bool = True,
    batch_invariant: bool = False,
    fp8: Fp8 = False,
    heads_first: bool = False,
) -> tuple[Tensor, Tensor]:
    """`attention` whose lse has no gradient: a call takes less of the host's time."""
    left, right = window
    return operators.call_for_output(
        q, k, v, bias, mask, sinks, alibi_slopes, seqlens_q, seqlens_k, None, None, None, None, None, None, None,
        scale, causal, left, right, softcap, 0, 0, deterministic, batch_invariant, _fp8.number(fp8), heads_first,
    )  # fmt: skip


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = _NO_WINDOW,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    *,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    sinks: Tensor | None = None,
    batch_invariant: bool = False,
    fp8: Fp8 = False,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    dtype: torch.dtype = torch.bfloat16,
) -> Any:
    """Attention of sequences of one length.

    Args:
        q: Queries, `[batch, seqlen_q, heads, dim]`.
        k: Keys, `[batch, seqlen_k, kv_heads, dim]`.
        v: Values, `[batch, seqlen_k, kv_heads, dim_v]`.
        dropout_p: 0.0; there is no dropout.
        softmax_scale: Factor of scores, `1 / sqrt(dim)` if it is None.
        causal: Whether query `i` sees only keys up to `i + seqlen_k - seqlen_q`.
        window_size: Keys before and after a query's own that it sees; -1 is no bound.
        softcap: The bound `c` of scores, which become `c * tanh(score / c)`; 0 is none.
        alibi_slopes: `float32[heads]` or `float32[batch, heads]`.
        deterministic: Whether gradients are the same bits in every run.
        return_attn_probs: Whether lse is returned, too.
        bias, mask, sinks, batch_invariant, fp8, q_descale, k_descale, v_descale, dtype: See `attention`.

    Returns:
        o, `[batch, seqlen_q, heads, dim_v]`; with `return_attn_probs` also lse, `float32[batch, heads, seqlen_q]`, and None.

    Raises:
        ValueError, TypeError: An argument is wrong, alone or beside the others.
        NotImplementedError: There is dropout.
    """
    _no_dropout(dropout_p)
    has_descales = q_descale is not None or k_descale is not None or v_descale is not None
    if _is_e4m3(k) or has_descales or (fp8 and dtype == torch.float32):
        result = attention(
            q, k, v, scale=softmax_scale, causal=causal, window=_window(window_size), softcap=softcap,
            alibi_slopes=alibi_slopes, bias=bias, mask=mask, sinks=sinks, batch_invariant=batch_invariant, fp8=fp8,
            q_descale=q_descale, k_descale=k_descale, v_descale=v_descale, dtype=dtype,
        )  # fmt: skip
        return (*result, None) if return_attn_probs else result[0]
    result = output(
        q, k, v, scale=softmax_scale, causal=causal, window=_window(window_size), softcap=softcap,
        alibi_slopes=alibi_slopes, deterministic=deterministic, bias=bias, mask=mask, sinks=sinks,
        batch_invariant=batch_invariant, fp8=fp8,
    )  # fmt: skip
    return (*result, None) if return_attn_probs else result[0]


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = _NO_WINDOW,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Tensor | None = None,
    *,
    sinks: Tensor | None = None,
    batch_invariant: bool = False,
) -> Any:
    """Attention of packed sequences, each on its own.

    Args:
        q: Queries, `[total_q, heads, dim]`.
        k: Keys, `[total_k, kv_heads, dim]`; with a block_table pages, `[pages, page, kv_heads, dim]`.
        v: Values, `[total_k, kv_heads, dim_v]`; with a block_table `[pages, page, kv_heads, dim_v]`.
        cu_seqlens_q: Offsets of sequences among the queries, `int32[sequences + 1]`.
        cu_seqlens_k: Offsets of sequences among the keys, `int32[sequences + 1]`.
        max_seqlen_q: With a block_table, the rows of the longest sequence: calls of even ones are faster. Else not needed.
        max_seqlen_k: Not needed.
        alibi_slopes: `float32[heads]` or `float32[sequences, heads]`.
        block_table: The pages of each sequence, `int32[sequences, most]`; see `attention`. Such a call has no gradient.
        dropout_p, softmax_scale, causal, window_size, softcap, deterministic, return_attn_probs, sinks, batch_invariant: See
            `flash_attn_func`.

    Returns:
        o, `[total_q, heads, dim_v]`; with `return_attn_probs` also lse, `float32[heads, total_q]`, and None.

    Raises:
        ValueError, TypeError: An argument is wrong, alone or beside the others.
        NotImplementedError: There is dropout.
    """
    del max_seqlen_k
    _no_dropout(dropout_p)
    if block_table is not None:
        o, lse = _of_pages(
            q, k, v, cu_seqlens_q, cu_seqlens_k.diff(), max_seqlen_q, block_table, scale=softmax_scale, causal=causal,
            window=_window(window_size), softcap=softcap, alibi_slopes=alibi_slopes, sinks=sinks,
            batch_invariant=batch_invariant,
        )  # fmt: skip
        return (o, lse, None) if return_attn_probs else o
    result = output(
        q, k, v, seqlens_q=cu_seqlens_q, seqlens_k=cu_seqlens_k, scale=softmax_scale, causal=causal,
        window=_window(window_size), softcap=softcap, alibi_slopes=alibi_slopes, deterministic=deterministic, sinks=sinks,
        batch_invariant=batch_invariant,
    )  # fmt: skip
    return (*result, None) if return_attn_probs else result[0]


def flash_attn_kvpacked_func(
    q: Tensor,
    kv: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = _NO_WINDOW,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """`flash_attn_func` on keys and values in one tensor, `[batch, seqlen_k, 2, kv_heads, dim]`."""
    k, v = _parts(kv, "kv", 2)
    return flash_attn_func(
        q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs
    )


def flash_attn_qkvpacked_func(
    qkv: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = _NO_WINDOW,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """`flash_attn_func` on queries, keys and values in one tensor, `[batch, seqlen, 3, heads, dim]`."""
    q, k, v = _parts(qkv, "qkv", 3)
    return flash_attn_func(
        q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs
    )


def flash_attn_varlen_kvpacked_func(
    q: Tensor,
    kv: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = _NO_WINDOW,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """`flash_attn_varlen_func` on keys and values in one tensor, `[total_k, 2, kv_heads, dim]`."""
    k, v = _parts(kv, "kv", 2)
    return flash_attn_varlen_func(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p, softmax_scale, causal, window_size,
        softcap, alibi_slopes, deterministic, return_attn_probs,
    )  # fmt: skip


def flash_attn_varlen_qkvpacked_func(
    qkv: Tensor,
    cu_seqlens: Tensor,
    max_seqlen: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = _NO_WINDOW,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """`flash_attn_varlen_func` on queries, keys and values in one tensor, `[total, 3, heads, dim]`."""
    q, k, v = _parts(qkv, "qkv", 3)
    return flash_attn_varlen_func(
        q, k, v, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, dropout_p, softmax_scale, causal, window_size,
        softcap, alibi_slopes, deterministic, return_attn_probs,
    )  # fmt: skip


def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,
    cache_seqlens: int | Tensor | None = None,
    cache_batch_idx: Tensor | None = None,
    cache_leftpad: Tensor | None = None,
    block_table: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = _NO_WINDOW,
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: Tensor | None = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
    *,
    sinks: Tensor | None = None,
    split_keys: int = 0,
    batch_invariant: bool = False,
    prefix: Prefix | None = None,
    prefix_pages: Tensor | None = None,
    prefix_keys: int | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    page_descales: bool = False,
) -> Any:
    """Attention of new queries to keys and values of a cache, to which new ones may be appended, without a gradient.

    Args:
        q: Queries, `[batch, seqlen_q, heads, dim]`.
        k_cache: Keys, `[entries, seqlen_cache, kv_heads, dim]`; with a block_table pages, `[pages, page, kv_heads, dim]`.
        v_cache: Values, `[entries, seqlen_cache, kv_heads, dim_v]`; with a block_table `[pages, page, kv_heads, dim_v]`.
        k: New keys, `[batch, rows, kv_heads, dim]`, which are written into the cache behind its `cache_seqlens` keys, and seen.
        v: New values, `[batch, rows, kv_heads, dim_v]`.
        rotary_cos, rotary_sin: Cosines and sines, `[positions, rotary_dim / 2]`, by which new keys and q are rotated; see
            `append`. Query `i` is at position `cache_seqlens + i` in a causal call or with a window, else at `cache_seqlens`.
        cache_seqlens: Keys that each entry has before, `int32[batch]` or one number; None if all are full.
        cache_batch_idx: The entry of the cache for each entry of q, `int32[batch]`; None for the one at the same index.
        cache_leftpad: The first key of each entry, `int32[batch]`; None for 0.
        block_table: The pages of each entry, `int32[batch, most]`; see `attention`.
        rotary_interleaved: Whether elements `2i` and `2i + 1` are rotated as a pair, not `i` and `i + rotary_dim / 2`.
        num_splits: Splits of the keys, 0 for as many as fill the GPU.
        return_softmax_lse: Whether lse is returned, too.
        split_keys: Keys of a split, in place of num_splits, 0 for none.
        prefix, prefix_pages, prefix_keys: Keys and values that all entries share, before those of the cache; see `attention`.
            cache_seqlens does not count them, nor do positions.
        k_descale, v_descale, page_descales: Of a cache of float8_e4m3fn, see `attention`; new keys and values are divided by
            them, and rounded.
        softmax_scale, causal, window_size, softcap, alibi_slopes, sinks, batch_invariant: See `flash_attn_func`.

    Returns:
        o, `[batch, seqlen_q, heads, dim_v]`; with `return_softmax_lse` also lse, `float32[batch, heads, seqlen_q]`.

    Raises:
        ValueError, TypeError: An argument is wrong, alone or beside the others.
    """
    if (k is None) != (v is None) or (k is None and (rotary_cos is not None or rotary_sin is not None)):
        raise ValueError("k and v are given both or not, and rotary_cos and rotary_sin beside them alone")
    if k is not None and cache_seqlens is None:
        raise ValueError("cache_seqlens is None; it must say where new keys go")
    window = _window(window_size)
    if cache_seqlens is not None and not isinstance(cache_seqlens, Tensor):
        cache_seqlens = torch.full(q.shape[:1], cache_seqlens, dtype=torch.int32, device=q.device)
    if k is not None and v is not None:
        rotated, cache_seqlens = append(
            k, v, k_cache, v_cache, q=None if rotary_cos is None else q, lengths=cache_seqlens, pages=block_table,
            cache_entries=cache_batch_idx, cos=rotary_cos, sin=rotary_sin, interleaved=rotary_interleaved,
            q_at_first=not causal and max(window) < 0, k_descale=k_descale, v_descale=v_descale, page_descales=page_descales,
        )  # fmt: skip
        q = q if rotated is None else rotated
    with torch.no_grad():
        output = attention(
            q, k_cache, v_cache, seqlens_k=cache_seqlens, cache_entries=cache_batch_idx,
            pages=block_table, first_keys=cache_leftpad, scale=softmax_scale, causal=causal, window=window, softcap=softcap,
            alibi_slopes=alibi_slopes, splits=num_splits, sinks=sinks,
            split_keys=split_keys, batch_invariant=batch_invariant, prefix=prefix, prefix_pages=prefix_pages,
            prefix_keys=prefix_keys, k_descale=k_descale, v_descale=v_descale, page_descales=page_descales,
        )  # fmt: skip
    return output if return_softmax_lse else output[0]


def _of_pages(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    seqlens_k: Tensor,
    max_seqlen_q: int,
    block_table: Tensor,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """Attention of packed queries to pages, without a gradient, and the host waits for no offset.

    Returns:
        o, `[total_q, heads, dim_v]`, and lse, `float32[heads, total_q]`.
    """
    if q.dim() != 3:
        raise ValueError(f"q has {q.dim()} axes; it must be [total, heads, dim]")
    batch, total = cu_seqlens_q.shape[0] - 1, q.shape[0]
    most = min(max_seqlen_q, total)
    options |= {"seqlens_k": seqlens_k, "pages": block_table}
    with torch.no_grad():
        if batch * most != total:
            return attention(q, k, v, seqlens_q=cu_seqlens_q, **options)
        # All sequences are that long: their keys are divided among blocks in parts of one size.
        o, lse = attention(q.unflatten(0, (batch, most)), k, v, seqlens_q=cu_seqlens_q.diff(), **options)
        return o.flatten(0, 1), lse.transpose(0, 1).flatten(1)


def _parts(packed: Tensor, name: str, parts: int) -> tuple[Tensor, ...]:
    """Queries, keys and values of one tensor, which has them along its third axis from the end."""
    if packed.dim() not in (4, 5) or packed.shape[-3] != parts:
        raise ValueError(f"{name} has shape {list(packed.shape)}; its third axis from the end must have {parts} parts")
    return packed.unbind(-3)


def _prefix(prefix: Any) -> Prefix:
    """Keys and values of a prefix."""
    if not isinstance(prefix, (tuple, list)) or len(prefix) != 2 or not all(isinstance(part, Tensor) for part in prefix):
        raise TypeError("prefix must be two tensors, its keys and its values")
    k, v = prefix
    return k, v


def _window(window: Any) -> Window:
    """The window's bounds as numbers; FlashAttention's own tests give tensors."""
    try:
        left, right = window
    except (TypeError, ValueError):
        raise TypeError(f"window_size must be two numbers, not {window!r}") from None
    # Bounds of -1, which most calls have, are no numbers of a tensor.
    return (left if type(left) is int else int(left)), (right if type(right) is int else int(right))


def _is_e4m3(tensor: Any) -> bool:
    return isinstance(tensor, Tensor) and tensor.dtype == torch.float8_e4m3fn


def _no_dropout(dropout_p: float) -> None:
    if dropout_p != 0.0:
        raise NotImplementedError(f"dropout_p is {dropout_p}; there is no dropout here, so it must be 0.0")
