"""What tests share: devices and types of numbers."""

from __future__ import annotations

import pytest

try:
    import torch
except ModuleNotFoundError:
    # Arrays of NumPy are tested without PyTorch.
    collect_ignore_glob = ["test_[!mn]*.py"]
    DEVICES = ["cpu"]
else:
    torch.manual_seed(0)
    DEVICES = ["cpu", *(f"cuda:{index}" for index in range(min(torch.cuda.device_count(), 2)))]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    """Each device that is there; at most two GPUs."""
    return str(request.param)
