"""Tensors are made where ttmesh says, not where the program's torch would: those that meet lanes where the lanes are."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).parents[1] / "src" / "ttmesh"
LAYERS = ("ops/", "ccl/")
FACTORIES = {"arange", "empty", "eye", "full", "linspace", "ones", "rand", "randn", "tensor", "zeros"}
# Files that make host tensors on purpose: what users pass to from_torch, messages between processes, plans of numbers.
ON_THE_HOST = {
    "ccl/experts/selective_combine.py",
    "ccl/sockets/host_sockets.py",
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


MENTIONED = re.compile(rf"torch\.({'|'.join(FACTORIES)})\(")
SET_BY_TORCH = FACTORIES - {"arange"}  # their elements have torch's default dtype unless another is named


class _Call(NamedTuple):
    path: str
    line: int
    name: str
    given: dict[str | None, ast.expr]


@functools.cache
def _factory_calls() -> list[_Call]:
    """Every call of torch's factories; goldens are functions of torch, and follow what is set for it."""
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        text = path.read_text()
        if "goldens" in path.parts or not MENTIONED.search(text):
            continue
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            if isinstance(node.func.value, ast.Name) and node.func.value.id == "torch" and node.func.attr in FACTORIES:
                given = {keyword.arg: keyword.value for keyword in node.keywords}
                found.append(_Call(f"{path.relative_to(SOURCE)}", node.lineno, node.func.attr, given))
    return found


def _is_on_the_host(device: ast.expr | None) -> bool:
    return device is None or (isinstance(device, ast.Constant) and device.value == "cpu")


def test_factories_in_operations_and_collectives_name_the_device_of_the_lanes() -> None:
    found = {
        call.path
        for call in _factory_calls()
        if call.path.startswith(LAYERS) and _is_on_the_host(call.given.get("device"))
    }

    assert found - ON_THE_HOST == set()
    assert found >= ON_THE_HOST, "listed, but it makes no host tensor any more"


def test_no_tensor_is_made_as_the_program_set_torch_s_defaults() -> None:
    """A program may call torch.set_default_dtype or torch.set_default_device: a kernel would write where no memory is."""
    found = [
        f"{call.path}:{call.line}"
        for call in _factory_calls()
        if "device" not in call.given or (call.name in SET_BY_TORCH and "dtype" not in call.given)
    ]

    assert found == []
