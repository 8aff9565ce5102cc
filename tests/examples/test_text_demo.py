"""The text demo: replayed steps are eager ones, a folder with a Llama is read, the documents' command runs it."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

ROOT = Path(__file__).parents[2]


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TTMESH_SYSTEM", "t3k")
    monkeypatch.setattr(sys, "path", [str(ROOT / "examples"), str(ROOT / "examples" / "models"), *sys.path])
    with torch.no_grad():
        yield importlib.import_module("text_demo")


def test_replayed_steps_are_eager_steps(demo, capsys: pytest.CaptureFixture[str]) -> None:
    replayed = demo.generate(4, 5)
    eager = demo.generate(4, 5, traced=False)

    assert "Capturing the decode trace" in capsys.readouterr().out
    assert torch.equal(replayed.tokens, eager.tokens)
    assert not torch.equal(replayed.tokens, demo.generate(4, 5, sampling=demo.Sampling(seed=1)).tokens)


def test_a_llama_from_a_folder_is_the_same_model(demo, tmp_path: Path) -> None:
    sizes = demo.Sizes(layers=2, users=2, length=64, kv_heads=demo.CHIPS, vocabulary=256)
    top, layers = demo.draw_weights(torch.Generator().manual_seed(0), sizes)

    def halves(weight: torch.Tensor) -> torch.Tensor:
        return weight.unflatten(-1, (-1, sizes.size // 2, 2)).transpose(-1, -2).flatten(-3).T.contiguous()

    stored = {
        "model.embed_tokens.weight": top["embedding"],
        "lm_head.weight": top["head"].T.contiguous(),
        "model.norm.weight": top["norm"].flatten(),
    }
    names = {"v": "self_attn.v", "out": "self_attn.o", "gate": "mlp.gate", "up": "mlp.up", "down": "mlp.down"}
    for i, layer in enumerate(layers):
        at = f"model.layers.{i}."
        stored |= {f"{at}{name}_proj.weight": layer[key].T.contiguous() for key, name in names.items()}
        stored |= {f"{at}self_attn.{key}_proj.weight": halves(layer[key]) for key in "qk"}
        stored[at + "input_layernorm.weight"] = layer["norm1"].flatten()
        stored[at + "post_attention_layernorm.weight"] = layer["norm2"].flatten()
    save_file(stored, tmp_path / "model.safetensors")
    config = {
        "num_hidden_layers": 2, "hidden_size": sizes.width, "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.kv_heads, "intermediate_size": sizes.hidden, "vocab_size": 256,
        "rms_norm_eps": sizes.epsilon,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))

    assert torch.equal(demo.generate(2, 3, folder=tmp_path).tokens, demo.generate(2, 3).tokens)


def test_the_documents_command_runs_it_without_a_checkout(tmp_path: Path) -> None:
    path = "models/tt_transformers/demo/simple_text_demo.py"
    environment = dict(os.environ, TTMESH_SYSTEM="t3k", PYTHONPATH=str(ROOT / "src"), TT_COORDINATOR_DEVICE_ID="3")
    plugin = ["-p", "ttmesh.testing.plugin"] if not _installed() else []

    done = subprocess.run(
        [sys.executable, "-m", "pytest", *plugin, path, "-k", "performance and batch-32", "-s"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed, 2 deselected" in done.stdout
    assert "Capturing the decode trace" in done.stdout
    assert "tokens/s" in done.stdout
    rows = [line for line in done.stdout.splitlines() if line.startswith("Device ")]
    assert [line.split(":")[0] for line in rows if "coordinator" in line] == ["Device 3"]
    assert len({line.split(", L1 ")[0].split(": ")[1] for line in rows}) == 1  # DRAM and TRACE are equal everywhere
    ordinary = {line.split(", L1 ")[1] for line in rows if "coordinator" not in line}
    assert len(ordinary) == 1


def _installed() -> bool:
    from importlib.metadata import entry_points

    return any(entry.value == "ttmesh.testing.plugin" for entry in entry_points(group="pytest11"))
