"""Calling a lane function: its arguments filled in, its shapes inferred on meta, its result rounded once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ttmesh.base.dtypes import BLOCK_FLOATS, INTEGERS, DataType
from ttmesh.chip.formats.storage import finish, lane_dtype
from ttmesh.mesh.command_queue import Body, Cells
from ttmesh.tensor.spec import TensorSpec
from ttmesh.tensor.tensor import Tensor

Lane = Callable[..., Any]
Arguments = dict[str, Any]
Positions = dict[str, int | list[int | None]]


Inferred = list[tuple[tuple[int, ...], torch.dtype]]
Wrap = Callable[[list[Tensor]], Any]


def infer(
    lane: Lane, positions: Positions, static: Arguments, specs: Sequence[TensorSpec], axes: int
) -> tuple[Inferred, Wrap]:
    """Local shapes and torch dtypes of the results, from one run on meta, and how the results are handed out."""
    lanes = [torch.empty((*[1] * axes, *spec.shape), dtype=lane_dtype(spec.dtype), device="meta") for spec in specs]
    result = lane(**filled(positions, static, lanes))
    return described(result, axes), wrap_like(result)


def described(result: Any, axes: int) -> Inferred:
    """Local shapes and torch dtypes of results."""
    return [(tuple(part.shape[axes:]), part.dtype) for part in parts_of(result)]


def parts_of(result: Any) -> list[torch.Tensor]:
    """The results that a lane function gave, without the places it left empty."""
    return [result] if isinstance(result, torch.Tensor) else [part for part in result if part is not None]


def only(results: list[Tensor]) -> Tensor:
    """The one result."""
    return results[0]


def wrap_like(result: Any) -> Wrap:
    """Results are handed out in the lane function's own list or tuple, None where it gave none."""
    if isinstance(result, torch.Tensor):
        return only
    container, present = type(result), [part is not None for part in result]
    if all(present):
        return container

    def wrap(results: list[Tensor]) -> Any:
        remaining = iter(results)
        return container(next(remaining) if there else None for there in present)

    return wrap


def static_arguments(
    wanted: frozenset[str], arguments: Arguments, specs: Sequence[TensorSpec], axes: int, device: torch.device
) -> Arguments:
    """The arguments that the lane function takes, and what it asks the machinery for."""
    # Tensors leave an empty place: a plan outlives the call it was made for and must not keep its tensors alive.
    static = {name: None if holds_tensor(value) else value for name, value in arguments.items() if name in wanted}
    if "lane_axes" in wanted:
        static["lane_axes"] = axes
    if "specs" in wanted:
        static["specs"] = specs
    if "torch_device" in wanted:
        static["torch_device"] = device
    return static


def holds_tensor(value: Any) -> bool:
    """Whether an argument is a tensor or a list with one."""
    if type(value) in (list, tuple):
        return any(type(item) is Tensor for item in value)
    return type(value) is Tensor


def positions_of(arguments: Arguments) -> Positions:
    """Which arguments are tensors, and which number among all tensors; lists keep their places."""
    positions: Positions = {}
    count = 0
    for name, value in arguments.items():
        if type(value) is Tensor:
            positions[name] = count
            count += 1
        elif type(value) in (list, tuple) and any(type(item) is Tensor for item in value):
            places: list[int | None] = []
            for item in value:
                places.append(count if type(item) is Tensor else None)
                count += type(item) is Tensor
            positions[name] = places
    return positions


def filled(positions: Positions, static: Arguments, lanes: Sequence[torch.Tensor]) -> Arguments:
    """The arguments with lanes where the tensors were."""
    filled = dict(static)
    for name, place in positions.items():
        if name in static:
            if isinstance(place, int):
                filled[name] = lanes[place]
            else:
                filled[name] = [None if i is None else lanes[i] for i in place]
    return filled


def body_of(
    lane: Lane,
    positions: Positions,
    static: Arguments,
    in_specs: Sequence[TensorSpec],
    out_specs: Sequence[TensorSpec],
    *,
    single: bool,
) -> Body:
    """The command's body: read lanes, compute, round once, write. The common arities avoid building dicts."""
    rounders = [rounder(spec.dtype) for spec in out_specs]
    plain = all(isinstance(place, int) and name in static for name, place in positions.items())
    rest = {name: value for name, value in static.items() if name not in positions}
    if plain and single and len(in_specs) in (1, 2):
        names = list(positions)
        round_, out = rounders[0], out_specs[0]
        if len(in_specs) == 1:
            (name,), (spec,) = names, in_specs

            def one(reads: Cells, writes: Cells) -> None:
                writes[0].write(round_(lane(**{name: reads[0].read(spec)}, **rest)), out)

            return one
        first, second = names
        spec_a, spec_b = in_specs

        def two(reads: Cells, writes: Cells) -> None:
            result = lane(**{first: reads[0].read(spec_a), second: reads[1].read(spec_b)}, **rest)
            writes[0].write(round_(result), out)

        return two

    def many(reads: Cells, writes: Cells) -> None:
        lanes = [cell.read(spec) for cell, spec in zip(reads, in_specs, strict=True)]
        results = lane(**filled(positions, static, lanes))
        for part, round_, cell, spec in zip(parts_of(results), rounders, writes, out_specs, strict=True):
            cell.write(round_(part), spec)

    return many


def in_place_body(
    lane: Lane, changed: str, positions: Positions, static: Arguments, in_specs: Sequence[TensorSpec], out: TensorSpec
) -> Body:
    """Take the changed tensor's values out of its cell, let the lane function change them, put them back."""
    place = positions[changed]
    assert isinstance(place, int), "the changed argument is a tensor"

    def body(reads: Cells, writes: Cells) -> None:
        lanes: list[Any] = [
            None if i == place else cell.read(spec) for i, (cell, spec) in enumerate(zip(reads, in_specs, strict=True))
        ]
        lanes[place] = writes[0].take_out(out)
        writes[0].write(lane(**filled(positions, static, lanes)), out)

    return body


def rounder(dtype: DataType) -> Callable[[torch.Tensor], torch.Tensor]:
    """Rounds a computed result once to the output format."""
    wanted = lane_dtype(dtype)
    if dtype in BLOCK_FLOATS or dtype in INTEGERS:
        return lambda values: finish(values, dtype)
    return lambda values: values if values.dtype is wanted else values.to(wanted)
