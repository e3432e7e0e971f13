"""Keys and values of caches: in pages, appended, rotated."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from reference import assert_close, attention
from torch import Tensor

import ferroattn
from ferroattn.flash_attn import flash_attn_interface


def type_of(device: str) -> torch.dtype:
    return torch.float32 if device == "cpu" else torch.bfloat16


def numbers(values: list[Any], device: str, dtype: torch.dtype = torch.int32) -> Tensor:
    return torch.tensor(values, dtype=dtype, device=device)


def normal(device: str, *shape: int) -> Tensor:
    return torch.randn(*shape, device=device).to(type_of(device))


def table_of(device: str, lengths: list[int], page: int) -> tuple[Tensor, int]:
    """Pages in any order for so many keys of each entry, -1 behind them, and how many pages there are."""
    counts = [-(-length // page) for length in lengths]
    order = torch.randperm(sum(counts) + 2)[: sum(counts)].split(counts)
    table = torch.full((len(lengths), max(counts) + 1), -1, dtype=torch.int32)
    for entry, pages in enumerate(order):
        table[entry, : len(pages)] = pages
    return table.to(device), sum(counts) + 2


def to_pages(keys: Tensor, lengths: list[int], table: Tensor, count: int, page: int) -> Tensor:
    """The keys `[batch, seqlen, heads, dim]` in pages, whose other rows are NaN."""
    pages = torch.full((count, page, *keys.shape[2:]), torch.nan, dtype=keys.dtype, device=keys.device)
    for entry, length in enumerate(lengths):
        for key in range(length):
            pages[table[entry, key // page], key % page] = keys[entry, key]
    return pages


def from_pages(pages: Tensor, lengths: list[int], table: Tensor) -> Tensor:
    """What the pages hold, `[batch, seqlen, heads, dim]`, 0 behind the lengths."""
    page = pages.shape[1]
    keys = torch.zeros(len(lengths), max(lengths), *pages.shape[2:], dtype=pages.dtype, device=pages.device)
    for entry, length in enumerate(lengths):
        for key in range(length):
            keys[entry, key] = pages[table[entry, key // page], key % page]
    return keys


def angles_of(device: str, positions: int, pairs: int) -> tuple[Tensor, Tensor]:
    angles = 7 * torch.rand(positions, pairs, device=device)
    return angles.cos(), angles.sin()


def turned(x: Tensor, cos: Tensor, sin: Tensor, positions: list[int], interleaved: bool) -> Tensor:
    """Rows `[seqlen, heads, dim]` at positions, pairs as complex numbers."""
    dim = 2 * cos.shape[1]
    part = x[..., :dim].double()
    a, b = (part[..., ::2], part[..., 1::2]) if interleaved else part.chunk(2, -1)
    turned = torch.complex(a, b) * torch.complex(cos.double(), sin.double())[positions, None]
    pairs = torch.stack((turned.real, turned.imag), -1)
    part = pairs.flatten(-2) if interleaved else torch.cat(pairs.unbind(-1), -1)
    return torch.cat((part.to(x.dtype), x[..., dim:]), -1)


@pytest.mark.parametrize("page", [1, 4, 16, 64])
def test_pages(device: str, page: int) -> None:
    lengths = [70, 1, 0, 33]
    table, count = table_of(device, lengths, page)
    q, keys, values = normal(device, 4, 5, 4, 32), normal(device, 4, 70, 2, 32), normal(device, 4, 70, 2, 40)
    k, v = (to_pages(tensor, lengths, table, count, page) for tensor in (keys, values))
    of_q, of_k = numbers([5, 1, 3, 5], device), numbers(lengths, device)
    options: dict[str, Any] = {"seqlens_q": of_q, "seqlens_k": of_k, "causal": True, "sinks": torch.randn(4, device=device)}
    expected = attention(q, keys, values, **options)
    found = ferroattn.attention(q, k, v, pages=table, **options)
    for entry, rows in enumerate(of_q.tolist()):
        rows_of = [[o[entry, :rows], lse[entry, :, :rows]] for o, lse in (found, expected)]
        assert_close(*rows_of, q.dtype, entry)
    outside = ferroattn.attention(*(x.transpose(1, 2) for x in (q, k, v)), pages=table, heads_first=True, **options)
    assert torch.equal(outside[0].transpose(1, 2), found[0]) and torch.equal(outside[1], found[1])


def test_pages_have_no_gradient(device: str) -> None:
    q, cache = normal(device, 1, 1, 2, 32).requires_grad_(), normal(device, 3, 16, 2, 32)
    o, _lse = ferroattn.attention(q, cache, cache, pages=numbers([[2, 0]], device))
    with pytest.raises(RuntimeError, match="there are no gradients of a call with pages"):
        o.sum().backward()


@pytest.mark.parametrize("where", ["entries", "cache_entries", "pages", "slots"])
@pytest.mark.parametrize("interleaved", [None, False, True])
def test_append(device: str, where: str, interleaved: bool | None) -> None:
    before, rows, keys = [5, 0, 11], 3, 16
    k, v, q = normal(device, 3, rows, 2, 24), normal(device, 3, rows, 2, 8), normal(device, 3, rows, 4, 24)
    count, page = 5, keys
    places = [[(entry, length + row) for row in range(rows)] for entry, length in enumerate(before)]
    options: dict[str, Any] = {}
    if where == "entries":
        count = 3
    elif where == "cache_entries":
        places = [[([4, 0, 2][entry], key) for entry, key in of_entry] for of_entry in places]
        options["cache_entries"] = numbers([4, 0, 2], device)
    else:
        page = 4
        table, count = table_of(device, [length + rows for length in before], page)
        places = [[(int(table[entry, key // page]), key % page) for entry, key in of_entry] for of_entry in places]
        options["pages"] = table
    if where == "slots":
        places[1][2] = places[2][0] = (-1, 0)
        slots = [[entry * page + key for entry, key in of_entry] for of_entry in places]
        options = {"slots": numbers(slots, device, torch.int64)}
    k_cache, v_cache = normal(device, count, page, 2, 24), normal(device, count, page, 2, 8)
    expected = [k_cache.clone(), v_cache.clone()]
    if interleaved is not None:
        # Two of three pairs.
        cos, sin = angles_of(device, 14, 8)
        options |= {"cos": cos, "sin": sin, "interleaved": interleaved, "q": q}
    rotated_q = []
    for entry, length in enumerate(before):
        positions = list(range(length, length + rows))
        new = k[entry]
        if interleaved is not None:
            new = turned(new, cos, sin, positions, interleaved)
            rotated_q.append(turned(q[entry], cos, sin, positions, interleaved))
        for row, (number, key) in enumerate(places[entry]):
            if number >= 0:
                expected[0][number, key], expected[1][number, key] = new[row], v[entry, row]
    rotated, lengths = ferroattn.append(k, v, k_cache, v_cache, lengths=numbers(before, device), **options)
    assert lengths.tolist() == [8, 3, 14] and lengths.dtype == torch.int32
    assert torch.equal(v_cache, expected[1])
    if interleaved is None:
        assert rotated is None and torch.equal(k_cache, expected[0])
    else:
        assert rotated is not None
        assert_close([rotated, k_cache], [torch.stack(rotated_q), expected[0]], k.dtype)


def test_append_packed_rows(device: str) -> None:
    """Rows of any sequences, each with a slot and a position, and heads outside of the keys."""
    k, v, q = normal(device, 5, 2, 16), normal(device, 5, 2, 16), normal(device, 5, 4, 16)
    slots, positions = [7, 0, -1, 22, 3], [9, 2, 5, 0, 9]
    cos, sin = angles_of(device, 10, 8)
    if device != "cpu":
        cos, sin = cos.to(k.dtype), sin.to(k.dtype)
    cache = torch.zeros(6, 2, 2, 4, 16, dtype=k.dtype, device=device)
    rotated, lengths = ferroattn.append(
        k, v, cache[:, 0], cache[:, 1], q=q, slots=numbers(slots, device, torch.int64), positions=numbers(positions, device),
        cos=cos, sin=sin, heads_first=True,
    )  # fmt: skip
    assert lengths.tolist() == [5]
    expected = torch.zeros_like(cache)
    new = turned(k, cos, sin, positions, False)
    for row, slot in enumerate(slots):
        if slot >= 0:
            expected[slot // 4, :, :, slot % 4] = torch.stack((new[row], v[row]))
    assert rotated is not None
    assert_close([cache, rotated], [expected, turned(q, cos, sin, positions, False)], k.dtype)


def test_append_nothing(device: str) -> None:
    cache = normal(device, 2, 4, 2, 16)
    before = cache.clone()
    none = cache[:, :0]
    _, lengths = ferroattn.append(none, none, cache, cache.clone(), lengths=numbers([3, 0], device))
    assert lengths.tolist() == [3, 0] and torch.equal(cache, before)
    assert ferroattn.append(none, none, cache, cache.clone())[1].tolist() == [0, 0]


def test_a_cache_that_a_gradient_needs(device: str) -> None:
    cache, v_cache = normal(device, 1, 4, 2, 16), normal(device, 1, 4, 2, 16)
    q = normal(device, 1, 1, 2, 16).requires_grad_()
    o = ferroattn.flash_attn_func(q, cache, v_cache)
    ferroattn.append(q.detach(), q.detach(), cache, v_cache)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        o.sum().backward()


@pytest.mark.parametrize("seen", [{}, {"causal": True}, {"window_size": (9, -1)}, {"window_size": (9, 1), "causal": True}])
@pytest.mark.parametrize("page", [None, 8])
@pytest.mark.parametrize("interleaved", [None, False, True])
def test_kvcache_appends(device: str, seen: dict[str, Any], page: int | None, interleaved: bool | None) -> None:
    before, rows, heads = [5, 0, 20], 3, 4
    behind = [length + rows for length in before]
    q, k, v = normal(device, 3, rows, heads, 32), normal(device, 3, rows, 2, 32), normal(device, 3, rows, 2, 32)
    kept = [normal(device, 3, max(behind), 2, 32) for _ in range(2)]
    options: dict[str, Any] = dict(seen)
    entries = [3, 0, 4]
    if page is None:
        caches = [torch.full((5, 30, 2, 32), torch.nan, dtype=q.dtype, device=device) for _ in range(2)]
        for cache, old in zip(caches, kept, strict=True):
            for entry, length in enumerate(before):
                cache[entries[entry], :length] = old[entry, :length]
        options["cache_batch_idx"] = numbers(entries, device)
    else:
        table, count = table_of(device, behind, page)
        caches = [to_pages(old, before, table, count, page) for old in kept]
        options["block_table"] = table
    rotated = q
    if interleaved is None:
        new = k
    else:
        cos, sin = angles_of(device, 23, 8)
        options |= {"rotary_cos": cos, "rotary_sin": sin, "rotary_interleaved": interleaved}
        at_first = not seen
        positions = [list(range(length, length + rows)) for length in before]
        new = torch.stack([turned(x, cos, sin, p, interleaved) for x, p in zip(k, positions, strict=True)])
        q_positions = [[p[0]] * rows if at_first else p for p in positions]
        rotated = torch.stack([turned(x, cos, sin, p, interleaved) for x, p in zip(q, q_positions, strict=True)])
    for entry, length in enumerate(before):
        kept[0][entry, length : length + rows], kept[1][entry, length : length + rows] = new[entry], v[entry]
    found = ferroattn.flash_attn_with_kvcache(
        q, *caches, k, v, cache_seqlens=numbers(before, device), return_softmax_lse=True, **options
    )
    lengths = {"seqlens_q": torch.full((3,), rows), "seqlens_k": numbers(behind, device)}
    expected = attention(rotated, *kept, causal=seen.get("causal", False), window=seen.get("window_size", (-1, -1)), **lengths)
    assert_close(list(found), list(expected), q.dtype)
    for cache, all_keys in zip(caches, kept, strict=True):
        if page is None:
            stored = [cache[entries[entry], :length] for entry, length in enumerate(behind)]
        else:
            of_pages = from_pages(cache, behind, table)
            stored = [of_pages[entry, :length] for entry, length in enumerate(behind)]
        assert_close(stored, [all_keys[entry, :length] for entry, length in enumerate(behind)], q.dtype)
    assert not found[0].requires_grad


@pytest.mark.parametrize("page", [None, 4])
def test_kvcache_of_one_length(device: str, page: int | None) -> None:
    """A number for cache_seqlens, and first keys."""
    q, k, v = (normal(device, 2, 1, 2, 16) for _ in range(3))
    kept = [normal(device, 2, 12, 2, 16) for _ in range(2)]
    firsts = numbers([2, 7], device)
    options: dict[str, Any] = {"cache_seqlens": 9, "cache_leftpad": firsts, "causal": True}
    caches = [old.clone() for old in kept]
    if page is not None:
        table, count = table_of(device, [12, 12], page)
        caches = [to_pages(old, [12, 12], table, count, page) for old in kept]
        options["block_table"] = table
    found = ferroattn.flash_attn_with_kvcache(q, *caches, k, v, **options)
    for old, new in zip(kept, (k, v), strict=True):
        old[:, 9] = new[:, 0]
    lengths = {"seqlens_q": torch.full((2,), 1), "seqlens_k": torch.full((2,), 10)}
    assert_close([found], [attention(q, *kept, first_keys=firsts, causal=True, **lengths)[0]], q.dtype)
    stored = caches if page is None else [from_pages(cache, [12, 12], table) for cache in caches]
    assert all(torch.equal(a, b) for a, b in zip(stored, kept, strict=True))


@pytest.mark.parametrize("page", [None, 4])
def test_steps_are_a_prefill(device: str, page: int | None) -> None:
    """Twenty tokens one by one, against all at once."""
    batch, steps = 2, 20
    q, k, v = normal(device, batch, steps, 4, 32), normal(device, batch, steps, 2, 32), normal(device, batch, steps, 2, 32)
    cos, sin = angles_of(device, steps, 16)
    options: dict[str, Any] = {"rotary_cos": cos, "rotary_sin": sin, "rotary_interleaved": False, "causal": True}
    if page is None:
        caches = [torch.full((batch, steps, 2, 32), torch.nan, dtype=q.dtype, device=device) for _ in range(2)]
    else:
        table, count = table_of(device, [steps] * batch, page)
        caches = [torch.full((count, page, 2, 32), torch.nan, dtype=q.dtype, device=device) for _ in range(2)]
        options["block_table"] = table
    lengths = torch.zeros(batch, dtype=torch.int32, device=device)
    rows = []
    for step in range(steps):
        new = (x[:, step : step + 1] for x in (k, v))
        rows.append(ferroattn.flash_attn_with_kvcache(q[:, step : step + 1], *caches, *new, cache_seqlens=lengths, **options))
        lengths += 1
    everywhere = list(range(steps))
    all_q, all_k = (torch.stack([turned(x, cos, sin, everywhere, False) for x in of]) for of in (q, k))
    expected = attention(all_q, all_k, v, causal=True)[0]
    assert_close([torch.cat(rows, 1)], [expected], q.dtype)
    # At once, into caches that are empty again.
    for cache in caches:
        cache.fill_(torch.nan)
    found = ferroattn.flash_attn_with_kvcache(q, *caches, k, v, cache_seqlens=0, **options)
    assert_close([found], [expected], q.dtype)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("spare", [0, 3])
@pytest.mark.parametrize("rows", [[3, 0, 7, 1], [1, 1, 1, 1], [4, 4, 4, 4], [0, 0, 0, 0], [9]])
def test_packed_queries_of_pages(device: str, rows: list[int], spare: int, causal: bool) -> None:
    lengths = [30, 2, 17, 9][: len(rows)]
    table, count = table_of(device, lengths, 8)
    keys, values = (normal(device, len(rows), 30, 2, 32) for _ in range(2))
    k, v = (to_pages(tensor, lengths, table, count, 8) for tensor in (keys, values))
    q = normal(device, sum(rows), 4, 32)
    slopes = torch.rand(len(rows), 4, device=device)
    cu_q, cu_k = (numbers([0, *itertools.accumulate(of)], device) for of in (rows, lengths))
    longest = max(rows) + spare
    o, lse, none = ferroattn.flash_attn_varlen_func(
        q, k, v, cu_q, cu_k, longest, 30, causal=causal, alibi_slopes=slopes, block_table=table, return_attn_probs=True
    )
    assert none is None and not o.requires_grad
    parts = [
        attention(q[None], k[None, :length], v[None, :length], causal=causal, alibi_slopes=slope)
        for q, k, v, length, slope in zip(q.split(rows), keys, values, lengths, slopes, strict=True)
    ]
    expected = [torch.cat([o[0] for o, _ in parts]), torch.cat([lse[0] for _, lse in parts], 1)]
    assert_close([o, lse], expected, q.dtype)
    # Lengths of keys in place of offsets.
    forward = flash_attn_interface._flash_attn_varlen_forward
    inner = forward(
        q, k, v, cu_q, torch.zeros_like(cu_k), longest, 30, 0.0, None, causal, alibi_slopes=slopes, block_table=table,
        seqused_k=numbers(lengths, device),
    )  # fmt: skip
    assert torch.equal(inner[0], o) and torch.equal(inner[1], lse)


def test_rows_behind_the_last_sequence(device: str) -> None:
    """Other rows than those of sequences change nothing."""
    table, count = table_of(device, [9, 4], 4)
    k, v = normal(device, count, 4, 2, 32), normal(device, count, 4, 2, 32)
    cu_q, cu_k = numbers([0, 3, 5], device), numbers([0, 9, 13], device)
    q = normal(device, 8, 2, 32)
    of = [ferroattn.flash_attn_varlen_func(x, k, v, cu_q, cu_k, 3, 9, block_table=table) for x in (q, q[:5])]
    assert torch.equal(of[0][:5], of[1])


def test_wrong_caches(device: str) -> None:
    q, k, v = (normal(device, 2, 1, 2, 16) for _ in range(3))
    cache = normal(device, 2, 8, 2, 16)
    zeros = numbers([0, 0], device)
    table = numbers([[0, 1], [1, 0]], device)
    cos = torch.zeros(8, 8, device=device)
    with_cache, append, varlen = ferroattn.flash_attn_with_kvcache, ferroattn.append, ferroattn.flash_attn_varlen_func
    cu = numbers([0, 1, 2], device)
    packed = q[:, 0]
    odd = normal(device, 3, 12, 2, 16)
    wrong: list[tuple[type[Exception], str, Any]] = [
        (ValueError, "k and v are given both or not", lambda: with_cache(q, cache, cache, k)),
        (ValueError, "k and v are given both or not", lambda: with_cache(q, cache, cache, v=v)),
        (ValueError, "rotary_cos and rotary_sin", lambda: with_cache(q, cache, cache, rotary_cos=cos, rotary_sin=cos)),
        (ValueError, "cache_seqlens is None", lambda: with_cache(q, cache, cache, k, v)),
        (ValueError, "cosines and sines", lambda: with_cache(q, cache, cache, k, v, cos, cache_seqlens=0)),
        (TypeError, "pages must be of int32", lambda: with_cache(q, cache, cache, block_table=table.long())),
        (ValueError, "pages has 1 axes", lambda: with_cache(q, cache, cache, block_table=zeros)),
        (ValueError, "pages has shape", lambda: with_cache(q, cache, cache, block_table=table[:1])),
        (ValueError, "a page has 12 keys", lambda: with_cache(q, odd, odd, block_table=table)),
        (ValueError, "cache_entries cannot be combined with pages", lambda: with_cache(
            q, cache, cache, cache_batch_idx=zeros, block_table=table
        )),
        (ValueError, "q has 4 axes", lambda: varlen(q, cache, cache, cu, cu, 1, 1, block_table=table)),
        (ValueError, "shape", lambda: varlen(packed, cache, cache, cu, cu, 1, 1, block_table=table[:1])),
        (ValueError, "v has shape", lambda: append(k, v[:, :, :1], cache, cache)),
        (ValueError, "k has 2 axes", lambda: append(k[0, 0], v, cache, cache)),
        (TypeError, "v_cache must be of", lambda: append(k, v, cache, cache.half() if device == "cpu" else cache.float())),
        (ValueError, "k_cache", lambda: append(k, v, cache[:1], cache[:1])),
        (ValueError, "k_cache", lambda: append(k, v, cache.mT.contiguous().mT, cache)),
        (ValueError, "lengths has shape", lambda: append(k, v, cache, cache, lengths=zeros[:1])),
        (TypeError, "lengths must be of int32", lambda: append(k, v, cache, cache, lengths=zeros.long())),
        (TypeError, "slots must be of int64", lambda: append(k, v, cache, cache, slots=zeros[:, None])),
        (ValueError, "slots has 1 axes", lambda: append(k, v, cache, cache, slots=zeros.long())),
        (ValueError, "positions has shape", lambda: append(k, v, cache, cache, positions=table)),
        (ValueError, "cos has 9 pairs", lambda: append(
            k, v, cache, cache, cos=torch.zeros(8, 9, device=device), sin=torch.zeros(8, 9, device=device)
        )),
        (ValueError, "sin has shape", lambda: append(k, v, cache, cache, cos=cos, sin=cos[:4])),
        (TypeError, "sin must be of float32", lambda: append(k, v, cache, cache, cos=cos, sin=cos.half())),
        (NotImplementedError, "leftpad_k", lambda: flash_attn_interface._flash_attn_varlen_forward(
            packed, cache, cache, cu, cu, 1, 1, 0.0, None, False, block_table=table, leftpad_k=zeros
        )),
        (NotImplementedError, "seqused_k", lambda: flash_attn_interface._flash_attn_varlen_forward(
            packed, packed, packed, cu, cu, 1, 1, 0.0, None, False, seqused_k=zeros
        )),
    ]  # fmt: skip
    if device == "cpu":
        # A GPU's numbers the host does not see.
        far = numbers([0, 8], device)
        wrong += [
            (ValueError, "entry 1 has 8 keys and gets 1 more", lambda: with_cache(q, cache, cache, k, v, cache_seqlens=far)),
            (ValueError, r"pages\[0, 1\] is 2", lambda: with_cache(q, cache, cache, block_table=table * 2)),
            (ValueError, "entry 1 has a row at position 7", lambda: append(
                k, v, cache, cache, lengths=numbers([0, 7], device), q=q, cos=cos[:7].clone(), sin=cos[:7].clone()
            )),
            (ValueError, "two new keys would be key 0", lambda: append(k, v, cache, cache, cache_entries=zeros)),
        ]  # fmt: skip
    else:
        wrong.append((ValueError, "lengths is on another device", lambda: append(k, v, cache, cache, lengths=zeros.cpu())))
    for kind, reason, call in wrong:
        before = cache.clone()
        with pytest.raises(kind, match=reason) as error:
            call()
        assert type(error.value) is kind
        assert "\n" not in str(error.value)
        assert torch.equal(cache, before)
