"""Attention's functions on tensors of PyTorch, outputs and gradients."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
import torch
from reference import assert_close, attention, gradients
from torch import Tensor

import ferroattn
from ferroattn import operators


def types_of(device: str) -> list[torch.dtype]:
    return [torch.float32, torch.bfloat16] if device == "cpu" else [torch.float16, torch.bfloat16]


def drawn(rng: random.Random, device: str, dtype: torch.dtype) -> tuple[list[Tensor], dict[str, Any]]:
    """Inputs and options of a random call."""
    batch, kv_heads, group = rng.randint(1, 3), rng.randint(1, 2), rng.choice([1, 2, 3])
    heads = kv_heads * group
    rows, columns = rng.choice([1, 2, 33, 64, 100]), rng.choice([1, 3, 32, 65, 130])
    dim, dim_v = rng.choice([(8, 8), (16, 24), (33, 33), (59, 59), (64, 64), (72, 40), (128, 128)])

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, device=device).to(dtype)

    inputs = [normal(batch, rows, heads, dim), normal(batch, columns, kv_heads, dim), normal(batch, columns, kv_heads, dim_v)]
    options: dict[str, Any] = {}
    if rng.random() < 0.5:
        options["causal"] = True
    if rng.random() < 0.3:
        options["window"] = (rng.choice([-1, 0, 5, 40]), rng.choice([-1, 0, 7]))
    if rng.random() < 0.2:
        options["softcap"] = 3.0
    if rng.random() < 0.2:
        options["scale"] = rng.choice([0.05, 0.3])
    if rng.random() < 0.2:
        shape = rng.choice([(heads,), (batch, heads)])
        options["alibi_slopes"] = torch.rand(*shape, device=device)
    if rng.random() < 0.2:
        options["sinks"] = torch.randn(heads, device=device)
    pairs = (rng.choice([1, batch]), rng.choice([1, heads]), rng.choice([1, rows]), columns)
    if rng.random() < 0.3:
        options["bias"] = normal(*pairs)
    elif rng.random() < 0.3:
        options["mask"] = torch.rand(*pairs, device=device) < 0.7
    if rng.random() < 0.2:
        for name, most in (("seqlens_q", rows), ("seqlens_k", columns)):
            lengths = [rng.randint(0, most) for _ in range(batch)]
            options[name] = torch.tensor(lengths, dtype=torch.int32, device=device)
    if rng.random() < 0.2:
        firsts = [rng.randint(0, columns) for _ in range(batch)]
        options["first_keys"] = torch.tensor(firsts, dtype=torch.int32, device=device)
    return inputs, options


@pytest.mark.parametrize("seed", range(60))
def test_random_options(device: str, seed: int) -> None:
    rng = random.Random(seed)
    torch.manual_seed(seed)
    dtype = types_of(device)[seed % 2]
    inputs, options = drawn(rng, device, dtype)
    q, _k, v = inputs
    d_o = torch.randn(*q.shape[:3], v.shape[3], device=device).to(dtype)
    d_lse = torch.randn(q.shape[0], q.shape[2], q.shape[1], device=device) if rng.random() < 0.3 else None
    expected = gradients(attention, inputs, d_o, d_lse, **options)
    found = gradients(ferroattn.attention, inputs, d_o, d_lse, **options)
    what = [tuple(tensor.shape) for tensor in inputs], {name: getattr(x, "shape", x) for name, x in options.items()}
    assert_close(found, expected, dtype, what)
    heads_first = [tensor.transpose(1, 2) for tensor in inputs]
    found = gradients(ferroattn.attention, heads_first, d_o.transpose(1, 2), d_lse, heads_first=True, **options)
    for index in (0, 2, 3, 4):
        found[index] = found[index].transpose(1, 2)
    assert_close(found, expected, dtype, what)


def offsets(lengths: list[int], device: str) -> Tensor:
    return torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32, device=device)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("lengths", [([5], [5]), ([0, 7, 40, 1], [3, 7, 65, 0]), ([100, 1, 1, 33], [100, 9, 1, 20])])
def test_packed_sequences_are_apart(device: str, lengths: tuple[list[int], list[int]], causal: bool) -> None:
    dtype = types_of(device)[1]
    torch.manual_seed(1)
    q = torch.randn(sum(lengths[0]), 4, 64, device=device).to(dtype)
    k, v = (torch.randn(sum(lengths[1]), 2, 64, device=device).to(dtype) for _ in range(2))
    cu_q, cu_k = offsets(lengths[0], device), offsets(lengths[1], device)
    slopes = torch.rand(len(lengths[0]), 4, device=device)

    def packed(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        o, lse, none = ferroattn.flash_attn_varlen_func(
            q, k, v, cu_q, cu_k, max(lengths[0]), max(lengths[1]), causal=causal, window_size=(20, -1), softcap=4.0,
            alibi_slopes=slopes, return_attn_probs=True,
        )  # fmt: skip
        assert none is None
        return o, lse

    def apart(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        parts = zip(q.split(lengths[0]), k.split(lengths[1]), v.split(lengths[1]), slopes, strict=True)
        results = [
            attention(*(x.unsqueeze(0) for x in (q, k, v)), causal=causal, window=(20, -1), softcap=4.0, alibi_slopes=s)
            for q, k, v, s in parts
        ]
        return torch.cat([o[0] for o, _ in results]), torch.cat([lse[0] for _, lse in results], 1)

    d_o = torch.randn_like(q)
    assert_close(gradients(packed, [q, k, v], d_o), gradients(apart, [q, k, v], d_o), dtype)


def test_packed_tensors(device: str) -> None:
    """Queries, keys and values in one tensor, which has the gradient."""
    dtype = types_of(device)[1]
    qkv = torch.randn(2, 37, 3, 4, 32, device=device).to(dtype)
    d_o = torch.randn(2, 37, 4, 32, device=device).to(dtype)
    cu = offsets([37, 37], device)

    def plain(qkv: Tensor) -> tuple[Tensor, Tensor]:
        return attention(*qkv.unbind(2), causal=True)

    def of(function: Any) -> list[Tensor]:
        return gradients(lambda *inputs: function(*inputs)[:2], [qkv], d_o)

    expected = gradients(plain, [qkv], d_o)
    assert_close(of(lambda x: ferroattn.flash_attn_qkvpacked_func(x, causal=True, return_attn_probs=True)), expected, dtype)
    kv = lambda x: ferroattn.flash_attn_kvpacked_func(x[:, :, 0], x[:, :, 1:], causal=True, return_attn_probs=True)  # noqa: E731
    assert_close(of(kv), expected, dtype)

    def varlen(x: Tensor) -> tuple[Tensor, Tensor]:
        o = ferroattn.flash_attn_varlen_qkvpacked_func(x.flatten(0, 1), cu, 37, causal=True)
        return o.unflatten(0, (2, 37)), expected[1]

    def varlen_kv(x: Tensor) -> tuple[Tensor, Tensor]:
        x = x.flatten(0, 1)
        o = ferroattn.flash_attn_varlen_kvpacked_func(x[:, 0], x[:, 1:], cu, cu, 37, 37, causal=True)
        return o.unflatten(0, (2, 37)), expected[1]

    assert_close(of(varlen), expected, dtype)
    assert_close(of(varlen_kv), expected, dtype)


def test_caches(device: str) -> None:
    dtype = types_of(device)[1]
    q = torch.randn(3, 2, 4, 64, device=device).to(dtype)
    k, v = (torch.randn(5, 200, 2, 64, device=device).to(dtype) for _ in range(2))
    entries = torch.tensor([4, 0, 2], dtype=torch.int32, device=device)
    lengths = torch.tensor([200, 1, 77], dtype=torch.int32, device=device)
    rows = torch.full((3,), 2, dtype=torch.int32, device=device)
    firsts = torch.tensor([10, 0, 70], dtype=torch.int32, device=device)
    # Nothing reads the others.
    k[1] = v[3] = torch.nan

    def cached(**options: Any) -> list[Tensor]:
        return list(ferroattn.flash_attn_with_kvcache(q, k, v, cache_batch_idx=entries, return_softmax_lse=True, **options))

    kept = [k[entries.long()], v[entries.long()]]
    assert_close(cached(), list(attention(q, *kept)), dtype)
    assert_close(cached(causal=True, num_splits=3), list(attention(q, *kept, causal=True)), dtype)
    found = cached(causal=True, cache_seqlens=lengths)
    assert_close(found, list(attention(q, *kept, causal=True, seqlens_q=rows, seqlens_k=lengths)), dtype)
    found = cached(cache_seqlens=90, cache_leftpad=firsts, window_size=(50, 0))
    lengths.fill_(90)
    expected = attention(q, *kept, seqlens_q=rows, seqlens_k=lengths, first_keys=firsts, window=(50, 0))
    assert_close(found, list(expected), dtype)
    assert not found[0].requires_grad


def test_strides_and_values_beside(device: str) -> None:
    """Views of larger tensors, whose other elements are NaN, and a gradient without strides."""
    dtype = types_of(device)[1]
    whole = torch.full((2, 50, 6, 80), torch.nan, device=device, dtype=dtype)
    views = [whole[:, 3:40, :4, 8:72], whole[:, 5:42, 4:6, 8:72], whole[:, 7:44, 4:6, 16:80]]
    inputs = [torch.randn(view.shape, device=device).to(dtype) for view in views]
    for view, values in zip(views[:1] + views[2:], inputs[:1] + inputs[2:], strict=True):
        view.copy_(values)
    k = torch.full((2, 2, 64, 50), torch.nan, device=device, dtype=dtype)[..., 3:40].permute(0, 3, 1, 2).copy_(inputs[1])
    assert k.stride(-1) != 1
    strided = [views[0].requires_grad_(), k.requires_grad_(), views[2].clone().requires_grad_()]
    o, _lse = ferroattn.attention(*strided)
    o.sum().backward()
    expected = gradients(attention, inputs, torch.ones_like(o))
    assert_close([o, *(x.grad for x in strided)], [expected[0], *expected[2:]], dtype)


def test_windows_may_be_tensors(device: str) -> None:
    dtype = types_of(device)[1]
    inputs = [torch.randn(1, 40, 2, 32, device=device).to(dtype) for _ in range(3)]
    window = torch.tensor([5, 2])
    found = ferroattn.flash_attn_func(*inputs, window_size=window)
    assert_close([found], [attention(*inputs, window=(5, 2))[0]], dtype)
    assert not found.requires_grad


@pytest.mark.parametrize("shapes", [[(0, 5), (0, 5)], [(2, 0), (2, 5)], [(2, 5), (2, 0)]])
def test_empty(device: str, shapes: list[tuple[int, int]]) -> None:
    dtype = types_of(device)[1]
    (batch, rows), (_, columns) = shapes
    q = torch.randn(batch, rows, 2, 16, device=device).to(dtype)
    k, v = (torch.randn(batch, columns, 2, 16, device=device).to(dtype) for _ in range(2))
    d_o = torch.randn_like(q)
    assert_close(gradients(ferroattn.attention, [q, k, v], d_o), gradients(attention, [q, k, v], d_o), dtype)


def test_a_failed_call_leaves_nothing_to_the_next(device: str) -> None:
    """Tensors of options go to their own call alone."""
    dtype = types_of(device)[1]
    q, k, v = (torch.randn(1, 40, 2, 32, device=device).to(dtype) for _ in range(3))
    slopes = torch.rand(2, device=device)
    for wrong in (lambda: ferroattn.flash_attn_func(q, None, v, alibi_slopes=slopes), lambda: operators._carry(*[slopes] * 4)):
        try:
            wrong()
        except (RuntimeError, TypeError, ValueError):
            pass
        found = ferroattn.flash_attn_func(q, k, v, return_attn_probs=True)[:2]
        assert_close(list(found), list(attention(q, k, v)), dtype)


def test_deterministic(device: str) -> None:
    dtype = types_of(device)[1]
    inputs = [torch.randn(2, 300, 4, 64, device=device).to(dtype) for _ in range(3)]
    d_o = torch.randn_like(inputs[0])
    first, second = (gradients(ferroattn.attention, inputs, d_o, causal=True) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("split_keys", [0, 64])
def test_batch_invariant(device: str, split_keys: int) -> None:
    """Results of a query in any chunk of its sequence, and with its gradients beside any neighbours."""
    dtype = types_of(device)[1]
    torch.manual_seed(2)
    inputs = [torch.randn(3, 150, heads, 64, device=device).to(dtype) for heads in (4, 2, 2)]
    d_o = torch.randn_like(inputs[0])
    options: dict[str, Any] = {"causal": True, "window": (100, -1), "batch_invariant": True}
    of_splits = options | {"split_keys": split_keys}
    q, k, v = inputs
    o, lse = ferroattn.attention(*inputs, **of_splits)
    for first, end in itertools.pairwise([0, 1, 40, 64, 150]):
        chunk = ferroattn.attention(q[:, first:end], k[:, :end], v[:, :end], **of_splits)
        assert torch.equal(chunk[0], o[:, first:end]) and torch.equal(chunk[1], lse[:, :, first:end])

    lengths = [150, 7, 90]
    seqlens = torch.tensor(lengths, dtype=torch.int32, device=device)
    for attend in (ferroattn.attention, ferroattn.functions.output):
        given = of_splits if attend is ferroattn.attention else options
        padded = gradients(attend, inputs, d_o, seqlens_q=seqlens, seqlens_k=seqlens, **given)
        for entry, length in enumerate(lengths):
            rows = (slice(entry, entry + 1), slice(length))
            alone = gradients(attend, [tensor[rows] for tensor in inputs], d_o[rows], **given)
            beside = [x[entry : entry + 1, :, :length] if i == 1 else x[rows] for i, x in enumerate(padded)]
            assert all(torch.equal(a, b) for a, b in zip(alone, beside, strict=True))


def test_batch_invariant_of_flash_attention(device: str) -> None:
    """Steps by FlashAttention's functions, on pages too, and packed sequences beside others."""
    dtype = types_of(device)[1]
    q, k, v = (torch.randn(1, 64, heads, 32, device=device).to(dtype) for heads in (4, 2, 2))
    options: dict[str, Any] = {"causal": True, "batch_invariant": True}
    whole = ferroattn.flash_attn_func(q, k, v, **options)
    step = ferroattn.flash_attn_func(q[:, -1:], k, v, **options)
    assert torch.equal(step, whole[:, -1:])
    table = torch.arange(4, dtype=torch.int32, device=device)[None]
    for of_pages in ({}, {"block_table": table}):
        caches = [x.reshape(4, 16, 2, 32) if of_pages else x for x in (k, v)]
        whole, step = (
            ferroattn.flash_attn_with_kvcache(rows, *caches, cache_seqlens=64, **of_pages, **options) for rows in (q, q[:, -1:])
        )
        assert torch.equal(step, whole[:, -1:])

    neighbours = torch.cat([q[0, :20], q[0]]), torch.cat([k[0, 7:27], k[0]]), torch.cat([v[0, 7:27], v[0]])
    alone = ferroattn.flash_attn_varlen_func(q[0], k[0], v[0], *[offsets([64], device)] * 2, 64, 64, **options)
    beside = ferroattn.flash_attn_varlen_func(*neighbours, *[offsets([20, 64], device)] * 2, 64, 64, **options)
    assert torch.equal(beside[20:], alone)


@pytest.mark.parametrize("causal", [False, True])
def test_fp8(device: str, causal: bool) -> None:
    """Rounded inputs are near the others, and probabilities that are equal give the mean of values; there is no gradient."""
    if device == "cuda" and torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("FP8 is for Hopper")
    torch.manual_seed(4)
    for dtype in types_of(device):
        q, k, v = (torch.randn(2, 300, heads, 64, device=device).to(dtype) for heads in (4, 2, 2))
        v = v + 1
        o, lse = ferroattn.attention(q, k, v, causal=causal)
        rounded, rounded_lse = ferroattn.attention(q, k, v, causal=causal, fp8=True)
        assert (rounded - o).norm() < 0.04 * o.norm() and not torch.equal(rounded, o)
        assert (rounded_lse - lse).abs().max() < 0.25
        assert torch.equal(rounded, ferroattn.flash_attn_func(q, k, v, causal=causal, fp8=True))
        mean, _ = ferroattn.attention(torch.zeros_like(q), k, v, causal=causal, fp8=True)
        exact, _ = ferroattn.attention(torch.zeros_like(q), k, v, causal=causal)
        assert (mean - exact).abs().max() < 0.15

        q.requires_grad_()
        for attend in (ferroattn.flash_attn_func, lambda *inputs, **options: ferroattn.attention(*inputs, **options)[0]):
            with pytest.raises(RuntimeError, match="there are no gradients of a call with fp8"):
                attend(q, k, v, causal=causal, fp8=True).sum().backward()
        with pytest.raises(ValueError, match="fp8"):
            ferroattn.attention(q, k, v, causal=causal, splits=2, fp8=True)


def test_wrong_arguments(device: str) -> None:
    q, k, v = (torch.randn(2, 5, 4, 16, device=device).to(torch.bfloat16) for _ in range(3))
    cu = offsets([5, 5], device)
    flash = ferroattn.flash_attn_func
    wrong: list[tuple[type[Exception], Any]] = [
        (TypeError, lambda: flash(q.double(), k.double(), v.double())),
        (TypeError, lambda: flash(q, k.half(), v)),
        (TypeError, lambda: flash(q, k, v, window_size=3)),
        (TypeError, lambda: flash(q, k, v, alibi_slopes=torch.ones(4, device=device, dtype=torch.float64))),
        (TypeError, lambda: flash(q, k, v, mask=torch.ones(1, 1, 5, 5, device=device))),
        (ValueError, lambda: flash(q, k[:, :3], v)),
        (ValueError, lambda: flash(q, k[:, :, :3], v[:, :, :3])),
        (ValueError, lambda: flash(q[0], k[0], v[0])),
        (ValueError, lambda: flash(q, k, v, softmax_scale=float("nan"))),
        (ValueError, lambda: flash(q, k, v, softcap=-1.0)),
        (ValueError, lambda: flash(q, k, v, bias=torch.ones(5, 5, device=device))),
        (ValueError, lambda: flash(q, k, v, sinks=torch.ones(3, device=device))),
        (ValueError, lambda: ferroattn.attention(q, k, v, seqlens_k=cu)),
        (ValueError, lambda: ferroattn.attention(q, k, v, splits=-1)),
        (ValueError, lambda: ferroattn.attention(q, k, v, split_keys=-1)),
        (ValueError, lambda: ferroattn.attention(q, k, v, splits=2, split_keys=64)),
        (ValueError, lambda: ferroattn.attention(q, k, v, splits=2, batch_invariant=True)),
        (ValueError, lambda: ferroattn.flash_attn_qkvpacked_func(q)),
        (NotImplementedError, lambda: flash(q, k, v, dropout_p=0.1)),
    ]
    if device != "cpu":
        wrong.append((ValueError, lambda: flash(q, k.cpu(), v)))
        wrong.append((TypeError, lambda: flash(q.float(), k.float(), v.float())))
    for kind, call in wrong:
        with pytest.raises(kind) as error:
            call()
        assert type(error.value) is kind
        assert "\n" not in str(error.value) and str(error.value)
