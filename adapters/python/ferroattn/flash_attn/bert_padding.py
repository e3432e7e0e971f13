"""Padded batches as packed sequences, and back."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def index_first_axis(input: Tensor, indices: Tensor) -> Tensor:
    """Rows of the first axis, `[rows, ...]` of `[total, ...]`."""
    return input[indices]


def index_put_first_axis(values: Tensor, indices: Tensor, first_axis_dim: int) -> Tensor:
    """Rows at their places among `first_axis_dim` rows of zeros."""
    output = values.new_zeros(first_axis_dim, *values.shape[1:])
    return output.index_put((indices,), values)


def index_first_axis_residual(input: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
    """`index_first_axis`, and the input without a gradient."""
    return input[indices], input.detach()


def unpad_input(
    hidden_states: Tensor, attention_mask: Tensor, unused_mask: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor, int, Tensor]:
    """Packs the tokens of a padded batch.

    Args:
        hidden_states: `[batch, seqlen, ...]`.
        attention_mask: `[batch, seqlen]`, 1 or true for tokens that are there.
        unused_mask: `[batch, seqlen]`, 1 or true for tokens that are packed though nothing uses them.

    Returns:
        The tokens `[total, ...]`, their indices in the flat batch, offsets `int32[batch + 1]`, the largest length, and
        lengths `int32[batch]` of `attention_mask`.
    """
    packed = attention_mask if unused_mask is None else attention_mask + unused_mask
    lengths = packed.sum(-1, dtype=torch.int32)
    indices = packed.flatten().nonzero().flatten()
    offsets = F.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    used = attention_mask.sum(-1, dtype=torch.int32)
    return hidden_states.flatten(0, 1)[indices], indices, offsets, int(lengths.max()), used


def unpad_input_for_concatenated_sequences(
    hidden_states: Tensor, attention_mask_in_length: Tensor
) -> tuple[Tensor, Tensor, Tensor, int]:
    """Packs batches whose entries are several sequences, one after another.

    Args:
        hidden_states: `[batch, seqlen, ...]`.
        attention_mask_in_length: `int[batch, seqlen]`, lengths of an entry's sequences, then zeros.

    Returns:
        The tokens `[total, ...]`, their indices in the flat batch, offsets of all sequences and the largest length.
    """
    seqlen = attention_mask_in_length.shape[1]
    filled = attention_mask_in_length.sum(-1, keepdim=True)
    mask = torch.arange(seqlen, device=filled.device) < filled
    lengths = attention_mask_in_length.flatten()
    lengths = lengths[lengths.nonzero().flatten()].to(torch.int32)
    indices = mask.flatten().nonzero().flatten()
    offsets = F.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    return hidden_states.flatten(0, 1)[indices], indices, offsets, int(lengths.max())


def pad_input(hidden_states: Tensor, indices: Tensor, batch: int, seqlen: int) -> Tensor:
    """The padded batch `[batch, seqlen, ...]` of packed tokens `[total, ...]`, with zeros where there is none."""
    return index_put_first_axis(hidden_states, indices, batch * seqlen).unflatten(0, (batch, seqlen))
