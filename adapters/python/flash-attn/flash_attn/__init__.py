"""FlashAttention's package by ferroattn: this module is `ferroattn.flash_attn`."""

import ferroattn.flash_attn

ferroattn.flash_attn.install(replace=True)
