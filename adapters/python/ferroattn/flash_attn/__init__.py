"""FlashAttention's package by these kernels: `from ferroattn.flash_attn import flash_attn_func`, and so on.

It is another name for an installed `flash_attn` only where a program asks for it, with `install`.
"""

from __future__ import annotations

import importlib.util
import sys

from . import bert_padding, flash_attn_interface, layers
from .flash_attn_interface import (
    flash_attn_func,
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
    flash_attn_with_kvcache,
)

# The version whose interface this is.
__version__ = "2.8.4"

__all__ = [
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
    "install",
]


def install(*, replace: bool = False) -> None:
    """Makes `import flash_attn` mean this module in the running program.

    Args:
        replace: Whether it takes the place of a `flash_attn` that is installed or imported.

    Raises:
        ImportError: There is a `flash_attn`, and `replace` is False.
    """
    here = sys.modules[__name__]
    found = sys.modules.get("flash_attn")
    if found is here:
        return
    if not replace and (found is not None or importlib.util.find_spec("flash_attn") is not None):
        raise ImportError("a flash_attn is installed; install(replace=True) takes its place")
    for name in [name for name in sys.modules if name == "flash_attn" or name.startswith("flash_attn.")]:
        del sys.modules[name]
    for module in (here, bert_padding, flash_attn_interface, layers, layers.rotary):
        sys.modules["flash_attn" + module.__name__.removeprefix(__name__)] = module
