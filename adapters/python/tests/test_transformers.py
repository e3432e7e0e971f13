"""Models of `transformers`, with random weights: logits, gradients and a step of training as with their own attention."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

import reference
import transformers

import ferroattn.transformers

BASE: dict[str, Any] = {
    "vocab_size": 99,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
GROUPED = BASE | {"num_key_value_heads": 2, "head_dim": 16}
MODELS: dict[str, Any] = {
    "llama": (transformers.LlamaForCausalLM, transformers.LlamaConfig(**GROUPED)),
    "gemma2": (
        transformers.Gemma2ForCausalLM,
        transformers.Gemma2Config(
            **GROUPED, sliding_window=7, attn_logit_softcapping=5.0, query_pre_attn_scalar=16, use_cache=False
        ),
    ),
    "gpt-oss": (
        transformers.GptOssForCausalLM,
        transformers.GptOssConfig(**GROUPED, sliding_window=6, num_local_experts=2, num_experts_per_tok=1),
    ),
    "bert": (
        transformers.BertForMaskedLM,
        transformers.BertConfig(**BASE, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0),
    ),
}


def model_of(name: str, attention: str, device: str) -> Any:
    kind, config = MODELS[name]
    torch.manual_seed(1)
    config._attn_implementation = attention
    model = kind(config)
    for weight, value in model.named_parameters():
        if weight.endswith("sinks"):
            torch.nn.init.normal_(value)
    return model.to(device, torch.float32 if device == "cpu" else torch.bfloat16)


def padding(where: str, rows: int) -> torch.Tensor:
    mask = torch.ones(3, rows, dtype=torch.long)
    if where == "right":
        mask[1, 12:] = mask[2, 5:] = 0
    elif where == "left":
        mask[1, :7] = mask[2, :14] = 0
    return mask


@pytest.mark.parametrize("where", ["none", "right", "left"])
@pytest.mark.parametrize("name", MODELS)
def test_models(device: str, name: str, where: str) -> None:
    torch.manual_seed(0)
    ids = torch.randint(0, 99, (3, 19), device=device)
    mask = padding(where, 19).to(device)
    # The first token of a sequence is foretold by one that is not there.
    first = mask.cumsum(-1) == 1
    labels = ids.masked_fill((mask == 0) | first, -100)
    results = {}
    for attention in ("eager", "ferroattn"):
        model = model_of(name, attention, device).train()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        given = None if where == "none" else mask
        losses = []
        for _ in range(2):
            optimizer.zero_grad()
            output = model(input_ids=ids, attention_mask=given, labels=labels)
            output.loss.backward()
            gradients = {weight: value.grad for weight, value in model.named_parameters() if value.grad is not None}
            losses.append(output.loss.item())
            optimizer.step()
        results[attention] = output.logits[mask.bool()].detach(), gradients, losses
    logits, gradients, losses = results["eager"]
    found, of_found, of_losses = results["ferroattn"]
    rounding = 1e-5 if device == "cpu" else 3e-2
    assert (found - logits).abs().max() <= rounding * logits.abs().max()
    assert gradients.keys() == of_found.keys()
    largest = max(gradient.abs().max() for gradient in gradients.values())
    for weight, gradient in gradients.items():
        assert (of_found[weight] - gradient).abs().max() <= rounding * largest, weight
    assert losses == pytest.approx(of_losses, rel=rounding)


def test_packed_sequences(device: str) -> None:
    lengths = [7, 5, 7]
    ids = torch.randint(0, 99, (1, 19), device=device)
    positions = torch.cat([torch.arange(length) for length in lengths])[None].to(device)
    cu = torch.tensor([0, 7, 12, 19], dtype=torch.int32, device=device)
    model = model_of("llama", "ferroattn", device).eval()
    with torch.no_grad():
        apart = torch.cat([model(input_ids=part).logits for part in ids.split(lengths, 1)], 1)
        by_positions = model(input_ids=ids, position_ids=positions).logits
        told = {"cu_seq_lens_q": cu, "cu_seq_lens_k": cu, "max_length_q": 7, "max_length_k": 7}
        by_offsets = model(input_ids=ids, position_ids=positions, **told).logits
    rounding = (1e-5 if device == "cpu" else 3e-2) * apart.abs().max()
    assert (by_positions - apart).abs().max() <= rounding
    assert (by_offsets - apart).abs().max() <= rounding


@pytest.mark.parametrize("rows", [16, 19])
@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_fp8(device: str, name: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long prompts are rounded, others are not, nor what needs a gradient."""
    if device == "cuda" and torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("FP8 is for Hopper")
    monkeypatch.setattr(ferroattn.transformers, "FP8_QUERIES", 17)
    torch.manual_seed(0)
    ids = torch.randint(0, 99, (3, rows), device=device)
    mask = padding("left", rows).to(device)
    results = []
    for attention in ("ferroattn", "ferroattn-fp8"):
        model = model_of(name, attention, device).eval()
        with torch.no_grad():
            results.append([model(input_ids=ids).logits, model(input_ids=ids, attention_mask=mask).logits])
        results[-1].append(model(input_ids=ids).logits)
    (logits, *others), (found, *of_others) = results
    assert (found - logits).norm() <= 0.05 * logits.norm()
    assert torch.equal(found, logits) == (rows < 17)
    assert all(torch.equal(a, b) for a, b in zip(others, of_others, strict=True))


@pytest.mark.parametrize("threshold", [0, 7, 8])
def test_fp8_of_layers_with_windows(device: str, threshold: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every second layer of the model has a window of seven keys."""
    if device != "cpu" and torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("FP8 is for Hopper")
    monkeypatch.setattr(ferroattn.transformers, "FP8_QUERIES", 17)
    ids = torch.randint(0, 99, (3, 40), device=device)
    logits = {}
    monkeypatch.setattr(ferroattn.transformers, "FP8_WINDOW", threshold)
    with torch.no_grad():
        for attention in ("eager", "ferroattn", "ferroattn-fp8"):
            logits[attention] = model_of("gemma2", attention, device).eval()(input_ids=ids).logits
        monkeypatch.setattr(ferroattn.transformers, "FP8_WINDOW", 8)
        full_layers_alone = model_of("gemma2", "ferroattn-fp8", device).eval()(input_ids=ids).logits
    found, expected = logits["ferroattn-fp8"], logits["eager"]
    # A window of eight keys is off by 33 %.
    assert (found - expected).norm() <= 0.1 * expected.norm()
    assert not torch.equal(found, logits["ferroattn"])
    assert torch.equal(found, full_layers_alone) == (threshold == 8)


@pytest.mark.parametrize("causal", [False, True])
def test_a_window_in_fp8(device: str, causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tolerance is below what one key more or less of the window changes."""
    if device != "cpu" and torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("FP8 is for Hopper")
    monkeypatch.setattr(ferroattn.transformers, "FP8_QUERIES", 200)
    monkeypatch.setattr(ferroattn.transformers, "FP8_WINDOW", 9)
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    q, k, v = (torch.randn(2, heads, 200, 64, device=device).to(dtype) for heads in (4, 2, 2))

    def found(keys: int, fp8: bool) -> torch.Tensor:
        forward = ferroattn.transformers.attention_forward
        return forward(torch.nn.Module(), q, k, v, None, sliding_window=keys, is_causal=causal, fp8=fp8)[0]

    def error(keys: int) -> float:
        window = (keys - 1, 0 if causal else keys - 1)
        expected, _lse = reference.attention(*(x.transpose(1, 2) for x in (q, k, v)), window=window)
        return float((found(9, True) - expected).norm() / expected.norm())

    assert error(9) <= 0.08
    assert error(8) > 0.16
    assert error(10) > 0.16
    assert not torch.equal(found(9, True), found(9, False))
    assert torch.equal(found(8, True), found(8, False))


def test_generation(device: str) -> None:
    """Caches that grow and caches of a fixed length, with a padded batch."""
    if device != "cpu":
        pytest.skip("rounding may choose another token")
    ids = torch.randint(1, 99, (3, 19))
    options: dict[str, Any] = {"max_new_tokens": 9, "do_sample": False, "pad_token_id": 0}
    options["attention_mask"] = padding("left", 19)
    for cache in ("dynamic", "static"):
        tokens = [
            model_of("gpt-oss", attention, device).eval().generate(ids, cache_implementation=cache, **options)
            for attention in ("eager", "ferroattn")
        ]
        assert torch.equal(*tokens), cache


def test_dropout_is_refused(device: str) -> None:
    model = model_of("bert", "ferroattn", device).train()
    model.bert.encoder.layer[0].attention.self.dropout.p = 0.1
    with pytest.raises(NotImplementedError, match="dropout"):
        model(input_ids=torch.zeros(1, 4, dtype=torch.long, device=device))


def test_the_names() -> None:
    assert ferroattn.transformers.NAME == "ferroattn"
    assert ferroattn.transformers.NAME_FP8 == "ferroattn-fp8"
