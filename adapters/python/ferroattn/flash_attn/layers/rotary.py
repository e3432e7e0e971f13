"""Rotary embedding of queries and keys, on any device, with gradients by PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def rotate_half(x: Tensor, interleaved: bool = False) -> Tensor:
    """Pairs `(a, b)` of the last axis as `(-b, a)`: neighbours if `interleaved`, else one of each half."""
    if interleaved:
        a, b = x[..., ::2], x[..., 1::2]
        return torch.stack((-b, a), dim=-1).flatten(-2)
    a, b = x.chunk(2, dim=-1)
    return torch.cat((-b, a), dim=-1)


def apply_rotary_emb_torch(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False) -> Tensor:
    """Turns the first elements of each row of `x`, `[..., seqlen, heads, dim]`, by angles `[..., seqlen, rotary_dim / 2]`."""
    dim = 2 * cos.shape[-1]
    if dim > x.shape[-1]:
        raise ValueError(f"cos has {cos.shape[-1]} angles, for {dim} elements of a row; x has {x.shape[-1]}")
    if interleaved:
        cos, sin = cos.repeat_interleave(2, -1), sin.repeat_interleave(2, -1)
    else:
        cos, sin = torch.cat((cos, cos), -1), torch.cat((sin, sin), -1)
    cos, sin = cos.unsqueeze(-2), sin.unsqueeze(-2)
    turned = x[..., :dim]
    turned = turned * cos + rotate_half(turned, interleaved) * sin
    return torch.cat((turned.to(x.dtype), x[..., dim:]), dim=-1)


def apply_rotary_emb(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    interleaved: bool = False,
    inplace: bool = False,
    seqlen_offsets: int | Tensor = 0,
    cu_seqlens: Tensor | None = None,
    max_seqlen: int | None = None,
) -> Tensor:
    """Turns rows by the angles of their positions.

    Args:
        x: `[batch, seqlen, heads, dim]`, or `[total, heads, dim]` of packed sequences.
        cos, sin: `[positions, rotary_dim / 2]`.
        interleaved: Whether pairs are neighbours, not one element of each half.
        inplace: Whether x is overwritten.
        seqlen_offsets: Position of each sequence's first row: a number, or `[batch]`.
        cu_seqlens: Offsets of packed sequences, `int32[batch + 1]`.
        max_seqlen: Not needed.

    Returns:
        Of x's shape and type.
    """
    del max_seqlen
    offsets = torch.as_tensor(seqlen_offsets, device=x.device)
    if cu_seqlens is None:
        rows = torch.arange(x.shape[1], device=x.device)
        positions = rows + offsets.unsqueeze(-1) if offsets.dim() else rows + offsets
    else:
        rows = torch.arange(x.shape[0], device=x.device)
        sequence = torch.searchsorted(cu_seqlens[1:].to(rows.dtype), rows, right=True)
        positions = rows - cu_seqlens[sequence] + (offsets[sequence] if offsets.dim() else offsets)
    # Products in x's own type would be off by more than a rounding of their sum, where they cancel.
    wide = torch.promote_types(x.dtype, torch.float32)
    cos, sin = cos[positions].to(wide), sin[positions].to(wide)
    turned = apply_rotary_emb_torch(x.to(wide), cos, sin, interleaved).to(x.dtype)
    return x.copy_(turned) if inplace else turned


def apply_rotary_emb_qkv_(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    cos_k: Tensor | None = None,
    sin_k: Tensor | None = None,
    interleaved: bool = False,
    seqlen_offsets: int | Tensor = 0,
    num_heads_q: int | None = None,
) -> Tensor:
    """`qkv` with queries and keys turned: `[batch, seqlen, 3, heads, dim]`, or `[batch, seqlen, heads + 2 kv_heads, dim]` with
    `num_heads_q` the queries' heads."""
    cos_k, sin_k = cos if cos_k is None else cos_k, sin if sin_k is None else sin_k
    if qkv.dim() == 5:
        q, k, v = qkv.unbind(2)
    elif num_heads_q is not None:
        kv_heads = (qkv.shape[2] - num_heads_q) // 2
        q, k, v = qkv.split((num_heads_q, kv_heads, kv_heads), dim=2)
    else:
        raise ValueError("qkv has four axes; num_heads_q must say how many heads are the queries'")
    q = apply_rotary_emb(q, cos, sin, interleaved, seqlen_offsets=seqlen_offsets)
    k = apply_rotary_emb(k, cos_k, sin_k, interleaved, seqlen_offsets=seqlen_offsets)
    return torch.stack((q, k, v), 2) if qkv.dim() == 5 else torch.cat((q, k, v), 2)


def apply_rotary_emb_kv_(
    kv: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False, seqlen_offsets: int | Tensor = 0
) -> Tensor:
    """`kv`, `[batch, seqlen, 2, heads, dim]`, with the keys turned."""
    k, v = kv.unbind(2)
    return torch.stack((apply_rotary_emb(k, cos, sin, interleaved, seqlen_offsets=seqlen_offsets), v), 2)


class RotaryEmbedding(nn.Module):
    """Rotary embedding of packed queries, keys and values, with a table of angles that grows with the sequences.

    Args:
        dim: Elements of a row that turn.
        base: Base of the angles' geometric series.
        interleaved: Whether pairs are neighbours, not one element of each half.
        device: Where the table is made.
    """

    inv_freq: Tensor

    def __init__(self, dim: int, base: float = 10000.0, interleaved: bool = False, device: torch.device | None = None):
        super().__init__()
        self.dim, self.base, self.interleaved = dim, base, interleaved
        frequencies = base ** (-torch.arange(0, dim, 2, device=device, dtype=torch.float32) / dim)
        self.register_buffer("inv_freq", frequencies, persistent=False)

    def forward(
        self,
        qkv: Tensor,
        kv: Tensor | None = None,
        seqlen_offset: int | Tensor = 0,
        max_seqlen: int | None = None,
        num_heads_q: int | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """`qkv` turned; with `kv` given, `qkv` holds queries alone, and both are returned."""
        last = int(seqlen_offset.max()) if isinstance(seqlen_offset, Tensor) else seqlen_offset
        rows = max_seqlen if max_seqlen is not None else qkv.shape[1] + last
        angles = torch.outer(torch.arange(rows, device=qkv.device, dtype=torch.float32), self.inv_freq.to(qkv.device))
        cos, sin = angles.cos().to(qkv.dtype), angles.sin().to(qkv.dtype)
        if kv is None:
            return apply_rotary_emb_qkv_(
                qkv, cos, sin, interleaved=self.interleaved, seqlen_offsets=seqlen_offset, num_heads_q=num_heads_q
            )
        q = apply_rotary_emb(qkv, cos, sin, self.interleaved, seqlen_offsets=seqlen_offset)
        return q, apply_rotary_emb_kv_(kv, cos, sin, self.interleaved, seqlen_offset)
