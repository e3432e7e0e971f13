"""Keys that all entries share, and tables of pages by FlashInfer's arrays."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from reference import assert_close, attention
from test_caches import normal, numbers, table_of, to_pages
from torch import Tensor

import ferroattn


def joined(prefix: Tensor, own: Tensor) -> Tensor:
    """The keys of each entry, those of the prefix before its own."""
    return torch.cat((prefix.expand(own.shape[0], -1, -1, -1), own), 1)


def prefix_table(device: str, keys: int, page: int, first: int) -> Tensor:
    """Pages from the first one on, in falling order."""
    count = -(-keys // page)
    return numbers(list(range(first, first + count))[::-1], device)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("keys", [0, 1, 130])
def test_prefix(device: str, keys: int, rows: int) -> None:
    lengths = [7, 2, 40]
    q, k, v = normal(device, 3, rows, 4, 32), normal(device, 3, 40, 2, 32), normal(device, 3, 40, 2, 24)
    shared = normal(device, 1, keys, 2, 32), normal(device, 1, keys, 2, 24)
    options: dict[str, Any] = {"causal": True, "seqlens_q": numbers([rows] * 3, device), "sinks": torch.randn(4, device=device)}
    found = ferroattn.attention(q, k, v, prefix=shared, seqlens_k=numbers(lengths, device), **options)
    all_keys = numbers([keys + length for length in lengths], device)
    expected = attention(q, joined(shared[0], k), joined(shared[1], v), seqlens_k=all_keys, **options)
    assert_close(list(found), list(expected), q.dtype)
    first, *parts = (x.transpose(1, 2) for x in (q, k, v, *shared))
    outside = ferroattn.attention(
        first, *parts[:2], prefix=(parts[2], parts[3]), seqlens_k=numbers(lengths, device), heads_first=True, **options
    )
    assert torch.equal(outside[0].transpose(1, 2), found[0]) and torch.equal(outside[1], found[1])


def test_prefix_of_packed_sequences(device: str) -> None:
    lengths = [5, 1, 9]
    q, k, v = normal(device, 15, 4, 32), normal(device, 15, 2, 32), normal(device, 15, 2, 32)
    shared = normal(device, 20, 2, 32), normal(device, 20, 2, 32)
    cu = numbers([0, *itertools.accumulate(lengths)], device)
    o, lse = ferroattn.attention(q, k, v, prefix=shared, seqlens_q=cu, seqlens_k=cu, causal=True)
    for q_of, k_of, v_of, o_of, lse_of in zip(*(x.split(lengths) for x in (q, k, v, o, lse.T)), strict=True):
        expected = attention(q_of[None], joined(shared[0], k_of[None]), joined(shared[1], v_of[None]), causal=True)
        assert_close([o_of[None], lse_of.T[None]], list(expected), q.dtype)


@pytest.mark.parametrize("page", [1, 16])
@pytest.mark.parametrize("keys", [16, 1, 37])
def test_prefix_pages(device: str, keys: int, page: int) -> None:
    """A last page of any number of keys, with NaN behind them; also by FlashAttention's function."""
    lengths = [20, 0, 3]
    table, count = table_of(device, lengths, page)
    shared = prefix_table(device, keys, page, count)
    q, own = normal(device, 3, 1, 4, 32), [normal(device, 3, 20, 2, 32) for _ in range(2)]
    prefix = [normal(device, 1, keys, 2, 32) for _ in range(2)]
    caches = []
    for of_entries, of_all in zip(own, prefix, strict=True):
        pages = to_pages(of_entries, lengths, table, count + len(shared), page)
        rows = to_pages(of_all, [keys], shared[None], count + len(shared), page)
        pages[count:] = rows[count:]
        caches.append(pages)
    of_q, of_k = numbers([1, 1, 1], device), numbers(lengths, device)
    options: dict[str, Any] = {"prefix_pages": shared, "prefix_keys": keys}
    if keys % page == 0:
        # Full pages need no number.
        del options["prefix_keys"]
    found = ferroattn.attention(q, *caches, pages=table, seqlens_q=of_q, seqlens_k=of_k, **options)
    k, v = (joined(of_all, of_entries) for of_entries, of_all in zip(own, prefix, strict=True))
    expected = attention(q, k, v, seqlens_q=of_q, seqlens_k=of_k + keys)
    assert_close(list(found), list(expected), q.dtype)
    by_cache = ferroattn.flash_attn_with_kvcache(
        q, *caches, cache_seqlens=of_k, block_table=table, return_softmax_lse=True, **options
    )
    assert all(torch.equal(a, b) for a, b in zip(by_cache, found, strict=True))


@pytest.mark.parametrize("keys", [16, 37])
def test_prefix_before_appended_keys(device: str, keys: int) -> None:
    before, page = [20, 0, 3], 16
    behind = [length + 1 for length in before]
    table, count = table_of(device, behind, page)
    shared = prefix_table(device, keys, page, count)
    q, *new = (normal(device, 3, 1, heads, 32) for heads in (4, 2, 2))
    own, prefix = ([normal(device, batch, most, 2, 32) for _ in range(2)] for batch, most in ((3, 21), (1, keys)))
    caches = [to_pages(x, before, table, count + len(shared), page) for x in own]
    for cache, of_all in zip(caches, prefix, strict=True):
        cache[count:] = to_pages(of_all, [keys], shared[None], count + len(shared), page)[count:]
    o = ferroattn.flash_attn_with_kvcache(
        q,
        *caches,
        *new,
        cache_seqlens=numbers(before, device),
        block_table=table,
        causal=True,
        prefix_pages=shared,
        prefix_keys=keys,
    )
    for x, token in zip(own, new, strict=True):
        for entry, length in enumerate(before):
            x[entry, length] = token[entry, 0]
    k, v = (joined(of_all, x) for of_all, x in zip(prefix, own, strict=True))
    expected = attention(q, k, v, seqlens_q=numbers([1] * 3, device), seqlens_k=numbers(behind, device) + keys)
    assert_close([o], [expected[0]], q.dtype)


def test_prefixes_have_no_gradient(device: str) -> None:
    q, k = normal(device, 2, 1, 2, 32).requires_grad_(), normal(device, 2, 3, 2, 32)
    shared = normal(device, 1, 9, 2, 32)
    o, _lse = ferroattn.attention(q, k, k, prefix=(shared, shared))
    with pytest.raises(RuntimeError, match="there are no gradients of a call with prefix"):
        o.sum().backward()


@pytest.mark.parametrize("page", [1, 8, 32])
def test_csr_pages(device: str, page: int) -> None:
    lengths = [70, 1, 0, 33, 2 * page]
    table, count = table_of(device, lengths, page)
    counts = [-(-length // page) for length in lengths]
    indices = torch.cat([row[:pages] for row, pages in zip(table, counts, strict=True)])
    indptr = numbers([0, *itertools.accumulate(counts)], device)
    last = numbers([(length - 1) % page + 1 if length else 77 for length in lengths], device)
    for most in (None, max(counts) + 3):
        found, seqlens = ferroattn.csr_pages(indptr, indices, last, page, most)
        assert seqlens.tolist() == lengths and seqlens.dtype == found.dtype == torch.int32
        assert list(found.shape) == [5, most or max(counts)]
        for row, expected, pages in zip(found, table, counts, strict=True):
            assert torch.equal(row[:pages], expected[:pages])
    found, seqlens = ferroattn.csr_pages(indptr, indices, last, page)
    q, keys = normal(device, 5, 1, 4, 32), normal(device, 5, 70, 2, 32)
    cache = to_pages(keys, lengths, table, count, page)
    o = ferroattn.flash_attn_with_kvcache(q, cache, cache, cache_seqlens=seqlens, block_table=found)
    expected = attention(q, keys, keys, seqlens_q=numbers([1] * 5, device), seqlens_k=seqlens)
    assert_close([o], [expected[0]], q.dtype)


def test_csr_pages_of_nothing(device: str) -> None:
    none = numbers([], device)
    table, seqlens = ferroattn.csr_pages(numbers([0], device), none, none, 16)
    assert list(table.shape) == [0, 0] and list(seqlens.shape) == [0]
    table, seqlens = ferroattn.csr_pages(numbers([0, 0], device), none, numbers([5], device), 16)
    assert list(table.shape) == [1, 0] and seqlens.tolist() == [0]


def test_csr_pages_compiled(device: str) -> None:
    given = numbers([0, 2, 3], device), numbers([4, 0, 7], device), numbers([3, 8], device)
    compiled = torch.compile(lambda *arrays: ferroattn.csr_pages(*arrays, 8, 2), backend="eager", fullgraph=True)
    table, seqlens = compiled(*given)
    assert table[0].tolist() == [4, 0] and int(table[1, 0]) == 7 and seqlens.tolist() == [11, 8]


def test_prefix_compiled(device: str) -> None:
    q, k, shared = normal(device, 2, 1, 4, 32), normal(device, 2, 5, 2, 32), normal(device, 1, 9, 2, 32)
    table, pages = numbers([[0], [1]], device), numbers([2, 3], device)
    cache = normal(device, 4, 8, 2, 32)
    for options in ({"prefix": (shared, shared)}, {"pages": table, "prefix_pages": pages, "prefix_keys": 11}):
        keys = cache if "pages" in options else k
        call: Any = lambda q, k, options=options: ferroattn.attention(q, k, k, **options)  # noqa: E731
        with torch.no_grad():
            expected = call(q, keys)
            found = torch.compile(call, backend="eager", fullgraph=True)(q, keys)
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_wrong(device: str) -> None:
    q, k = normal(device, 2, 3, 4, 16), normal(device, 2, 5, 2, 16)
    shared = normal(device, 1, 9, 2, 16)
    table, pages = numbers([[0], [1]], device), numbers([2, 3], device)
    cache = normal(device, 4, 8, 2, 16)
    indptr, last = numbers([0, 1, 3], device), numbers([3, 8], device)
    indices = numbers([1, 2, 0], device)

    def call(**options: Any) -> Any:
        return ferroattn.attention(q, k, k, **options)

    def of_pages(**options: Any) -> Any:
        return ferroattn.attention(q, cache, cache, pages=table, **options)

    csr = ferroattn.csr_pages
    two = shared, shared
    wrong: list[tuple[type[Exception], str, Any]] = [
        (TypeError, "prefix must be two tensors, its keys and its values", lambda: call(prefix=shared)),
        (TypeError, "prefix must be two tensors", lambda: call(prefix=(shared, None))),
        (TypeError, "the prefix's k must be of", lambda: call(prefix=(shared.double(), shared))),
        (ValueError, "the prefix's k has 3 axes", lambda: call(prefix=(shared[0], shared))),
        (ValueError, "the prefix's v has shape", lambda: call(prefix=(shared, shared[:, :8]))),
        (ValueError, "the prefix's k has shape", lambda: call(prefix=(k, k))),
        (ValueError, "prefix cannot be combined with window", lambda: call(prefix=two, window=(3, -1))),
        (ValueError, "entry 0 has 3 queries and 1 keys", lambda: ferroattn.attention(
            q, k[:, :1], k[:, :1], prefix=two, causal=True
        )),
        (ValueError, "prefix cannot be combined with prefix_pages", lambda: of_pages(prefix=two, prefix_pages=pages)),
        (ValueError, "prefix_keys needs prefix_pages", lambda: call(prefix_keys=3)),
        (ValueError, "prefix_pages needs pages", lambda: call(prefix_pages=pages[:0])),
        (TypeError, "prefix_pages must be of int32", lambda: of_pages(prefix_pages=pages.long())),
        (ValueError, "prefix_pages has 2 axes", lambda: of_pages(prefix_pages=table)),
        (ValueError, "prefix_keys is -1; it must be at least 0", lambda: of_pages(prefix_pages=pages, prefix_keys=-1)),
        (ValueError, "the prefix has 8 keys; with 2 pages of 8 keys it must have from 9 to 16", lambda: of_pages(
            prefix_pages=pages, prefix_keys=8
        )),
        (ValueError, "the prefix has 17 keys", lambda: of_pages(prefix_pages=pages, prefix_keys=17)),
        (TypeError, "indptr must be of int32", lambda: csr(indptr.long(), indices, last, 8)),
        (ValueError, "last_page_len has 2 axes", lambda: csr(indptr, indices, last[None], 8)),
        (ValueError, "indptr is empty", lambda: csr(indptr[:0], indices, last, 8)),
        (ValueError, "a page has 6 keys; it must have a power of 2", lambda: csr(indptr, indices, last, 6)),
        (ValueError, "page_size is -8; it must be at least 0", lambda: csr(indptr, indices, last, -8)),
        (ValueError, "max_pages is -1; it must be at least 0", lambda: csr(indptr, indices, last, 8, -1)),
        (ValueError, "last_page has shape", lambda: csr(indptr, indices, last[:1], 8)),
    ]  # fmt: skip
    if device == "cpu":
        # A GPU's numbers the host does not see.
        wrong += [
            (ValueError, r"prefix_pages\[1\] is 4", lambda: of_pages(prefix_pages=pages + 1)),
            (ValueError, r"last_page\[1\] is 9", lambda: csr(indptr, indices, last + 1, 8)),
            (ValueError, r"indptr\[2\] is 3; it must be from 1", lambda: csr(indptr, indices[:2], last, 8)),
            (ValueError, "entry 1 has 2 pages", lambda: csr(indptr, indices, last, 8, 1)),
        ]
    for kind, reason, refused in wrong:
        with pytest.raises(kind, match=reason) as error:
            refused()
        assert type(error.value) is kind
        assert "\n" not in str(error.value)
