"""`make bench`: rows know whether they reach their aim; the table and the picture show every one."""

from __future__ import annotations

import ast
import importlib.util
import io
import re
from pathlib import Path

import bench_picture
import bench_rows
import pytest
import table
from bench_rows import BenchRow
from rich.console import Console

ROOT = Path(__file__).parent.parent
AHEAD = BenchRow("add", "µs", 5.0, {"JAX": 20.0, "gloo": 10.0}, peer_aim=1.0)
BEHIND = BenchRow("sum", "µs", 15.0, {"JAX": 20.0, "gloo": 10.0}, peer_aim=1.0)
ALONE = BenchRow("gather", "µs", 5.0, peer_aim=1.0)
OVER = BenchRow("copy", "ms", 3.0, {"JAX": 9.0}, 1.0, "memcpy", peer_aim=1.0, limit_aim=2.5)
UNJUDGED = BenchRow("launch", "s", 0.5)
PEERS = {"jax", "mpi4py"}  # installed where they are compared with


@pytest.mark.parametrize(("row", "met"), [(AHEAD, True), (BEHIND, False), (ALONE, False), (OVER, False)])
def test_a_row_is_met_when_the_best_peer_and_the_limit_are(row, met):
    assert row.has_aim
    assert row.is_met is met


def test_the_best_peer_is_the_fastest():
    assert AHEAD.best_peer == ("gloo", 10.0)
    assert AHEAD.peer_ratio == 0.5


def test_noted_rows_come_back_with_their_group(tmp_path, monkeypatch):
    file = tmp_path / "rows"
    monkeypatch.setenv(bench_rows.FILE, str(file))

    bench_rows.note(AHEAD, OVER)

    assert [(row.name, row.group, row.is_met) for row in bench_rows.read_rows(file, "ops")] == [
        ("add", "ops", True), ("copy", "ops", False),
    ]  # fmt: skip


def test_nothing_is_noted_when_nobody_collects(monkeypatch, tmp_path):
    monkeypatch.delenv(bench_rows.FILE, raising=False)

    bench_rows.note(AHEAD)

    assert bench_rows.read_rows(tmp_path / "rows", "ops") == []


def test_the_table_names_what_misses_its_aim():
    console = Console(width=160, record=True, file=io.StringIO())

    console.print(table.make_table([AHEAD, BEHIND, UNJUDGED]))
    lines = {line.split()[1]: line for line in console.export_text().splitlines() if len(line.split()) > 1}

    assert "met" in lines["add"]
    assert "MISSED" in lines["sum"]
    assert "aim" not in lines["launch"]


def test_the_picture_shows_every_row_with_a_ratio():
    picture = bench_picture.draw([AHEAD, BEHIND, OVER, UNJUDGED])

    assert picture.count("<rect") == 1 + 3
    assert ">add<" in picture
    assert "launch" not in picture


@pytest.mark.parametrize("name", table.BENCHMARKS)
def test_every_benchmark_of_the_table_notes_rows(name):
    source = (ROOT / "benchmarks" / f"{name}.py").read_text()

    assert re.search(r"\bnote\(", source)


def test_every_module_that_a_benchmark_imports_is_there():
    missing = []
    for path in (ROOT / "benchmarks").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module]
            roots = {name.partition(".")[0] for name in names} - PEERS
            missing += [f"{path.name}: {root}" for root in roots if importlib.util.find_spec(root) is None]
    assert not missing
