"""Tensors that meet lanes are made where the lanes are: a GPU computes nothing from one on the host."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "ttmesh"
LAYERS = ("ops", "ccl")
FACTORIES = {"arange", "empty", "eye", "full", "linspace", "ones", "rand", "randn", "tensor", "zeros"}
# Files that make host tensors on purpose: what users pass to from_torch, messages between processes, plans of numbers.
ON_THE_HOST = {
    "ccl/sockets/rank_sockets.py",
    "ccl/sockets/stream_ends.py",
    "ops/attention/block_cyclic_cache.py",
    "ops/creation/full.py",
    "ops/creation/token_sampling.py",  # one number per user, drawn by torch's generator of the host
    "ops/elementwise/ternary.py",
    "ops/lane_functions/binary_functions.py",  # a number as a tensor without dims, which any device takes
    "ops/norm/group_norm_grids.py",
    "ops/stages/reshape_map.py",
}


def _calls_without_device(path: Path) -> Iterator[int]:
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        is_factory = isinstance(node.func.value, ast.Name) and node.func.value.id == "torch"
        if is_factory and node.func.attr in FACTORIES and "device" not in {k.arg for k in node.keywords}:
            yield node.lineno


def test_factories_in_operations_and_collectives_name_their_device() -> None:
    found = {
        f"{path.relative_to(SOURCE)}": lines
        for layer in LAYERS
        for path in sorted((SOURCE / layer).rglob("*.py"))
        if "goldens" not in path.parts and (lines := list(_calls_without_device(path)))
    }

    assert {name: lines for name, lines in found.items() if name not in ON_THE_HOST} == {}
    assert found.keys() >= ON_THE_HOST, "listed, but it makes no host tensor any more"
