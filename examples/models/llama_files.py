"""A Llama from a folder as Hugging Face stores it: config.json, safetensors, and tokenizer.json where there is one."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from llama_decoder import Scaling, Sizes, Weights
from safetensors import safe_open


class Bytes:
    """The tokenizer of random weights: a byte is a token."""

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, tokens: list[int]) -> str:
        return bytes(t % 256 for t in tokens).decode(errors="replace")


def tokenizer_of(folder: Path | None) -> Bytes:
    """The folder's tokenizer, else bytes."""
    if folder is None or not (folder / "tokenizer.json").exists():
        return Bytes()
    try:
        from tokenizers import Tokenizer
    except ImportError:
        print("tokenizers is not installed: bytes are used as tokens")
        return Bytes()
    inner = Tokenizer.from_file(str(folder / "tokenizer.json"))

    class Words(Bytes):
        def encode(self, text: str) -> list[int]:
            return inner.encode(text).ids

        def decode(self, tokens: list[int]) -> str:
            return inner.decode(tokens)

    return Words()


def read_sizes(folder: Path, users: int, length: int, chips: int) -> Sizes:
    """What config.json says; what the demo cannot run is refused here."""
    config = json.loads((folder / "config.json").read_text())
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    scaling = None
    if kind == "llama3":
        names = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
        scaling = Scaling(*(rope[name] for name in names))
    elif kind != "default":
        raise ValueError(f"{folder} has rope_type {kind!r}; this demo knows 'default' and 'llama3'")
    if config.get("attention_bias") or config.get("mlp_bias"):
        raise ValueError(f"{folder} has biases; this demo knows Llamas without")
    heads, kv_heads = config["num_attention_heads"], config.get("num_key_value_heads", config["num_attention_heads"])
    if kv_heads % chips or config["vocab_size"] % (32 * chips):
        raise ValueError(
            f"{folder} has {kv_heads} heads of keys and {config['vocab_size']} tokens; {chips} chips share multiples of "
            f"{chips} and of {32 * chips}"
        )
    return Sizes(
        config["num_hidden_layers"], users, length, config["hidden_size"], heads, kv_heads, config["intermediate_size"],
        config["vocab_size"], rope.get("rope_theta", config.get("rope_theta", 10000.0)),
        config.get("rms_norm_eps", 1e-6), config.get("head_dim"), scaling,
    )  # fmt: skip


def read_llama(folder: Path, sizes: Sizes) -> tuple[Weights, list[Weights]]:
    """Its weights as [in, out]: embedding, head and last norm, then every layer's."""
    found: Weights = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "pt") as opened:
            found |= {name: opened.get_tensor(name).float() for name in opened.keys()}  # noqa: SIM118

    def matrix(name: str) -> torch.Tensor:
        return found[name].T.contiguous()

    def neighbours(name: str) -> torch.Tensor:
        """Columns of each head from halves, as Hugging Face rotates them, to pairs of neighbours."""
        halves = matrix(name).unflatten(-1, (-1, 2, sizes.size // 2))
        return halves.transpose(-1, -2).flatten(-3)

    layers = []
    for i in range(sizes.layers):
        at = f"model.layers.{i}."
        layers.append(
            {
                "q": neighbours(at + "self_attn.q_proj.weight"), "k": neighbours(at + "self_attn.k_proj.weight"),
                "v": matrix(at + "self_attn.v_proj.weight"), "out": matrix(at + "self_attn.o_proj.weight"),
                "gate": matrix(at + "mlp.gate_proj.weight"), "up": matrix(at + "mlp.up_proj.weight"),
                "down": matrix(at + "mlp.down_proj.weight"),
                "norm1": found[at + "input_layernorm.weight"].reshape(1, -1),
                "norm2": found[at + "post_attention_layernorm.weight"].reshape(1, -1),
            }
        )  # fmt: skip
    embedding = found["model.embed_tokens.weight"]
    head = found.get("lm_head.weight", embedding).T.contiguous()  # some share the embedding
    return {"embedding": embedding, "head": head, "norm": found["model.norm.weight"].reshape(1, -1)}, layers
