"""The text demo against the same model in plain torch and in transformers; sampling that can be repeated."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch.nn import functional as F

import ttmesh.ttnn as ttnn

ROOT = Path(__file__).parents[2]
USERS, STEPS = 4, 6
# Of the logits' own spread (their standard deviation): roundings to 8 bits in two layers, and block floats' 7 bits.
BAND = {ttnn.bfloat16: 0.06, ttnn.bfloat8_b: 0.15}


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TTMESH_SYSTEM", "t3k")
    monkeypatch.setattr(sys, "path", [str(ROOT / "examples"), str(ROOT / "examples" / "models"), *sys.path])
    with torch.no_grad():
        yield importlib.import_module("text_demo")


def generated(demo, monkeypatch: pytest.MonkeyPatch, **options) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Prompts [users, 32], new tokens [users, n] and the logits that each was drawn from [users, n, vocabulary]."""
    seen: list[torch.Tensor] = []
    prompts: list[torch.Tensor] = []

    class Watched(demo.Generator):
        def prompt(self, tokens: torch.Tensor) -> None:
            prompts.append(tokens)
            super().prompt(tokens)

        def sample(self, logits: ttnn.Tensor) -> None:
            seen.append(ttnn.to_torch(ttnn.get_device_tensors(logits)[0])[0, 0].float())
            super().sample(logits)

    monkeypatch.setattr(demo, "Generator", Watched)
    run = demo.generate(USERS, STEPS, traced=False, **options)
    return prompts[0], run.tokens, torch.stack(seen, 1)


def compare(
    prompts: torch.Tensor, tokens: torch.Tensor, logits: torch.Tensor, expected: torch.Tensor, band: float
) -> None:
    """Logits within the band; every token the likeliest of torch's, up to pairs that the band cannot tell apart."""
    count = prompts.shape[1]
    wanted = expected[:, count - 1 : -1]
    unit = wanted.std()

    assert ((logits - wanted).abs().max() / unit).item() < band
    best = wanted.max(-1).values
    chosen = wanted.gather(-1, tokens.long().unsqueeze(-1)).squeeze(-1)
    assert (best - chosen).max() < 2 * band * unit  # nobody drew a token that torch finds clearly less likely
    sure = wanted.topk(2).values.diff(dim=-1).abs().squeeze(-1) > 2 * band * unit
    assert sure.float().mean() > 0.3  # so the next line compares something
    assert torch.equal(wanted.argmax(-1)[sure], tokens.long()[sure])


@pytest.mark.parametrize("weights", BAND, ids=lambda dtype: dtype.name.lower())
def test_greedy_tokens_and_logits_are_those_of_plain_torch(demo, weights, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts, tokens, logits = generated(demo, monkeypatch, sampling=demo.GREEDY, weights=weights)
    decoder = importlib.import_module("llama_decoder")
    sizes = demo.Sizes(layers=2, users=USERS, length=64, kv_heads=demo.CHIPS, vocabulary=256)
    top, layers = demo.draw_weights(torch.Generator().manual_seed(0), sizes)

    expected = decoder.expected_logits(torch.cat([prompts, tokens.long()], 1), top, layers, sizes)

    compare(prompts, tokens, logits, expected, BAND[weights])


SIZES = {
    "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 8,
    "num_key_value_heads": 8, "vocab_size": 512, "rms_norm_eps": 1e-4, "max_position_embeddings": 128,
    "tie_word_embeddings": False, "attention_bias": False, "mlp_bias": False,
}  # fmt: skip
ROPES = {
    "default": {"rope_type": "default", "rope_theta": 500.0},
    "llama3": {
        "rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
}  # fmt: skip


def llama_folder(path: Path, rope: dict[str, object], *, tied: bool = False) -> dict[str, torch.Tensor]:
    """A tiny Llama under Hugging Face's names."""
    draw = torch.Generator().manual_seed(3)
    width, hidden, vocabulary = SIZES["hidden_size"], SIZES["intermediate_size"], SIZES["vocab_size"]
    shapes = {"self_attn.q": (width, width), "self_attn.k": (width, width), "self_attn.v": (width, width),
              "self_attn.o": (width, width), "mlp.gate": (hidden, width), "mlp.up": (hidden, width),
              "mlp.down": (width, hidden)}  # fmt: skip
    stored = {"model.embed_tokens.weight": torch.randn(vocabulary, width, generator=draw)}
    for i in range(SIZES["num_hidden_layers"]):
        at = f"model.layers.{i}."
        for name, shape in shapes.items():
            stored[f"{at}{name}_proj.weight"] = torch.randn(*shape, generator=draw) * shape[1] ** -0.5
        for name in ("input_layernorm", "post_attention_layernorm"):
            stored[f"{at}{name}.weight"] = 1 + 0.1 * torch.randn(width, generator=draw)
    stored["model.norm.weight"] = 1 + 0.1 * torch.randn(width, generator=draw)
    if not tied:
        stored["lm_head.weight"] = torch.randn(vocabulary, width, generator=draw) * width**-0.5
    half = len(stored) // 2
    names = list(stored)
    save_file({name: stored[name] for name in names[:half]}, path / "model-00001-of-00002.safetensors")
    save_file({name: stored[name] for name in names[half:]}, path / "model-00002-of-00002.safetensors")
    (path / "config.json").write_text(json.dumps({**SIZES, "tie_word_embeddings": tied, "rope_parameters": rope}))
    return stored


def halves_turned(x: torch.Tensor, theta: float) -> torch.Tensor:
    """[users, heads, rows, size] turned as Hugging Face does: the first half of a head with the second."""
    rows, size = x.shape[-2:]
    turn = torch.arange(rows)[:, None] * theta ** (-torch.arange(0, size, 2) / size)
    cos, sin = (torch.cat([part, part], -1) for part in (turn.cos(), turn.sin()))
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


def by_the_stored_names(stored: dict[str, torch.Tensor], tokens: torch.Tensor, theta: float) -> torch.Tensor:
    """Logits from the weights as they lie in the folder, [out, in]."""

    def normed(x: torch.Tensor, name: str) -> torch.Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + SIZES["rms_norm_eps"]) * stored[f"{name}.weight"]

    x = stored["model.embed_tokens.weight"][tokens]
    for i in range(SIZES["num_hidden_layers"]):
        at = f"model.layers.{i}."
        h = normed(x, at + "input_layernorm")
        q, k, v = (
            (h @ stored[f"{at}self_attn.{name}_proj.weight"].T).unflatten(-1, (8, -1)).transpose(1, 2) for name in "qkv"
        )
        q, k = halves_turned(q, theta), halves_turned(k, theta)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(-2)
        x = x + mixed @ stored[at + "self_attn.o_proj.weight"].T
        h = normed(x, at + "post_attention_layernorm")
        gate, up = (h @ stored[f"{at}mlp.{name}_proj.weight"].T for name in ("gate", "up"))
        x = x + (F.silu(gate) * up) @ stored[at + "mlp.down_proj.weight"].T
    return normed(x, "model.norm") @ stored["lm_head.weight"].T


def test_a_folders_columns_are_turned_into_pairs(demo, tmp_path: Path) -> None:
    stored = llama_folder(tmp_path, ROPES["default"])
    files, decoder = importlib.import_module("llama_files"), importlib.import_module("llama_decoder")
    tokens = torch.randint(0, 512, (2, 40), generator=torch.Generator().manual_seed(0))
    sizes = files.read_sizes(tmp_path, 2, 64, 8)

    found = decoder.expected_logits(tokens, *files.read_llama(tmp_path, sizes), sizes)

    torch.testing.assert_close(found, by_the_stored_names(stored, tokens, 500.0), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("kind", ROPES)
def test_a_folder_of_hugging_faces_is_the_model_that_transformers_makes_of_it(
    demo, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    transformers = pytest.importorskip("transformers")
    stored = llama_folder(tmp_path, ROPES[kind])
    config = transformers.LlamaConfig(**SIZES, rope_parameters=ROPES[kind])
    config._attn_implementation = "eager"
    theirs = transformers.LlamaForCausalLM(config).eval()
    theirs.load_state_dict(stored)
    files, decoder = importlib.import_module("llama_files"), importlib.import_module("llama_decoder")
    prompts, tokens, logits = generated(demo, monkeypatch, folder=tmp_path, sampling=demo.GREEDY, weights=ttnn.bfloat16)
    whole = torch.cat([prompts, tokens.long()], 1)

    expected = theirs(whole).logits
    sizes = files.read_sizes(tmp_path, USERS, 64, demo.CHIPS)
    plain = decoder.expected_logits(whole, *files.read_llama(tmp_path, sizes), sizes)

    torch.testing.assert_close(plain, expected, rtol=1e-3, atol=1e-3)  # float32 both: the same model
    compare(prompts, tokens, logits, expected, BAND[ttnn.bfloat16])


def test_a_tied_head_is_the_embedding(demo, tmp_path: Path) -> None:
    stored = llama_folder(tmp_path, ROPES["default"], tied=True)
    files = importlib.import_module("llama_files")

    top, _ = files.read_llama(tmp_path, files.read_sizes(tmp_path, 1, 64, 8))

    assert torch.equal(top["head"], stored["model.embed_tokens.weight"].T)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"num_key_value_heads": 4}, "4 heads of keys and 512 tokens; 8 chips share multiples of 8"),
        ({"attention_bias": True}, "has biases"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "has rope_type 'yarn'"),
    ],
)
def test_what_the_demo_cannot_run_is_refused(demo, changes: dict[str, object], text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**SIZES, **changes}))

    with pytest.raises(ValueError, match=text):
        importlib.import_module("llama_files").read_sizes(tmp_path, 1, 64, 8)


def test_draws_repeat_with_their_seed_and_differ_without(demo) -> None:
    warm = {seed: demo.Sampling(top_k=32, top_p=0.95, temperature=1.5, seed=seed) for seed in (1, 2)}

    first, again, other = (demo.generate(USERS, 4, sampling=warm[seed]).tokens for seed in (1, 1, 2))

    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_one_candidate_a_cold_draw_and_a_small_share_are_greedy(demo, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each token is the likeliest; of two that are equally likely a draw may take either."""
    samplings = (
        demo.GREEDY,
        demo.Sampling(temperature=0.001),
        demo.Sampling(top_p=0.0),
        demo.Sampling(top_k=1, seed=9),
    )
    for sampling in samplings:
        with monkeypatch.context() as patches:
            _, tokens, logits = generated(demo, patches, sampling=sampling)

        chosen = logits.gather(-1, tokens.long().unsqueeze(-1)).squeeze(-1)
        assert torch.equal(chosen, logits.max(-1).values), sampling
