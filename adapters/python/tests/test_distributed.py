"""Two processes by the engines that others wrote, on two GPUs or on the CPU: results as in one process."""

from __future__ import annotations

import importlib
import importlib.util
import multiprocessing
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import timedelta
from functools import cache
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from reference import assert_close
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn.attention import SDPBackend, sdpa_kernel

import ferroattn

aten = torch.ops.aten
# Seconds after which a call is given up.
PATIENCE = 300.0
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there are no two GPUs")),
]


class Pair:
    """Two processes of one group, which start with the first call and run a function each time they are asked."""

    def __init__(self, device: str, folder: Path) -> None:
        self._device = device
        self._folder = folder
        self._processes: list[Any] = []
        self._pipes: list[Connection] = []

    def run(self, function: Callable[..., None], *arguments: Any) -> None:
        """Runs a function of device, rank and the arguments in both, and fails where one fails."""
        if not self._processes:
            self._start()
        for pipe in self._pipes:
            pipe.send((function, arguments))
        deadline = time.monotonic() + PATIENCE
        waiting = list(self._pipes)
        while waiting:
            ready = wait(waiting, max(deadline - time.monotonic(), 0.0))
            if not ready:
                self._fail(f"{function.__name__}{arguments} took more than {PATIENCE} seconds")
            for pipe in ready:
                assert isinstance(pipe, Connection)
                try:
                    failure = pipe.recv()
                except EOFError:
                    failure = f"a process ended in {function.__name__}{arguments}"
                if failure is not None:
                    self._fail(failure)
                waiting.remove(pipe)

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(10.0)
            if process.is_alive():
                process.kill()
                process.join()
        self._processes, self._pipes = [], []

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        # A file that both open takes no port.
        store = Path(tempfile.mkdtemp(dir=self._folder)) / "store"
        for rank in range(2):
            ours, theirs = context.Pipe()
            process = context.Process(target=serve, args=(theirs, self._device, rank, store), daemon=True)
            process.start()
            theirs.close()
            self._processes.append(process)
            self._pipes.append(ours)

    def _fail(self, failure: str) -> None:
        # The other process may wait for the one that failed.
        for process in self._processes:
            process.kill()
        self.close()
        pytest.fail(failure, pytrace=False)


def serve(pipe: Connection, device: str, rank: int, store: Path) -> None:
    """Runs what comes through the pipe until it is closed."""
    # Both processes are on this host, whose name may mean no address.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    if device == "cuda":
        torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl" if device == "cuda" else "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=PATIENCE),
    )
    while True:
        try:
            function, arguments = pipe.recv()
        except EOFError:
            break
        try:
            function(device, rank, *arguments)
            pipe.send(None)
        except Exception:
            pipe.send(f"rank {rank}: {traceback.format_exc()}")
    dist.destroy_process_group()


@pytest.fixture(scope="module", params=DEVICES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    pair = Pair(request.param, tmp_path_factory.mktemp("pair"))
    yield pair
    pair.close()


@cache
def mesh_of(device: str) -> DeviceMesh:
    return init_device_mesh(device, (2,))


def dtype_of(device: str) -> torch.dtype:
    return torch.float32 if device == "cpu" else torch.bfloat16


def inputs_of(device: str, dtype: torch.dtype, *shapes: tuple[int, ...]) -> list[Tensor]:
    """Numbers that are equal in both processes."""
    torch.manual_seed(0)
    return [torch.randn(*shape).to(device, dtype) for shape in shapes]


def passes(function: Callable[..., Tensor], inputs: list[Tensor], d_o: Tensor) -> list[Tensor]:
    """o and the gradients of q, k and v."""
    inputs = [tensor.detach().requires_grad_() for tensor in inputs]
    o = function(*inputs)
    return [o, *torch.autograd.grad(o, inputs, d_o)]


def half(whole: Tensor, rank: int, axis: int) -> Tensor:
    """The rank's part of a sequence that is cut in the middle."""
    return whole.chunk(2, axis)[rank].contiguous()


def balanced(whole: Tensor, rank: int, axis: int) -> Tensor:
    """The rank's two quarters of a sequence, one from each end, with equal work under a causal mask."""
    quarters = whole.chunk(4, axis)
    return torch.cat((quarters[rank], quarters[3 - rank]), axis)


def backend_alone(device: str, backend: str) -> AbstractContextManager[Any]:
    """PyTorch's function with one back end; a stand-in on the CPU, where context_parallel has no rule for PyTorch's choice."""
    if device == "cuda":
        return sdpa_kernel(getattr(SDPBackend, backend))

    # context_parallel replaces a function by its name.
    def scaled_dot_product_attention(
        q: Tensor, k: Tensor, v: Tensor, attn_mask: None = None, dropout_p: float = 0.0, is_causal: bool = False,
        scale: float | None = None, enable_gqa: bool = False,
    ) -> Tensor:  # fmt: skip
        assert attn_mask is None
        if backend == "FLASH_ATTENTION":
            return aten._scaled_dot_product_flash_attention(q, k, v, dropout_p, is_causal, scale=scale)[0]
        if backend == "CUDNN_ATTENTION":
            return aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, dropout_p, is_causal, scale=scale)[0]
        return aten._scaled_dot_product_efficient_attention(q, k, v, None, True, dropout_p, is_causal, scale=scale)[0]

    return mock.patch.object(F, "scaled_dot_product_attention", scaled_dot_product_attention)


def by_context_parallel(device: str, rank: int, backend: str, kv_heads: int, rotate_method: str) -> None:
    from torch.distributed.tensor.experimental import context_parallel
    from torch.distributed.tensor.experimental._attention import set_rotate_method

    queries, keys = (2, 4, 256, 32), (2, kv_heads, 256, 32)
    whole = inputs_of(device, dtype_of(device), queries, keys, keys, queries)

    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=kv_heads != 4)

    expected = passes(lambda *inputs: ferroattn.attention(*inputs, causal=True, heads_first=True)[0], whole[:3], whole[3])
    set_rotate_method(rotate_method)
    parts = [tensor.clone() for tensor in whole]
    with (
        ferroattn.enable(device),
        backend_alone(device, backend),
        context_parallel(mesh_of(device), buffers=parts, buffer_seq_dims=[2] * 4, no_restore_buffers=set(parts)),
    ):
        found = passes(function, parts[:3], parts[3])
    assert_close(found, [balanced(tensor, rank, 2) for tensor in expected], whole[0].dtype)


@pytest.mark.parametrize("rotate_method", ["allgather", "alltoall"])
@pytest.mark.parametrize(
    ("backend", "kv_heads"),
    [
        ("FLASH_ATTENTION", 4),
        ("FLASH_ATTENTION", 2),
        ("CUDNN_ATTENTION", 4),
        ("CUDNN_ATTENTION", 2),
        # PyTorch chooses this operator for no grouped heads.
        ("EFFICIENT_ATTENTION", 4),
    ],
)
def test_context_parallel(pair: Pair, backend: str, kv_heads: int, rotate_method: str) -> None:
    pair.run(by_context_parallel, backend, kv_heads, rotate_method)


def ring_flash_attn() -> ModuleType:
    """The library over these kernels, without its adapters, which need an older transformers."""
    import ferroattn.flash_attn

    ferroattn.flash_attn.install(replace=True)
    adapters = ModuleType("ring_flash_attn.adapters")
    vars(adapters).update(substitute_hf_flash_attn=None, update_ring_flash_attn_params=None)
    sys.modules.setdefault(adapters.__name__, adapters)
    return importlib.import_module("ring_flash_attn")


def by_ring(device: str, rank: int, name: str, kv_heads: int, causal: bool) -> None:
    function = getattr(ring_flash_attn(), name)
    queries, keys = (2, 256, 4, 32), (2, 256, kv_heads, 32)
    # For float32, the library adds gradients up in buffers that it overwrites.
    whole = inputs_of(device, torch.bfloat16, queries, keys, keys, queries)
    expected = passes(lambda *inputs: ferroattn.flash_attn_func(*inputs, causal=causal), whole[:3], whole[3])
    cut = balanced if name.startswith("zigzag") else half
    *parts, d_o = (cut(tensor, rank, 1) for tensor in whole)
    found = passes(lambda *inputs: function(*inputs, causal=causal), parts, d_o)
    assert_close(found, [cut(tensor, rank, 1) for tensor in expected], torch.bfloat16)


def by_ring_packed(device: str, rank: int, name: str, heads_k_stride: int | None) -> None:
    library = ring_flash_attn()
    function = getattr(library, name)
    lengths = [96, 32, 128]
    offsets = torch.tensor([0, 96, 128, 256], dtype=torch.int32, device=device)
    queries, keys = (256, 4, 32), (256, 2, 32)
    whole = inputs_of(device, torch.bfloat16, queries, keys, keys, queries)
    expected = passes(
        lambda *inputs: ferroattn.flash_attn_varlen_func(*inputs, offsets, offsets, 128, 128, causal=True),
        whole[:3],
        whole[3],
    )
    if heads_k_stride is not None:
        of_queries, of_keys, longest_q, longest_k, keys_here = library.llama3_flash_attn_prepare_cu_seqlens(
            offsets, True, rank, 2
        )
        options: tuple[Any, ...] = (of_queries, of_keys, longest_q, longest_k, heads_k_stride, keys_here)
    else:
        options = (offsets // 2, 64)

    def cut(tensor: Tensor) -> Tensor:
        if heads_k_stride is not None:
            return half(tensor, rank, 0)
        of_one = balanced if name.startswith("zigzag") else half
        return torch.cat([of_one(sequence, rank, 0) for sequence in tensor.split(lengths)])

    *parts, d_o = (cut(tensor) for tensor in whole)
    found = passes(lambda *inputs: function(*inputs, *options, causal=True), parts, d_o)
    assert_close(found, [cut(tensor) for tensor in expected], torch.bfloat16)


needs_ring = pytest.mark.skipif(importlib.util.find_spec("ring_flash_attn") is None, reason="ring-flash-attn is not installed")


@needs_ring
@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize(
    ("name", "causal"),
    [("zigzag_ring_flash_attn_func", True), ("ring_flash_attn_func", True), ("ring_flash_attn_func", False)],
)
def test_ring_flash_attn(pair: Pair, name: str, kv_heads: int, causal: bool) -> None:
    pair.run(by_ring, name, kv_heads, causal)


@needs_ring
@pytest.mark.parametrize(
    ("name", "heads_k_stride"),
    [
        ("zigzag_ring_flash_attn_varlen_func", None),
        ("ring_flash_attn_varlen_func", None),
        ("llama3_flash_attn_varlen_func", 1),
        ("llama3_flash_attn_varlen_func", 2),
    ],
)
def test_ring_flash_attn_packed(pair: Pair, name: str, heads_k_stride: int | None) -> None:
    pair.run(by_ring_packed, name, heads_k_stride)


def llama(device: str) -> Any:
    import transformers

    import ferroattn.transformers

    config = transformers.LlamaConfig(
        vocab_size=99, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, use_cache=False, attn_implementation=ferroattn.transformers.NAME,
    )  # fmt: skip
    torch.manual_seed(1)
    model = transformers.LlamaForCausalLM(config)
    return model.to(device, dtype_of(device)).train()


def train(model: Any, ids: Tensor) -> tuple[list[Tensor], dict[str, Tensor]]:
    """Losses of some steps, and the gradients of the last."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        losses.append(loss.detach().float())
        optimizer.step()
    return losses, {name: weight.grad for name, weight in model.named_parameters()}


def by_fully_shard(device: str, rank: int, checkpointed: bool) -> None:
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    ids = torch.randint(0, 99, (4, 40)).to(device)
    losses, gradients = train(llama(device), ids)
    model = llama(device)
    if checkpointed:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh_of(device))
    fully_shard(model, mesh=mesh_of(device))
    found, parts = train(model, half(ids, rank, 0))
    assert losses[-1] < losses[0] - 0.1
    of_found = {name: part.full_tensor() for name, part in parts.items()}
    assert_training_close(found, of_found, losses, gradients)


def by_model_in_context_parallel(device: str, _rank: int) -> None:
    from torch.distributed.tensor.experimental import context_parallel

    torch.manual_seed(0)
    tokens = torch.randint(0, 99, (2, 65)).to(device)
    positions = torch.arange(64, device=device).expand(2, 64)
    parts = [tensor.clone() for tensor in (tokens[:, :-1], tokens[:, 1:], positions)]

    def passes_of(model: Any, ids: Tensor, labels: Tensor, positions: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        logits = model(input_ids=ids, position_ids=positions).logits
        loss = F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())
        loss.backward()
        return loss.detach(), {name: weight.grad for name, weight in model.named_parameters()}

    def without_mask(_layer: Any, arguments: Any, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return arguments, options | {"attention_mask": None}

    loss, gradients = passes_of(llama(device), *parts)
    model = llama(device)
    model.set_attn_implementation("sdpa")
    for layer in model.model.layers:
        # Positions that jump are packed sequences to the model, which masks them.
        layer.self_attn.register_forward_pre_hook(without_mask, with_kwargs=True)
    with (
        ferroattn.enable(device),
        backend_alone(device, "FLASH_ATTENTION"),
        context_parallel(mesh_of(device), buffers=parts, buffer_seq_dims=[1] * 3, no_restore_buffers=set(parts)),
    ):
        found, of_found = passes_of(model, *parts)
    for gradient in of_found.values():
        dist.all_reduce(gradient)
        gradient /= 2
    assert_training_close([found], of_found, [loss], gradients)


def assert_training_close(
    found: list[Tensor], of_found: dict[str, Tensor], losses: list[Tensor], gradients: dict[str, Tensor]
) -> None:
    """Compares means of both processes' losses, and gradients, with those of one process."""
    for loss in found:
        dist.all_reduce(loss)
    largest = max(gradient.abs().max() for gradient in gradients.values())
    rounding = 1e-5 if largest.dtype == torch.float32 else 3e-3
    assert [loss.item() / 2 for loss in found] == pytest.approx([loss.item() for loss in losses], rel=rounding)
    assert of_found.keys() == gradients.keys()
    for name, gradient in gradients.items():
        assert (of_found[name] - gradient).abs().max() <= 10 * rounding * largest, name


needs_transformers = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="transformers is not installed"
)


@needs_transformers
def test_model_in_context_parallel(pair: Pair) -> None:
    pair.run(by_model_in_context_parallel)


@needs_transformers
@pytest.mark.parametrize("checkpointed", [False, True])
def test_fully_shard(pair: Pair, checkpointed: bool) -> None:
    pair.run(by_fully_shard, checkpointed)
