"""Calling a lane function: its arguments filled in, its shapes inferred, its result rounded once."""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
from collections.abc import Callable, Sequence
from types import CodeType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ttmesh.base.dtypes import BLOCK_FLOATS, INTEGERS, DataType, uint16, uint32
from ttmesh.chip.cells import Cell
from ttmesh.chip.formats.storage import finish, lane_dtype
from ttmesh.chip.numerics.packer import pack_lanes
from ttmesh.mesh.queue.command_queue import Body
from ttmesh.tensor.calls.meta_functions import defer_compiler
from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.tensor import Tensor

Lane = Callable[..., Any]
Arguments = dict[str, Any]
Positions = dict[str, int | list[int | None]]


Inferred = list[tuple[tuple[int, ...], torch.dtype]]
Wrap = Callable[[list[Tensor]], Any]

WARNS_WITHOUT_ELEMENTS = {getattr(home, name) for home in (torch, torch.Tensor) for name in ("var", "std")} | {
    torch.var_mean,
    torch.std_mean,
}
NARROWER = BLOCK_FLOATS | {uint16, uint32}  # formats that do not hold all that their lanes could


def infer(
    lane: Lane, positions: Positions, static: Arguments, specs: Sequence[TensorSpec], axes: int
) -> tuple[Inferred, Wrap]:
    """Local shapes and torch dtypes of the results, and the form in which they are returned.

    They come from one run on tensors without elements, whose first lane axis is empty. Where that is refused, or the
    function makes its own tensors, from one on meta, where torch runs Python code and imports a library for symbols.
    """
    if not any(isinstance(value, torch.Tensor) for value in static.values()):
        with contextlib.suppress(Exception), _NoElements():  # whatever is wrong is raised by the run on meta
            result = lane(**fill_arguments(positions, static, make_lanes(specs, (0, *[1] * (axes - 1)), "cpu")))
            return describe_results(result, axes), wrap_like(result)
    defer_compiler()
    result = lane(**fill_arguments(positions, static, make_lanes(specs, (1,) * axes, "meta")))
    return describe_results(result, axes), wrap_like(result)


class _NoElements(TorchFunctionMode):
    """Raises for functions about which torch warns if there are no elements."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in WARNS_WITHOUT_ELEMENTS:
            raise ValueError("torch warns of this function where there are no elements")
        return func(*args, **(kwargs or {}))


def make_lanes(specs: Sequence[TensorSpec], lane_shape: tuple[int, ...], device: str) -> list[torch.Tensor]:
    """Lanes of these specs with any values."""
    return [torch.empty((*lane_shape, *spec.shape), dtype=lane_dtype(spec.dtype), device=device) for spec in specs]


def describe_results(result: Any, axes: int) -> Inferred:
    """Local shapes and torch dtypes of results."""
    return [(tuple(value.shape[axes:]), value.dtype) for value in list_results(result)]


def list_results(result: Any) -> list[torch.Tensor]:
    """The results of a lane function as a list, without those that are None."""
    return [result] if isinstance(result, torch.Tensor) else [value for value in result if value is not None]


def only(results: list[Tensor]) -> Tensor:
    """The one result."""
    return results[0]


def wrap_like(result: Any) -> Wrap:
    """How results are returned: in the lane function's own list or tuple, None where it returned None."""
    if isinstance(result, torch.Tensor):
        return only
    container, present = type(result), [value is not None for value in result]
    if all(present):
        return container

    def wrap(results: list[Tensor]) -> Any:
        remaining = iter(results)
        return container(next(remaining) if there else None for there in present)

    return wrap


def static_arguments(
    wanted: frozenset[str], arguments: Arguments, specs: Sequence[TensorSpec], axes: int, device: torch.device
) -> Arguments:
    """The arguments that the lane function takes, with `lane_axes`, `specs` and `torch_device` if it names them."""
    # Tensors are replaced by None: a plan outlives the call it was made for and must not keep its tensors alive.
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
    """Which arguments are tensors, by their index among all tensors; lists stay lists."""
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


def fill_arguments(positions: Positions, static: Arguments, lanes: Sequence[torch.Tensor]) -> Arguments:
    """The arguments with lanes in place of tensors."""
    filled = dict(static)
    for name, place in positions.items():
        if name in static:
            if isinstance(place, int):
                filled[name] = lanes[place]
            else:
                filled[name] = [None if i is None else lanes[i] for i in place]
    return filled


def body_maker(
    lane: Lane,
    order: Sequence[str],
    positions: Positions,
    static: Arguments,
    changing: Sequence[str],
    in_specs: Sequence[TensorSpec],
    out_specs: Sequence[TensorSpec],
    *,
    single: bool,
    changed: str | None = None,
    packs: frozenset[DataType] = frozenset(),
) -> Callable[..., Body]:
    """Makes a command's body from the values of the changing arguments: read lanes, compute, round once, write.

    Args:
        order: the arguments that the lane function takes by place.
        changed: the argument whose values the lane function changes in place; they are taken out of the written cell.
        packs: formats that the chip's packer writes, to its bits.
    """
    places = tuple((name, place if isinstance(place, int) else tuple(place)) for name, place in positions.items())
    kept = {f"static_{name}": value for name, value in static.items() if name not in positions and name not in changing}
    kept.update({f"spec{i}": spec for i, spec in enumerate(in_specs)})
    kept.update(lane=lane, list_results=list_results, out=out_specs[0] if out_specs else None)
    if single:
        kept.update(round_=rounder(out_specs[0].dtype, packs), settled=_exact_dtype(out_specs[0].dtype, lane))
    kept["finishing"] = [(rounder(spec.dtype, packs), spec) for spec in out_specs]
    form = (tuple(order), places, tuple(static), tuple(changing), tuple(kept), single, changed)
    scope: dict[str, Any] = {}
    exec(_body_code(*form), scope)
    made: Callable[..., Body] = scope["keep"](**kept)
    return made


def make_empty_body(specs: Sequence[TensorSpec], axes: int, then: Callable[[], None] | None = None) -> Body:
    """The body of a program without values (backend meta): results have their shapes, and nothing is computed.

    Args:
        then: called at the end of every run.
    """
    results = [
        (torch.empty((*[1] * axes, *spec.shape), dtype=lane_dtype(spec.dtype), device="meta"), spec) for spec in specs
    ]

    def body(reads: Sequence[Cell], writes: Sequence[Cell]) -> None:
        for cell, (values, spec) in zip(writes, results, strict=True):
            cell.write(values, spec)
        if then is not None:
            then()

    return body


@functools.cache
def _body_code(
    order: tuple[str, ...],
    positions: tuple[tuple[str, int | tuple[int | None, ...]], ...],
    static: tuple[str, ...],
    changing: tuple[str, ...],
    kept: tuple[str, ...],
    single: bool,
    changed: str | None,
) -> CodeType:
    """The body as code: one call of the lane function with no dict in between. Plans of one form compile it once.

    Generated, because a closure that fills the arguments in takes 2.4 µs more, of 8 for a whole add on one tile.
    """
    places = dict(positions)
    cells = [name for name in kept if name.startswith("spec")]
    reads = [
        f"lane{i} = cell{i}.values if cell{i}.format is spec{i} else cell{i}.read(spec{i})"
        for i in _read_places(places, static, changed)
    ]

    def value(name: str) -> str:
        if name == changed:
            return "writes[0].take_out(out)"
        place = places.get(name)
        if isinstance(place, int):
            return f"lane{place}"
        if place is not None:
            return f"[{', '.join('None' if i is None else f'lane{i}' for i in place)}]"
        return f"given_{name}" if name in changing else f"static_{name}"

    in_order = list(itertools.takewhile(lambda name: name in static, order))
    by_name = [name for name in static if name not in in_order]
    call = f"lane({', '.join([*map(value, in_order), *(f'{name}={value(name)}' for name in by_name)])})"
    if changed is not None:
        compute = [f"writes[0].write({call}, out)"]
    elif single:
        compute = [
            f"result = {call}",
            "written = writes[0]",  # Cell.write without its frame
            "written.values = result if result.dtype is settled else round_(result)",
            "written.format, written.raw = out, None",
        ]
    else:
        compute = [
            f"for value, (round_, spec), cell in zip(list_results({call}), finishing, writes, strict=True):",
            "    cell.write(round_(value), spec)",
        ]
    lines = [
        f"def keep({', '.join(kept)}):",
        f" def make({', '.join(f'given_{name}' for name in changing)}):",
        "  def body(reads, writes):",
        *([f"   {', '.join(f'cell{i}' for i in range(len(cells)))}, = reads"] if cells else []),
        *(f"   {line}" for line in [*reads, *compute]),
        "  return body",
        " return make",
    ]
    return compile("\n".join(lines), "<ttmesh body of an operation>", "exec")


def _read_places(
    places: dict[str, int | tuple[int | None, ...]], static: tuple[str, ...], changed: str | None
) -> list[int]:
    """Which tensors are read before the call; one that is changed in place is taken out last, when nothing else holds it."""
    found: list[int] = []
    for name, place in places.items():
        if name in static and name != changed:
            found += [place] if isinstance(place, int) else [i for i in place if i is not None]
    return found


def by_place(lane: Lane) -> Sequence[str]:
    """The parameters that can be passed by position, which is faster."""
    parameters = inspect.signature(lane).parameters.values()
    return tuple(p.name for p in itertools.takewhile(lambda p: p.kind is p.POSITIONAL_OR_KEYWORD, parameters))


def rounds_result(lane: Lane) -> Lane:
    """Mark a lane function whose results, where they have the lanes' dtype, are values of the output format already."""
    lane.rounds_result = True  # type: ignore[attr-defined]
    return lane


def _exact_dtype(dtype: DataType, lane: Lane) -> torch.dtype | None:
    """The torch dtype in which a result needs no rounding; None for formats that are narrower than their lanes."""
    is_open = dtype in NARROWER and not getattr(lane, "rounds_result", False)
    return None if is_open else lane_dtype(dtype)


def rounder(dtype: DataType, packs: frozenset[DataType] = frozenset()) -> Callable[[torch.Tensor], torch.Tensor]:
    """Rounds a computed result once to the output format.

    Args:
        packs: formats that the chip's packer writes, to its bits.
    """
    wanted = lane_dtype(dtype)
    if dtype in packs:
        return lambda values: pack_lanes(values, dtype) if values.is_floating_point() else finish(values, dtype)
    if dtype in BLOCK_FLOATS or dtype in INTEGERS:
        return lambda values: finish(values, dtype)

    def round_values(values: torch.Tensor) -> torch.Tensor:
        if values.dtype is torch.bool:
            values = values.view(torch.uint8)  # torch converts bytes several times faster than bools
        return values if values.dtype is wanted else values.to(wanted)

    return round_values
