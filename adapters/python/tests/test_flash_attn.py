"""The module that stands in for FlashAttention's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from reference import assert_close, attention, gradients
from torch import Tensor

from ferroattn.flash_attn import bert_padding, flash_attn_interface
from ferroattn.flash_attn.layers import rotary

HERE = Path(__file__).parent


def run(program: str, *paths: Path) -> str:
    """Standard output of a program in a Python of its own."""
    path = [str(path) for path in paths]
    lines = f"import sys; sys.path[:0] = {path!r}\n{program}"
    return subprocess.run([sys.executable, "-c", lines], capture_output=True, text=True, check=True).stdout.strip()


def test_one_line_makes_it_flash_attn() -> None:
    found = run("""
import ferroattn.flash_attn; ferroattn.flash_attn.install()
import flash_attn, ferroattn
from flash_attn import flash_attn_func
from flash_attn.bert_padding import pad_input, unpad_input
from flash_attn.flash_attn_interface import _flash_attn_forward, _flash_attn_varlen_backward
from flash_attn.layers.rotary import apply_rotary_emb
print(flash_attn_func is ferroattn.flash_attn_func, flash_attn.__version__)
print(flash_attn.flash_attn_with_kvcache is ferroattn.flash_attn_with_kvcache)
""")
    assert found == "True 2.8.4\nTrue"


def test_an_installed_one_stays(tmp_path: Path) -> None:
    (tmp_path / "flash_attn").mkdir()
    (tmp_path / "flash_attn" / "__init__.py").write_text("mine = True\n")
    found = run(
        """
import ferroattn.flash_attn
try:
    ferroattn.flash_attn.install()
except ImportError as error:
    print(error)
import flash_attn
print(flash_attn.mine)
ferroattn.flash_attn.install(replace=True)
import flash_attn
print(hasattr(flash_attn, "mine"), flash_attn.flash_attn_func.__module__)
""",
        tmp_path,
    )
    lines = found.split("\n")
    assert "replace=True" in lines[0] and lines[1:] == ["True", "False ferroattn.functions"]


def test_the_distribution(tmp_path: Path) -> None:
    """The module of the second distribution is this one."""
    found = run("import flash_attn; print(flash_attn.__name__)", HERE.parent / "flash-attn")
    assert found == "ferroattn.flash_attn"


def inner(device: str, packed: bool) -> tuple[list[Tensor], Any, Any]:
    """Inputs, and both passes by the inner functions."""
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    inputs = [torch.randn(2, 40, heads, 32, device=device).to(dtype) for heads in (4, 2, 2)]
    shared: dict[str, Any] = {
        "dropout_p": 0.0, "softmax_scale": 0.2, "causal": True, "window_size_left": 9, "window_size_right": -1,
        "softcap": 2.0, "alibi_slopes": None,
    }  # fmt: skip
    if packed:
        inputs = [tensor.flatten(0, 1) for tensor in inputs]
        cu = torch.tensor([0, 40, 80], dtype=torch.int32, device=device)
        shared |= {"cu_seqlens_q": cu, "cu_seqlens_k": cu, "max_seqlen_q": 40, "max_seqlen_k": 40}
    if packed:
        forward, backward = flash_attn_interface._flash_attn_varlen_forward, flash_attn_interface._flash_attn_varlen_backward
    else:
        forward, backward = flash_attn_interface._flash_attn_forward, flash_attn_interface._flash_attn_backward
    return (
        inputs,
        lambda q, k, v: forward(q, k, v, return_softmax=False, **shared)[:2],
        lambda *tensors: backward(*tensors, deterministic=True, rng_state=None, **shared),
    )


@pytest.mark.parametrize("packed", [False, True])
def test_inner_functions(device: str, packed: bool) -> None:
    inputs, forward, backward = inner(device, packed)
    o, lse = forward(*inputs)
    d_o = torch.randn_like(o)
    given = [torch.full_like(tensor, torch.nan) for tensor in inputs]
    backward(d_o, *inputs, o, lse, *given)

    def whole(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        if packed:
            q, k, v = (tensor.unflatten(0, (2, 40)) for tensor in (q, k, v))
        o, lse = attention(q, k, v, scale=0.2, causal=True, window=(9, -1), softcap=2.0)
        return (o.flatten(0, 1), lse.transpose(0, 1).flatten(1)) if packed else (o, lse)

    assert_close([o, lse, *given], gradients(whole, inputs, d_o), o.dtype)
    # Views of one tensor take their gradients apart.
    if not packed:
        whole_kv = torch.full((2, 40, 2, 2, 32), torch.nan, device=device, dtype=o.dtype)
        backward(d_o, *inputs, o, lse, None, whole_kv[:, :, 0], whole_kv[:, :, 1])
        assert torch.equal(whole_kv[:, :, 0], given[1]) and torch.equal(whole_kv[:, :, 1], given[2])


def test_padding(device: str) -> None:
    x = torch.randn(3, 7, 2, 4, device=device, requires_grad=True)
    mask = torch.tensor([[1] * 7, [0] * 7, [0, 1, 1, 0, 0, 0, 1]], device=device)
    packed, indices, offsets, longest, used = bert_padding.unpad_input(x, mask)
    assert torch.equal(packed, x[mask.bool()])
    assert offsets.tolist() == [0, 7, 7, 10] and offsets.dtype == torch.int32
    assert longest == 7 and used.tolist() == [7, 0, 3]
    padded = bert_padding.pad_input(packed, indices, 3, 7)
    assert torch.equal(padded, x * mask[..., None, None])
    padded.sum().backward()
    assert torch.equal(x.grad, mask[..., None, None].expand_as(x).float())
    unused = torch.tensor([[0] * 7, [0, 1] + [0] * 5, [0] * 7], device=device)
    packed, _indices, offsets, _longest, used = bert_padding.unpad_input(x, mask, unused)
    assert offsets.tolist() == [0, 7, 8, 11] and used.tolist() == [7, 0, 3] and packed.shape[0] == 11
    lengths = torch.tensor([[2, 3, 0, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0, 0], [7, 0, 0, 0, 0, 0, 0]], device=device)
    packed, _indices, offsets, longest = bert_padding.unpad_input_for_concatenated_sequences(x, lengths)
    assert offsets.tolist() == [0, 2, 5, 6, 13] and longest == 7
    assert torch.equal(packed, torch.cat((x[0, :5], x[1, :1], x[2])))


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotary(device: str, interleaved: bool) -> None:
    x = torch.randn(2, 5, 3, 12, device=device)
    angles = torch.rand(30, 4, device=device)
    cos, sin = angles.cos(), angles.sin()
    starts = torch.tensor([3, 20], device=device)

    def turned(x: Tensor, first: int) -> Tensor:
        """Pairs as complex numbers."""
        part = x[..., :8]
        a, b = (part[..., ::2], part[..., 1::2]) if interleaved else part.chunk(2, -1)
        turn = torch.polar(torch.ones_like(angles), angles)[first : first + x.shape[0], None]
        turned = torch.complex(a, b) * turn
        pairs = torch.stack((turned.real, turned.imag), -1)
        return torch.cat((pairs.flatten(-2) if interleaved else torch.cat(pairs.unbind(-1), -1), x[..., 8:]), -1)

    expected = torch.stack([turned(x[0], 3), turned(x[1], 20)])
    torch.testing.assert_close(rotary.apply_rotary_emb(x, cos, sin, interleaved, seqlen_offsets=starts), expected)
    cu = torch.tensor([0, 2, 10], dtype=torch.int32, device=device)
    flat = x.flatten(0, 1)
    found = rotary.apply_rotary_emb(flat, cos, sin, interleaved, seqlen_offsets=starts, cu_seqlens=cu)
    torch.testing.assert_close(found, torch.cat((turned(flat[:2], 3), turned(flat[2:], 20))))
    qkv = torch.stack((x, x, x), 2)
    found = rotary.apply_rotary_emb_qkv_(qkv, cos, sin, interleaved=interleaved)
    first = torch.stack([turned(row, 0) for row in x])
    torch.testing.assert_close(found, torch.stack((first, first, x), 2))
    joined = rotary.apply_rotary_emb_qkv_(torch.cat((x, x[:, :, :2]), 2), cos, sin, interleaved=interleaved, num_heads_q=3)
    torch.testing.assert_close(joined, torch.cat((first, first[:, :, :1], x[:, :, 1:2]), 2))
    place = x.clone()
    assert rotary.apply_rotary_emb(place, cos, sin, interleaved, inplace=True) is place
    torch.testing.assert_close(place, first)
    module = rotary.RotaryEmbedding(8, interleaved=interleaved, device=torch.device(device))
    q, kv = module(x, torch.stack((x, x), 2), seqlen_offset=2)
    torch.testing.assert_close(q, kv[:, :, 0])
    torch.testing.assert_close(module(qkv, seqlen_offset=2)[:, :, 1], q)
    with pytest.raises(ValueError, match="angles"):
        rotary.apply_rotary_emb(x[..., :4], cos, sin)
