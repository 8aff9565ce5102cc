"""The example models agree with torch in every placement."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
import torch

from ttmesh.showcase import model_placement

FOLDER = Path(__file__).parents[2] / "examples" / "models"


@pytest.mark.parametrize(
    ("module", "model"),
    [("mlp", "mlp"), ("resnet_block", "block"), ("bert_encoder", "encoder"), ("llama_decoder", "decoder")],
)
def test_model_agrees_with_torch_on_every_mesh(
    module: str, model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TTMESH_SYSTEM", "t3k")
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
    example = importlib.import_module(module)

    with torch.no_grad():
        problems = model_placement.run(module, getattr(example, model))

    assert problems == 0
    assert "memory per device" in capsys.readouterr().out
    example.HELD.clear()
