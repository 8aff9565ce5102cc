"""The training examples and the vision pipeline run with small settings and do what they say."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path

import pytest

from ttmesh.showcase.training_curves import Curves

FOLDER = Path(__file__).parents[2] / "examples"


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TTMESH_SYSTEM", "t3k")
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
    return importlib.import_module


def test_the_cnn_learns_and_draws_its_curves(load, tmp_path: Path) -> None:
    curves, _ = load("train_cnn").train(6, 4, tmp_path)

    assert curves.losses[-1] < curves.losses[0]
    assert list(tmp_path.glob("train_cnn.*"))
    assert all(used > 0 for used in curves.dram_bytes)


def test_the_gpt_learns_from_a_replayed_trace(load, tmp_path: Path) -> None:
    curves = load("train_gpt").train(6, tmp_path)

    assert curves.losses[-1] < curves.losses[0] - 0.5
    assert list(tmp_path.glob("train_gpt.*"))


def test_the_gpt_in_stages_learns(load, tmp_path: Path) -> None:
    curves = load("train_stages").train(1, tmp_path)

    assert len(curves.losses) == 7
    assert curves.losses[-1] < curves.losses[0] - 0.5
    assert list(tmp_path.glob("train_stages.*"))


def test_curves_are_text_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    curves = Curves("run", losses=[3.0, 2.0, 1.0], dram_bytes=[2**20] * 3, peak_bytes=[2**21] * 3)

    path = curves.save(tmp_path / "run.png")

    assert path.suffix == ".txt"
    assert "█▅▁ 1" in path.read_text()


def test_the_vision_pipeline_serves_in_every_configuration(load) -> None:
    rates = load("vision_pipeline").serve(7, 2)

    assert set(rates) == {"plain", "traced", "traced, two queues", "pipelined I/O"}
