"""The operators as PyTorch's other parts use them: checks, compiled programs, streams, graphs, threads, saved tensors."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import pytest
import torch
from reference import assert_close, attention, gradients
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import ferroattn
from ferroattn import operators

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no GPU")


def inputs_on(device: str, rows: int = 33, heads_first: bool = False, wanted: bool = False) -> list[Tensor]:
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    shapes = [(2, rows, 4, 32), (2, rows, 2, 32), (2, rows, 2, 32)]
    tensors = [torch.randn(*shape, device=device).to(dtype) for shape in shapes]
    if heads_first:
        tensors = [tensor.transpose(1, 2) for tensor in tensors]
    return [tensor.requires_grad_(wanted) for tensor in tensors]


def arguments(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None, sinks: Tensor | None = None,
    cu: Tensor | None = None, heads_first: bool = False,
) -> tuple[Any, ...]:  # fmt: skip
    """Arguments of the operator `forward`."""
    tensors = (q, k, v, bias, None, sinks, None, cu, cu, None, None, None, None, None, None)
    return (*tensors, None, None, True, -1, -1, 0.0, 0, 0, True, False, 0, heads_first)


def test_checks_of_pytorch(device: str) -> None:
    cu = torch.tensor([0, 3, 3, 33], dtype=torch.int32, device=device)
    bias = torch.randn(1, 4, 33, 33, device=device).to(inputs_on(device)[0].dtype).requires_grad_()
    sinks = torch.randn(4, device=device, requires_grad=True)
    packed = [tensor[0].detach().requires_grad_() for tensor in inputs_on(device)]
    for call in [
        arguments(*inputs_on(device, wanted=True)),
        arguments(*inputs_on(device, wanted=True), bias=bias, sinks=sinks),
        arguments(*inputs_on(device, heads_first=True, wanted=True), heads_first=True),
        arguments(*packed, cu=cu),
    ]:
        torch.library.opcheck(operators.forward, call)
    q, k, v, *options = arguments(*inputs_on(device), bias=bias.detach(), sinks=sinks.detach())
    o, lse = operators.forward(q, k, v, *options)
    passed = (torch.randn_like(o), torch.randn_like(lse), q, k, v, o, lse, True, True, *options)
    torch.library.opcheck(operators.backward, passed)
    given = [torch.empty_like(tensor) for tensor in (q, k, v)]
    torch.library.opcheck(operators.backward_into, (*given, *passed))


@pytest.mark.parametrize("heads_first", [False, True])
def test_checks_of_appending(device: str, heads_first: bool) -> None:
    q, k, v = inputs_on(device, 2, heads_first)
    caches = inputs_on(device, 9, heads_first)[1:]
    lengths = torch.tensor([7, 0], dtype=torch.int32, device=device)
    angles = torch.rand(9, 8, device=device)
    for of_q, cos in ((q, angles), (None, None)):
        call = (k, v, *caches, of_q, lengths, None, None, None, None, cos, cos, None, None, False, False, False, heads_first)
        torch.library.opcheck(operators.append, call)
    packed = (k[0], v[0], *caches, q[0], None, None, None, torch.arange(k.shape[1], device=device)[:2], None, angles, angles)
    packed = (*packed, None, None, False)
    if not heads_first:
        torch.library.opcheck(operators.append, (*packed, True, True, False))


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled(device: str, dynamic: bool) -> None:
    torch._dynamo.reset()

    def program(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        o = ferroattn.flash_attn_func(q * 2, k, v, causal=True, window_size=(20, 0), bias=bias)
        return o.sin() + ferroattn.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True, enable_gqa=True
        ).transpose(1, 2)

    compiled = torch.compile(program, fullgraph=True, dynamic=dynamic)
    for rows in (33, 40, 57):
        inputs = inputs_on(device, rows, wanted=True)
        inputs.append(torch.randn(1, 4, rows, rows, device=device).to(inputs[0].dtype).requires_grad_())
        found, expected = compiled(*inputs), program(*inputs)
        d_o = torch.randn_like(expected)
        a = [found, *torch.autograd.grad(found, inputs, d_o)]
        b = [expected, *torch.autograd.grad(expected, inputs, d_o)]
        assert_close(a, b, inputs[0].dtype)


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_steps(device: str, dynamic: bool) -> None:
    """A step of decoding in a compiled program writes the caches, contiguous and in pages, and packed queries see pages."""
    torch._dynamo.reset()
    table = torch.tensor([[3, 0, 5], [1, 4, 2]], dtype=torch.int32, device=device)
    angles = torch.rand(48, 8, device=device)

    def program(q: Tensor, k: Tensor, v: Tensor, caches: list[Tensor], lengths: Tensor) -> list[Tensor]:
        options: dict[str, Any] = {"rotary_cos": angles.cos(), "rotary_sin": angles.sin(), "causal": True}
        o = ferroattn.flash_attn_with_kvcache(q * 2, *caches[:2], k, v, cache_seqlens=lengths, **options)
        options["block_table"] = table
        of_pages = ferroattn.flash_attn_with_kvcache(q, *caches[2:], k, v, cache_seqlens=3, **options)
        rows = q.shape[0] * q.shape[1]
        cu = torch.tensor([0, rows - 1, rows], dtype=torch.int32, device=device)
        packed = ferroattn.flash_attn_varlen_func(q.flatten(0, 1), *caches[2:], cu, 3 * cu, rows - 1, 48, block_table=table)
        return [o.sin(), of_pages, packed]

    compiled = torch.compile(program, fullgraph=True, dynamic=dynamic)
    for rows in (2, 3, 5):
        inputs = inputs_on(device, rows, wanted=True)
        caches = [torch.randn(*shape, 2, 32, device=device).to(inputs[0].dtype) for shape in [(2, 48)] * 2 + [(6, 16)] * 2]
        lengths = torch.tensor([40, 0], dtype=torch.int32, device=device)
        copies = [cache.clone() for cache in caches]
        found, expected = compiled(*inputs, caches, lengths), program(*inputs, copies, lengths)
        assert_close(found, expected, inputs[0].dtype)
        assert_close(caches, copies, inputs[0].dtype)


def test_saved_tensors_elsewhere(device: str) -> None:
    """Activation checkpoints, and saved tensors on the CPU."""
    inputs = inputs_on(device, wanted=True)

    def loss(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return ferroattn.flash_attn_func(q, k, v, causal=True, deterministic=True).square().sum()

    expected = torch.autograd.grad(loss(*inputs), inputs)
    found = torch.autograd.grad(checkpoint(loss, *inputs, use_reentrant=False), inputs)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    with torch.autograd.graph.save_on_cpu():
        value = loss(*inputs)
    found = torch.autograd.grad(value, inputs)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_inputs_changed_before_the_gradient(device: str) -> None:
    q, k, v = inputs_on(device, wanted=True)
    leaf = q.detach().requires_grad_()
    scaled = leaf * 1
    o = ferroattn.flash_attn_func(scaled, k, v)
    scaled.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        o.sum().backward()


def test_threads(device: str) -> None:
    inputs = inputs_on(device)
    d_o = torch.randn_like(inputs[0])
    expected = gradients(ferroattn.attention, inputs, d_o, causal=True)
    failed = []

    def work() -> None:
        if device != "cpu":
            torch.cuda.set_device(device)
        stream = torch.cuda.Stream(device) if device != "cpu" else None
        with torch.cuda.stream(stream):
            for _ in range(20):
                found = gradients(ferroattn.attention, inputs, d_o, causal=True)
                if not all(torch.equal(a, b) for a, b in zip(found, expected, strict=True)):
                    failed.append(threading.current_thread().name)

    if device != "cpu":
        torch.cuda.synchronize(device)
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_nothing_is_leaked() -> None:
    """Memory of a process whose calls use every kind of argument, and fail."""
    program = """
import resource, torch, ferroattn
q = torch.randn(1, 4, 2, 8)
length, slots = torch.zeros(1, dtype=torch.int32), torch.arange(4)[None]
def call():
    ferroattn.append(q, q, q.clone(), q.clone(), q=q, lengths=length, slots=slots, cos=q[0, :, 0, :4], sin=q[0, :, 1, :4])
    o, lse = ferroattn.attention(q, q, q, sinks=torch.zeros(2), bias=torch.zeros(1, 1, 1, 4), causal=True)
    for keys, pages in ((q[:, :3], None), (q, slots.int())):
        try:
            ferroattn.append(q, keys, q, q, slots=slots, pages=pages)
            raise SystemExit("it was allowed")
        except ValueError:
            pass
    try:
        ferroattn.attention(q, q[:, :3], q)
    except ValueError:
        pass
for _ in range(3000): call()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for _ in range(30000): call()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    grown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert int(grown) < 2000, "kB"


@on_gpu
def test_streams() -> None:
    """Work of another stream is waited for as the program says, and no more."""
    inputs = inputs_on("cuda", rows=2000)
    expected = ferroattn.flash_attn_func(*inputs, causal=True)
    side = torch.cuda.Stream()
    ready = [torch.zeros_like(tensor) for tensor in inputs]
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)
        for place, tensor in zip(ready, inputs, strict=True):
            place.copy_(tensor)
        found = ferroattn.flash_attn_func(*ready, causal=True)
    torch.cuda.current_stream().wait_stream(side)
    assert torch.equal(found, expected)


@on_gpu
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"window": (100, 0), "softcap": 5.0}])
def test_graphs(options: dict[str, Any]) -> None:
    """Both passes are captured, and replayed with other contents."""
    inputs = inputs_on("cuda", rows=700, wanted=True)
    d_o = torch.randn_like(inputs[0])

    def step() -> list[Tensor]:
        o, lse = ferroattn.attention(*inputs, **options)
        return [o, lse, *torch.autograd.grad(o, inputs, d_o)]

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step()
    for _ in range(3):
        with torch.no_grad():
            for tensor in (*inputs, d_o):
                tensor.copy_(torch.randn_like(tensor))
        graph.replay()
        assert all(torch.equal(a, b) for a, b in zip(found, step(), strict=True))


@on_gpu
def test_memory_is_that_of_pytorch() -> None:
    """Outputs and workspace come from PyTorch's allocator, and go back to it."""
    inputs = inputs_on("cuda", rows=4096, wanted=True)
    gradients(ferroattn.attention, inputs, torch.randn_like(inputs[0]))
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    free, before = torch.cuda.mem_get_info()[0], torch.cuda.memory_reserved()
    gradients(ferroattn.attention, inputs, torch.randn_like(inputs[0]))
    torch.cuda.synchronize()
    taken = free - torch.cuda.mem_get_info()[0]
    assert taken <= torch.cuda.memory_reserved() - before + (4 << 20)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="PyTorch finds no second GPU")
def test_device_of_the_tensors() -> None:
    """The current device may be another than the tensors'."""
    inputs = inputs_on("cuda:1")
    with torch.cuda.device(0):
        o, _lse = ferroattn.attention(*inputs, causal=True)
    assert o.device == inputs[0].device
    assert_close([o], [attention(*inputs, causal=True)[0]], o.dtype)
