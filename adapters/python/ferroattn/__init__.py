"""Exact attention in one small package: GPU kernels in Rust for PyTorch and JAX, and the CPU for them and NumPy.

Functions of PyTorch are imported when one is first used, so that the package needs no PyTorch. `ferroattn.jax` and
`ferroattn.numpy` are modules of their own:

    import ferroattn
    o = ferroattn.flash_attn_func(q, k, v, causal=True)  # tensors [batch, seqlen, heads, dim]
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .functions import append as append
    from .functions import attention as attention
    from .functions import csr_pages as csr_pages
    from .functions import flash_attn_func as flash_attn_func
    from .functions import flash_attn_kvpacked_func as flash_attn_kvpacked_func
    from .functions import flash_attn_qkvpacked_func as flash_attn_qkvpacked_func
    from .functions import flash_attn_varlen_func as flash_attn_varlen_func
    from .functions import flash_attn_varlen_kvpacked_func as flash_attn_varlen_kvpacked_func
    from .functions import flash_attn_varlen_qkvpacked_func as flash_attn_varlen_qkvpacked_func
    from .functions import flash_attn_with_kvcache as flash_attn_with_kvcache
    from .sdpa import disable as disable
    from .sdpa import enable as enable
    from .sdpa import scaled_dot_product_attention as scaled_dot_product_attention

__version__ = "0.1.0"

_MODULES = {
    "functions": [
        "append",
        "attention",
        "csr_pages",
        "flash_attn_func",
        "flash_attn_kvpacked_func",
        "flash_attn_qkvpacked_func",
        "flash_attn_varlen_func",
        "flash_attn_varlen_kvpacked_func",
        "flash_attn_varlen_qkvpacked_func",
        "flash_attn_with_kvcache",
    ],
    "sdpa": ["disable", "enable", "scaled_dot_product_attention"],
}

__all__ = sorted(name for names in _MODULES.values() for name in names)


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            value = getattr(import_module(f"{__name__}.{module}"), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
