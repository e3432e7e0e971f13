"""What tests share: devices and types of numbers."""

from __future__ import annotations

import sys

import pytest

try:
    import torch
except ModuleNotFoundError:
    # Arrays of NumPy and JAX are tested without PyTorch.
    collect_ignore_glob = ["test_[!jmn]*.py"]
    DEVICES = ["cpu"]
else:
    DEVICES = ["cpu", *(f"cuda:{index}" for index in range(min(torch.cuda.device_count(), 2)))]


@pytest.fixture(autouse=True)
def _seed() -> None:
    """Random numbers that are the same in every order of the tests."""
    if "torch" in sys.modules:
        torch.manual_seed(0)


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    """Each device that is there; at most two GPUs."""
    return str(request.param)
