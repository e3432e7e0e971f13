"""The package's binary: the C interface of the library, and PyTorch's operators."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

PATH = Path(__file__).parent / "libferroattn.so"


@cache
def load() -> ctypes.CDLL:
    """The binary, loaded once.

    Raises:
        ImportError: It is missing, or the machine is no x86-64 Linux with glibc 2.34 or later.
    """
    try:
        return ctypes.CDLL(str(PATH))
    except OSError as error:
        raise ImportError(f"ferroattn: {error}") from None


def register_torch(folder: str) -> None:
    """Registers the operators with the PyTorch whose libraries lie in `folder`.

    Raises:
        ImportError: That PyTorch lacks a function that operators need.
    """
    register = load().ferroattn_register_torch
    register.restype = ctypes.c_char_p
    reason = register(folder.encode())
    if reason is not None:
        raise ImportError(f"ferroattn: {reason.decode()}")
