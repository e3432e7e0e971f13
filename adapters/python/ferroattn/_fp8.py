"""How calls round q, k and v to e4m3, on tensors of PyTorch and arrays of NumPy."""

from __future__ import annotations

from typing import Literal

Fp8 = bool | Literal["hadamard"]


def number(fp8: Fp8) -> int:
    """The number of a rounding for the operators and the C interface."""
    if fp8 == "hadamard":
        return 2
    if isinstance(fp8, str):
        raise ValueError(f'fp8 is {fp8!r}; it must be True, False or "hadamard"')
    return int(bool(fp8))
