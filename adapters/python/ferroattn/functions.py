"""Attention on tensors of PyTorch: `attention` with every option, and FlashAttention's functions by their names and arguments.

Results have gradients. Tensors are of float16 or bfloat16; on the CPU of float32, too.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import operators

Window = tuple[int, int]

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
    scale: float | None = None,
    causal: bool = False,
    window: Window = _NO_WINDOW,
    softcap: float = 0.0,
    splits: int = 0,
    deterministic: bool = True,
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
        seqlens_k: Lengths or offsets of keys; both are given or none.
        first_keys: The first key of each entry of the batch, `int32[batch]`.
        cache_entries: The entry of k and v for each entry of q, `int32[batch]`; such a call has no gradient.
        scale: Factor of scores, `1 / sqrt(dim)` if it is None.
        causal: Whether query `i` sees only keys up to `i + seqlen_k - seqlen_q`.
        window: Keys before and after a query's own that it sees; -1 is no bound.
        softcap: The bound `c` of scores, which become `c * tanh(score / c)`; 0 is none.
        splits: Splits of the keys, 0 for as many as fill the GPU.
        deterministic: Whether gradients are the same bits in every run; False may be faster.
        heads_first: Whether axes are `[batch, heads, seqlen, dim]`.

    Returns:
        o, of q's form with v's dim, and lse, `float32[batch, heads, seqlen_q]` or `float32[heads, total_q]`.

    Raises:
        ValueError, TypeError: An argument is wrong, alone or beside the others.
        NotImplementedError: No kernel of the device computes the call.
        torch.OutOfMemoryError: Memory ran out.
    """
    left, right = window
    return operators.call(
        q, k, v, bias, mask, sinks, alibi_slopes, seqlens_q, seqlens_k, first_keys, cache_entries,
        scale, causal, left, right, softcap, splits, deterministic, heads_first,
    )  # fmt: skip


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
    heads_first: bool = False,
) -> tuple[Tensor, Tensor]:
    """`attention` whose lse has no gradient: a call takes less of the host's time."""
    left, right = window
    return operators.call_for_output(
        q, k, v, bias, mask, sinks, alibi_slopes, seqlens_q, seqlens_k, None, None,
        scale, causal, left, right, softcap, 0, deterministic, heads_first,
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
        bias, mask, sinks: See `attention`.

    Returns:
        o, `[batch, seqlen_q, heads, dim_v]`; with `return_attn_probs` also lse, `float32[batch, heads, seqlen_q]`, and None.

    Raises:
        ValueError, TypeError: An argument is wrong, alone or beside the others.
        NotImplementedError: There is dropout.
    """
    _no_dropout(dropout_p)
    result = output(
        q, k, v, scale=softmax_scale, causal=causal, window=_window(window_size), softcap=softcap,
        alibi_slopes=alibi_slopes, deterministic=deterministic, bias=bias, mask=mask, sinks=sinks,
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
) -> Any:
    """Attention of packed sequences, each on its own.

    Args:
        q: Queries, `[total_q, heads, dim]`.
        k: Keys, `[total_k, kv_heads, dim]`.
        v: Values, `[total_k, kv_heads, dim_v]`.
        cu_seqlens_q: Offsets of sequences among the queries, `int32[sequences + 1]`.
        cu_seqlens_k: Offsets of sequences among the keys, `int32[sequences + 1]`.
        max_seqlen_q, max_seqlen_k: Not needed.
        alibi_slopes: `float32[heads]` or `float32[sequences, heads]`.
        block_table: None; keys in pages are not served.
        dropout_p, softmax_scale, causal, window_size, softcap, deterministic, return_attn_probs, sinks: See `flash_attn_func`.

    Returns:
        o, `[total_q, heads, dim_v]`; with `return_attn_probs` also lse, `float32[heads, total_q]`, and None.

    Raises:
        ValueError, TypeError: An argument is wrong, alone or beside the others.
        NotImplementedError: There is dropout, or keys lie in pages.
    """
    del max_seqlen_q, max_seqlen_k
    _no_dropout(dropout_p)
    _no_pages(block_table)
    result = output(
        q, k, v, seqlens_q=cu_seqlens_q, seqlens_k=cu_seqlens_k, scale=softmax_scale, causal=causal,
        window=_window(window_size), softcap=softcap, alibi_slopes=alibi_slopes, deterministic=deterministic, sinks=sinks,
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
) -> Any:
    """Attention of new queries to keys and values of a cache, without a gradient.

    Args:
        q: Queries, `[batch, seqlen_q, heads, dim]`.
        k_cache: Keys, `[entries, seqlen_cache, kv_heads, dim]`.
        v_cache: Values, `[entries, seqlen_cache, kv_heads, dim_v]`.
        k, v, rotary_cos, rotary_sin: None; new keys are not written into the cache by this call.
        cache_seqlens: Keys that each entry has, `int32[batch]` or one number; None if all are full.
        cache_batch_idx: The entry of the cache for each entry of q, `int32[batch]`; None for the one at the same index.
        cache_leftpad: The first key of each entry, `int32[batch]`; None for 0.
        block_table: None; caches in pages are not served.
        rotary_interleaved: Not needed.
        num_splits: Splits of the keys, 0 for as many as fill the GPU.
        return_softmax_lse: Whether lse is returned, too.
        softmax_scale, causal, window_size, softcap, alibi_slopes, sinks: See `flash_attn_func`.

    Returns:
        o, `[batch, seqlen_q, heads, dim_v]`; with `return_softmax_lse` also lse, `float32[batch, heads, seqlen_q]`.

    Raises:
        ValueError, TypeError: An argument is wrong, alone or beside the others.
        NotImplementedError: Keys are to be written, or lie in pages.
    """
    del rotary_interleaved
    _no_pages(block_table)
    if any(argument is not None for argument in (k, v, rotary_cos, rotary_sin)):
        raise NotImplementedError("flash_attn_with_kvcache does not write new keys: k, v and rotary_cos must be None")
    batch, seqlen_q = q.shape[0], q.shape[1]
    seqlens_q = None
    if cache_seqlens is not None:
        if not isinstance(cache_seqlens, Tensor):
            cache_seqlens = torch.full((batch,), cache_seqlens, dtype=torch.int32, device=q.device)
        seqlens_q = torch.full((batch,), seqlen_q, dtype=torch.int32, device=q.device)
    with torch.no_grad():
        output = attention(
            q, k_cache, v_cache, seqlens_q=seqlens_q, seqlens_k=cache_seqlens, cache_entries=cache_batch_idx,
            first_keys=cache_leftpad, scale=softmax_scale, causal=causal, window=_window(window_size), softcap=softcap,
            alibi_slopes=alibi_slopes, splits=num_splits, sinks=sinks,
        )  # fmt: skip
    return output if return_softmax_lse else output[0]


def _parts(packed: Tensor, name: str, parts: int) -> tuple[Tensor, ...]:
    """Queries, keys and values of one tensor, which has them along its third axis from the end."""
    if packed.dim() not in (4, 5) or packed.shape[-3] != parts:
        raise ValueError(f"{name} has shape {list(packed.shape)}; its third axis from the end must have {parts} parts")
    return packed.unbind(-3)


def _window(window: Any) -> Window:
    """The window's bounds as numbers; FlashAttention's own tests give tensors."""
    try:
        left, right = window
    except (TypeError, ValueError):
        raise TypeError(f"window_size must be two numbers, not {window!r}") from None
    # Bounds of -1, which most calls have, are no numbers of a tensor.
    return (left if type(left) is int else int(left)), (right if type(right) is int else int(right))


def _no_dropout(dropout_p: float) -> None:
    if dropout_p != 0.0:
        raise NotImplementedError(f"dropout_p is {dropout_p}; there is no dropout here, so it must be 0.0")


def _no_pages(block_table: Tensor | None) -> None:
    if block_table is not None:
        raise NotImplementedError("block_table is given; keys in pages are not served")
