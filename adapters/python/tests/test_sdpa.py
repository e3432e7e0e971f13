"""PyTorch's `scaled_dot_product_attention`: the function, and PyTorch's own over these kernels, against its MATH back end."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from reference import assert_close
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

import ferroattn

aten = torch.ops.aten
SHAPES = [(32, 32), (33, 33), (7, 3), (3, 70), (1, 9)]
# Which mask, and which other arguments.
CASES: list[tuple[str | None, dict[str, Any]]] = [
    (None, {}),
    (None, {"is_causal": True}),
    (None, {"scale": 0.3}),
    ("bool rows", {}),
    ("bool keys", {}),
    ("bool empty", {}),
    ("number rows", {}),
    ("number keys", {}),
    ("number expanded", {}),
]


def mask_of(kind: str | None, rows: int, columns: int, like: Tensor) -> Tensor | None:
    def seen(*shape: int) -> Tensor:
        mask = torch.rand(*shape, device=like.device) < 0.6
        mask[..., 0] = True
        return mask

    def numbers(*shape: int) -> Tensor:
        return torch.randn(*shape, device=like.device).to(like.dtype).requires_grad_()

    match kind:
        case "bool rows":
            return seen(rows, columns)
        case "bool keys":
            return seen(2, 1, 1, columns)
        case "bool empty":
            mask = seen(2, 1, rows, columns)
            mask[:, :, ::2] = False
            return mask
        case "number rows":
            return numbers(2, 1, rows, columns)
        case "number keys":
            return numbers(1, columns)
        case "number expanded":
            return numbers(1, 4, 1, columns)
    return None


def passes(function: Any, inputs: list[Tensor], mask: Tensor | None, d_o: Tensor, **options: Any) -> list[Tensor]:
    wanted = [*inputs, mask] if mask is not None and mask.requires_grad else inputs
    o = function(*inputs, mask, **options)
    return [o, *torch.autograd.grad(o, wanted, d_o)]


def math(*arguments: Any, **options: Any) -> Tensor:
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(*arguments, **options)


def enabled(*arguments: Any, **options: Any) -> Tensor:
    return F.scaled_dot_product_attention(*arguments, **options)


def inputs_of(device: str, rows: int, columns: int, kv_heads: int = 4) -> list[Tensor]:
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    shapes = [(2, rows, 4, 32), (2, columns, kv_heads, 32), (2, columns, kv_heads, 32)]
    return [torch.randn(*shape, device=device).to(dtype).transpose(1, 2).requires_grad_() for shape in shapes]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_against_math(device: str, shape: tuple[int, int], case: tuple[str | None, dict[str, Any]]) -> None:
    (kind, options), (rows, columns) = case, shape
    torch.manual_seed(rows)
    inputs = inputs_of(device, rows, columns)
    mask = mask_of(kind, rows, columns, inputs[0])
    d_o = torch.randn(inputs[0].shape, device=device).to(inputs[0].dtype)
    exact = [tensor.detach().double().requires_grad_() for tensor in inputs]
    of_mask = mask.detach().double().requires_grad_() if mask is not None and mask.requires_grad else mask
    expected = [tensor.nan_to_num(0.0) for tensor in passes(math, exact, of_mask, d_o.double(), **options)]
    found = passes(ferroattn.scaled_dot_product_attention, inputs, mask, d_o, **options)
    assert_close(found, expected, inputs[0].dtype)
    # PyTorch's own operator of the CPU has no gradient of a mask.
    if device == "cpu" and mask is not None:
        mask = mask.detach()
        expected = expected[:4]
    with ferroattn.enable(device.split(":")[0]):
        found = passes(enabled, inputs, mask, d_o, **options)
    assert_close(found, expected, inputs[0].dtype)


def flash(q: Tensor, k: Tensor, v: Tensor, _mask: None, causal: bool) -> Tensor:
    return aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal, scale=0.3)[0]


def cudnn(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
    return aten._scaled_dot_product_cudnn_attention(q, k, v, mask, True, 0.0, causal, scale=0.3)[0]


def efficient(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
    return aten._scaled_dot_product_efficient_attention(q, k, v, mask, True, 0.0, causal, scale=0.3)[0]


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("operator", [flash, cudnn, efficient])
def test_operators_of_gpus(device: str, operator: Any, compiled: bool) -> None:
    """Operators that PyTorch chooses among on a GPU, with arguments that it has of each, on every device."""
    torch._dynamo.reset()
    calls = [(32, 32, None, False), (33, 33, None, True)]
    if operator is not flash:
        calls += [(7, 3, None, True), (3, 70, None, True), (33, 40, "number rows", False), (33, 40, "number keys", False)]
    for rows, columns, kind, causal in calls[1::2] if compiled else calls:
        inputs = inputs_of(device, rows, columns)
        mask = mask_of(kind, rows, columns, inputs[0])
        if mask is not None and operator is cudnn:
            mask = mask.detach()

        def program(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
            if mask is not None:
                mask = mask.expand(*q.shape[:3], k.shape[2])
            return operator(q, k, v, mask, causal)

        d_o = torch.randn(inputs[0].shape, device=device).to(inputs[0].dtype)
        exact = [tensor.detach().double().requires_grad_() for tensor in inputs]
        of_mask = mask.detach().double().requires_grad_(mask.requires_grad) if mask is not None else None
        expected = passes(math, exact, of_mask, d_o.double(), is_causal=causal, scale=0.3)
        function = torch.compile(program, fullgraph=True) if compiled else program
        with ferroattn.enable(device.split(":")[0]):
            found = passes(function, inputs, mask, d_o, causal=causal)
        assert_close(found, expected, inputs[0].dtype, (rows, columns, kind, causal))


def test_grouped_heads(device: str) -> None:
    inputs = inputs_of(device, 20, 20, kv_heads=2)
    d_o = torch.randn(inputs[0].shape, device=device).to(inputs[0].dtype)
    exact = [tensor.detach().double().requires_grad_() for tensor in inputs]
    expected = passes(math, exact, None, d_o.double(), enable_gqa=True)
    for function in (ferroattn.scaled_dot_product_attention, enabled):
        with ferroattn.enable(device.split(":")[0]):
            assert_close(passes(function, inputs, None, d_o, enable_gqa=True), expected, inputs[0].dtype)
    with pytest.raises(ValueError, match="enable_gqa"):
        ferroattn.scaled_dot_product_attention(*inputs)


def test_fewer_axes(device: str) -> None:
    inputs = [tensor.detach()[0] for tensor in inputs_of(device, 9, 12)]
    mask = torch.rand(9, 12, device=device) < 0.7
    for rank in (3, 2):
        found = ferroattn.scaled_dot_product_attention(*(tensor[(0,) * (3 - rank)] for tensor in inputs), mask)
        exact = [tensor[(0,) * (3 - rank)].double() for tensor in inputs]
        assert_close([found], [math(*exact, mask).nan_to_num(0.0)], inputs[0].dtype)


def test_what_is_not_served_is_pytorchs(device: str) -> None:
    inputs = [tensor.detach() for tensor in inputs_of(device, 64, 64)]
    doubles = [tensor.double() for tensor in inputs]
    with ferroattn.enable(device.split(":")[0]):
        torch.manual_seed(3)
        dropped = F.scaled_dot_product_attention(*inputs, dropout_p=0.5)
        torch.manual_seed(3)
        assert torch.equal(dropped, ferroattn.scaled_dot_product_attention(*inputs, dropout_p=0.5))
        exact = F.scaled_dot_product_attention(*doubles)
    assert (dropped - exact).abs().max() > 0.1
    assert_close([exact], [math(*doubles)], torch.float32)


def test_large_heads(device: str) -> None:
    """Gradients above head dim 256 are PyTorch's on a GPU."""
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    inputs = [torch.randn(1, 2, 20, 320, device=device).to(dtype).requires_grad_() for _ in range(3)]
    d_o = torch.randn_like(inputs[0])
    exact = [tensor.detach().double().requires_grad_() for tensor in inputs]
    expected = passes(math, exact, None, d_o.double())
    with ferroattn.enable(device.split(":")[0]):
        assert_close(passes(enabled, inputs, None, d_o), expected, dtype)
    assert_close(passes(ferroattn.scaled_dot_product_attention, inputs, None, d_o), expected, dtype)
    with torch.no_grad():
        found = ferroattn.scaled_dot_product_attention(*inputs)
    assert_close([found], expected[:1], dtype)


def test_autocast(device: str) -> None:
    inputs = [tensor.detach().float() for tensor in inputs_of(device, 16, 16)]
    with torch.autocast(device.split(":")[0], torch.bfloat16):
        found = ferroattn.scaled_dot_product_attention(*inputs)
    assert found.dtype == torch.bfloat16
    assert_close([found], [math(*(tensor.double() for tensor in inputs))], torch.bfloat16)


def test_undone(device: str) -> None:
    """The kernels are PyTorch's own, bit for bit, before, after and beside."""
    inputs = [tensor.detach() for tensor in inputs_of(device, 200, 200)]
    kind = device.split(":")[0]

    def run() -> Tensor:
        return F.scaled_dot_product_attention(*inputs)

    before = run()
    with ferroattn.enable(kind):
        inside = run()
        with ferroattn.enable(kind):
            pass
        assert torch.equal(inside, run())
    assert torch.equal(before, run())
    assert not torch.equal(before, inside)
    ferroattn.enable(kind)
    assert torch.equal(inside, run())
    ferroattn.disable(kind)
    ferroattn.disable(kind)
    assert torch.equal(before, run())
    with pytest.raises(ValueError, match="tpu"):
        ferroattn.enable("tpu")


def test_enable_warns_of_nothing() -> None:
    program = "import ferroattn; ferroattn.enable(('cpu', 'cuda')); ferroattn.disable(('cpu', 'cuda'))"
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
