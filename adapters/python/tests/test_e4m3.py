"""q, k and v of float8_e4m3fn, and caches of it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import ferroattn

_E4M3 = torch.float8_e4m3fn


def _rounded(*shape: int, device: str, size: float = 1.0) -> Tensor:
    return (size * torch.randn(*shape, device=device)).to(_E4M3)


def _exact(q: Tensor, k: Tensor, v: Tensor, causal: bool = False, lengths: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """o and lse of `[batch, seqlen, heads, dim]` in float64."""
    q, k, v = (tensor.double().transpose(1, 2).cpu() for tensor in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = q @ k.mT / q.shape[-1] ** 0.5
    row, key = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])
    keys = torch.full((q.shape[0],), k.shape[2]) if lengths is None else lengths.cpu()
    seen = key < keys[:, None, None]
    if causal:
        seen = seen & (key <= row + keys[:, None, None] - q.shape[2])
    scores = scores.masked_fill(~seen[:, None], -torch.inf)
    return (scores.softmax(-1) @ v).transpose(1, 2), scores.logsumexp(-1)


def _loss(found: Tensor, exact: Tensor) -> float:
    """The error in norm, of the exact result's."""
    return float((found.double().cpu() - exact).norm() / exact.norm())


def _serves(device: str) -> bool:
    return device == "cpu" or torch.cuda.get_device_capability(device) == (9, 0)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_inputs(device: str, causal: bool, dtype: torch.dtype) -> None:
    q, k, v = (_rounded(2, 150, heads, 64, device=device) for heads in (4, 2, 2))
    q_descale, k_descale, v_descale = (torch.rand(2, 2, device=device) + 0.5 for _ in range(3))
    descales = {"q_descale": q_descale, "k_descale": k_descale, "v_descale": v_descale}
    if not _serves(device):
        with pytest.raises(NotImplementedError):
            ferroattn.attention(q, k, v)
        return
    o, lse = ferroattn.attention(q, k, v, causal=causal, dtype=dtype, **descales)
    assert o.dtype == dtype
    assert lse.dtype == torch.float32
    assert torch.equal(o, ferroattn.flash_attn_func(q, k, v, causal=causal, dtype=dtype, **descales))
    wide = [
        tensor.double() * descale.repeat_interleave(tensor.shape[2] // 2, 1)[:, None, :, None]
        for tensor, descale in ((q, q_descale), (k, k_descale), (v, v_descale))
    ]
    exact, exact_lse = _exact(*wide, causal=causal)
    # The CPU rounds no probabilities.
    assert _loss(o, exact) < (0.04 if device.startswith("cuda") else 0.005)
    assert torch.allclose(lse.double().cpu(), exact_lse, atol=0.01)
    rotated, _ = ferroattn.attention(q, k, v, causal=causal, dtype=dtype, fp8="hadamard", **descales)
    assert _loss(rotated, exact) < 0.1


@pytest.mark.parametrize("fp8", [True, "hadamard"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("heads_first", [False, True])
def test_float32_of_16_bits(device: str, fp8: bool | str, dtype: torch.dtype, heads_first: bool) -> None:
    if not _serves(device):
        pytest.skip("no kernel of this device multiplies e4m3")
    shapes = [(2, heads, 70, 33) if heads_first else (2, 70, heads, 33) for heads in (4, 2, 2)]
    q, k, v = (torch.randn(*shape, device=device).to(dtype) for shape in shapes)
    options = {"causal": True, "fp8": fp8, "heads_first": heads_first}
    o, lse = ferroattn.attention(q, k, v, dtype=torch.float32, **options)
    narrow, narrow_lse = ferroattn.attention(q, k, v, **options)
    assert (o.dtype, narrow.dtype) == (torch.float32, dtype)
    assert o.shape == narrow.shape
    assert torch.equal(o.to(dtype), narrow)
    assert torch.equal(lse, narrow_lse)
    assert (o != narrow.float()).float().mean() > 0.8
    if not heads_first:
        assert torch.equal(o, ferroattn.flash_attn_func(q, k, v, causal=True, fp8=fp8, dtype=torch.float32))


@pytest.mark.parametrize("rounded", [False, True])
def test_options(device: str, rounded: bool) -> None:
    if not _serves(device):
        pytest.skip("no kernel of this device multiplies e4m3")
    offsets = torch.tensor([0, 70, 71, 200], dtype=torch.int32, device=device)
    numbers = [_rounded(200, heads, 64, device=device) for heads in (4, 2, 2)]
    options = {"seqlens_q": offsets, "seqlens_k": offsets, "window": (40, 0), "softcap": 3.0}
    sinks = torch.randn(4, device=device)
    wide = [tensor.half() for tensor in numbers]
    exact, exact_lse = ferroattn.attention(*wide, sinks=sinks, **options)
    q, k, v = wide if rounded else numbers
    o, lse = ferroattn.attention(q, k, v, sinks=sinks, fp8=rounded, dtype=torch.float16, **options)
    assert o.dtype == torch.float16
    assert _loss(o, exact.double().cpu()) < 0.06
    assert torch.allclose(lse, exact_lse, atol=0.05)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("paged", [False, True])
def test_caches(device: str, dtype: torch.dtype, paged: bool) -> None:
    batch, page, most = 3, 16, 9
    lengths = torch.tensor([130, 1, 77], dtype=torch.int32, device=device)
    q = torch.randn(batch, 2, 8, 64, device=device).to(dtype)
    k, v = (_rounded(batch, page * most, 2, 64, device=device) for _ in range(2))
    k_descale, v_descale = (torch.rand(batch, 2, device=device) + 0.5 for _ in range(2))
    wide = [tensor.double() * descale[:, None, :, None] for tensor, descale in ((k, k_descale), (v, v_descale))]
    table = None
    if paged:
        table = torch.randperm(batch * most, device=device).int().view(batch, most)
        pages = [torch.empty(batch * most, page, 2, 64, dtype=_E4M3, device=device) for _ in range(2)]
        for to, of in zip(pages, (k, v), strict=True):
            to.view(torch.uint8)[table.long().flatten()] = of.view(torch.uint8).reshape(-1, page, 2, 64)
        k, v = pages
        # Each page has a descale of its own: the same numbers.
        k_descale, v_descale = (
            torch.empty(batch * most, 2, device=device).index_copy_(
                0, table.long().flatten(), descale.repeat_interleave(most, 0)
            )
            for descale in (k_descale, v_descale)
        )
    call = {
        "cache_seqlens": lengths, "causal": True, "block_table": table, "k_descale": k_descale, "v_descale": v_descale,
        "page_descales": paged, "return_softmax_lse": True,
    }  # fmt: skip
    if not _serves(device):
        with pytest.raises(NotImplementedError):
            ferroattn.flash_attn_with_kvcache(q, k, v, **call)
        return
    o, lse = ferroattn.flash_attn_with_kvcache(q, k, v, **call)
    exact, exact_lse = _exact(q, *wide, causal=True, lengths=lengths)
    seen = exact_lse.isfinite()
    assert _loss(o.transpose(1, 2)[seen], exact.transpose(1, 2)[seen]) < (0.01 if dtype == torch.bfloat16 else 0.002)
    assert torch.allclose(lse.double().cpu()[seen], exact_lse[seen], atol=0.01)


def test_appended(device: str) -> None:
    if not _serves(device):
        pytest.skip("kernels of this device append to no cache of e4m3")
    cache = [torch.zeros(2, 40, 2, 64, device=device).to(_E4M3) for _ in range(2)]
    new = [torch.randn(2, 5, 2, 64, device=device).half() for _ in range(2)]
    descales = [torch.rand(2, 2, device=device) + 0.5 for _ in range(2)]
    lengths = torch.tensor([3, 30], dtype=torch.int32, device=device)
    q = torch.randn(2, 1, 4, 64, device=device).half()
    o = ferroattn.flash_attn_with_kvcache(
        q, *cache, *new, cache_seqlens=lengths, causal=True, k_descale=descales[0], v_descale=descales[1]
    )
    for numbers, rows, descale in zip(cache, new, descales, strict=True):
        expected = (rows.float() / descale[:, None, :, None]).to(_E4M3).float()
        for entry, first in enumerate((3, 30)):
            found = numbers[entry, first : first + 5].float()
            # Two roundings, of the quotient and of it in e4m3, may differ by a unit.
            assert torch.allclose(found, expected[entry], rtol=0.13, atol=0.002)
            assert not numbers[entry, :first].float().any()
            assert not numbers[entry, first + 5 :].float().any()
    assert o.isfinite().all()


def test_wrong_arguments(device: str) -> None:
    q = torch.randn(1, 8, 2, 64, device=device).half()
    e4m3 = q.to(_E4M3)
    ones = torch.ones(1, 2, device=device)
    with pytest.raises(TypeError, match="descales need k and v of float8_e4m3fn"):
        ferroattn.attention(q, q, q, k_descale=ones)
    with pytest.raises(TypeError, match=r"must be torch\.float16, torch\.bfloat16 or torch\.float32"):
        ferroattn.attention(e4m3, e4m3, e4m3, dtype=torch.float64)
    with pytest.raises(TypeError, match="v must be of float16"):
        ferroattn.attention(q, q, e4m3, fp8=True, dtype=torch.float32)
    with pytest.raises(ValueError, match="fp8 cannot be combined with batch_invariant"):
        ferroattn.attention(q, q, q, fp8=True, dtype=torch.float32, batch_invariant=True)
    with pytest.raises(ValueError, match="fp8 is 'x'"):
        ferroattn.attention(q, q, q, fp8="x")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="v must be of float8_e4m3fn"):
        ferroattn.attention(e4m3, e4m3, q)
    with pytest.raises(ValueError, match="q_descale needs q of float8_e4m3fn"):
        ferroattn.attention(q, e4m3, e4m3, q_descale=ones)
    with pytest.raises(ValueError, match="k_descale"):
        ferroattn.attention(e4m3, e4m3, e4m3, k_descale=ones[:, :1])
    with pytest.raises(ValueError, match="batch_invariant"):
        ferroattn.attention(e4m3, e4m3, e4m3, batch_invariant=True)
    with pytest.raises(ValueError, match="descales need caches of float8_e4m3fn"):
        ferroattn.append(q, q, q.clone(), q.clone(), k_descale=ones)


def test_compiled(device: str) -> None:
    if not _serves(device):
        pytest.skip("no kernel of this device multiplies e4m3")
    q, k, v = (_rounded(1, 64, 2, 64, device=device) for _ in range(3))

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return ferroattn.attention(q, k, v, causal=True)[0] + 1

    compiled = torch.compile(attend, fullgraph=True)
    assert torch.equal(compiled(q, k, v), attend(q, k, v))

    def in_float32(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        of_e4m3, _ = ferroattn.attention(q, k, v, dtype=torch.float32)
        rounded, _ = ferroattn.attention(q.half(), k.half(), v.half(), fp8=True, dtype=torch.float32)
        return of_e4m3 + rounded

    compiled = torch.compile(in_float32, fullgraph=True)
    assert torch.equal(compiled(q, k, v), in_float32(q, k, v))
