"""Parts of models."""

from . import rotary as rotary
