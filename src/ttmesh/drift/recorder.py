"""Watches a program run and records, for every program on the chips, what it lost and what was lost before it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from ttmesh.base import numerics_mode
from ttmesh.base.dtypes import FLOATS
from ttmesh.chip.cells import Cell, merge_lanes
from ttmesh.drift.call_places import Places
from ttmesh.drift.measures import Distance, measure
from ttmesh.drift.remedies import Trial, describe_format, fidelity_of, is_matmul, products_of, trials
from ttmesh.drift.shadows import Shadows, widen_all
from ttmesh.mesh.queue.command_queue import Body
from ttmesh.tensor.calls.plan import Plan
from ttmesh.tensor.observer import LaunchedProgram, Watcher, observer
from ttmesh.tensor.tensor import Tensor

RANDOM = (
    "rand",
    "dropout",
    "bernoulli",
    "sampling",
    "uniform",
)  # operations that draw numbers: no second run gives the same
WORTH_TRYING = 1e-7  # 1 - PCC that an operation must lose by itself before settings are tried


@dataclass
class Alternative:
    """Another way to compute the same: how far it is from float32, and its cost."""

    label: str
    distance: Distance
    cost: str


@dataclass
class Record:
    """One run of one program on the chips."""

    index: int
    name: str
    module: str
    site: str
    mode: str
    shape: tuple[int, ...]
    dtype: str
    setting: str
    total: Distance  # from a run of everything in float32
    own: Distance  # from float32 on the very inputs it got
    followed: bool  # whether float32 could follow it; else its result is taken as it is
    output: int = 0  # which of its results
    buffer_id: int = 0  # what that was written to
    modes: list[Alternative] = field(default_factory=list)
    remedies: list[Alternative] = field(default_factory=list)


class DriftRecorder(Watcher):
    """Use it in a `with` block; `records` are in the order in which programs ran, replays of traces included."""

    def __init__(self, *, try_settings: bool = True) -> None:
        self.records: list[Record] = []
        self.places = Places()
        self._shadows = Shadows()
        self._try_settings = try_settings
        self._lock = threading.RLock()

    def __enter__(self) -> DriftRecorder:
        observer.add(self)
        return self

    def __exit__(self, *problem: object) -> None:
        observer.remove(self)

    def add(self, record: Record) -> None:
        """Keep what was found about one result."""
        self.records.append(record)

    def after_from_torch(self, tensor: Tensor, unrounded: Callable[[], torch.Tensor]) -> None:
        """Keep the values before they were rounded."""
        with self._lock:
            self._shadows.remember_original(tensor.lanes, unrounded())

    def after_sending(self, host: Tensor, sent: torch.Tensor) -> None:
        """What is sent is rounded from the same values."""
        with self._lock:
            self._shadows.follow_transfer(host.lanes, sent)

    def wrap_body(self, plan: Plan, launch: LaunchedProgram, body: Body) -> Body:
        """Measure it whenever it runs."""
        place, mode = self.places.find(), numerics_mode.current()
        others = list(trials(launch)) if self._try_settings else []
        setting = _describe_setting(launch)
        # Not the launch itself: it holds the tensors of the call, which a trace would keep alive.
        compute, specs, chips = launch.compute, launch.specs, launch.chips
        leaf_names = [f"input {i}" for i in range(len(specs))]
        if is_matmul(launch):
            leaf_names[:3] = ["activations", "weights", "bias"][: len(specs)]
        name, draws = launch.name, any(word in launch.name for word in RANDOM)
        weighty = products_of(launch) > 0

        def compute_and_record(reads: Sequence[Cell], writes: Sequence[Cell]) -> None:
            with self._lock:
                shadows = [self._shadows.find(cell, spec) for cell, spec in zip(reads, specs, strict=True)]
                actual = widen_all(reads, specs)
                tried = [(trial, _run_trial(trial, reads, writes, plan)) for trial in others]
                body(reads, writes)
                ideal = None if draws else _compute(compute, [lanes for lanes, _ in shadows], plan)
                alone = None if draws else _compute(compute, actual, plan)
                for i, (cell, kind) in enumerate(zip(writes, plan.kinds, strict=False)):
                    spec = kind.spec
                    held = cell.read(spec)
                    if spec.dtype not in FLOATS:
                        continue
                    followed = ideal is not None and alone is not None
                    wanted = held.float() if ideal is None else ideal[i].float()
                    wanted_alone = held.float() if alone is None else alone[i].float()
                    if chips is not None:
                        old = held.float()
                        wanted = merge_lanes(old, wanted, *chips)
                        wanted_alone = merge_lanes(old, wanted_alone, *chips)
                    record = Record(
                        *(len(self.records), name, place.module, place.site, mode, tuple(spec.shape)),
                        *(spec.dtype.name.lower(), setting, measure(held, wanted, spec.dtype)),
                        *(measure(held, wanted_alone, spec.dtype), followed, i),
                        buffer_id=cell.buffer_id,
                    )
                    for trial, results in tried:
                        if results is not None:
                            finding = Alternative(
                                trial.label, measure(results[i], wanted_alone, spec.dtype), trial.cost
                            )
                            (record.modes if trial.label.startswith("mode ") else record.remedies).append(finding)
                    if weighty and self._try_settings and alone is not None and i == 0:
                        record.remedies += _try_formats(compute, actual, shadows, specs, leaf_names, alone[0], plan)
                    if record.own.lost < WORTH_TRYING:
                        record.remedies = [
                            finding for finding in record.remedies if finding.label.startswith("format ")
                        ]
                    self._shadows.keep(cell, wanted)
                    self.add(record)

        return compute_and_record


def _run_trial(trial: Trial, reads: Sequence[Cell], writes: Sequence[Cell], plan: Plan) -> list[torch.Tensor] | None:
    results = [cell.copy() for cell in writes]
    try:
        trial.body(reads, results)
    except (RuntimeError, ValueError, NotImplementedError):  # a setting that this call cannot have
        return None
    return [cell.read(kind.spec) for cell, kind in zip(results, plan.kinds, strict=False)]


def _compute(
    compute: Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]], lanes: Sequence[torch.Tensor], plan: Plan
) -> list[torch.Tensor] | None:
    """The results in float32, or None where the operation has no such form."""
    try:
        with torch.no_grad():
            found = list(compute(lanes))
    except (RuntimeError, ValueError, TypeError, NotImplementedError, IndexError):
        return None
    return found if len(found) == len(plan.kinds) else None


def _try_formats(
    compute: Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]],
    actual: Sequence[torch.Tensor],
    shadows: Sequence[tuple[torch.Tensor, bool]],
    specs: Sequence[object],
    names: Sequence[str],
    alone: torch.Tensor,
    plan: Plan,
) -> list[Alternative]:
    """What the formats of inputs that came from the host lose: the result with one of them as it was before rounding."""
    found = []
    for i, (lanes, leaf) in enumerate(shadows):
        better = describe_format(specs[i])  # type: ignore[arg-type]
        if not leaf or better is None or torch.equal(lanes.expand_as(actual[i]), actual[i]):
            continue
        results = _compute(compute, [*actual[:i], lanes, *actual[i + 1 :]], plan)
        if results is not None:
            distance = measure(alone, results[0].float(), plan.kinds[0].spec.dtype)
            found.append(Alternative(f"format of {names[i]}: {better[0]}", distance, better[1]))
    return found


def _describe_setting(launch: LaunchedProgram) -> str:
    formats = " x ".join(spec.dtype.name.lower() for spec in launch.specs[:2])
    if not is_matmul(launch):
        return formats
    given = launch.arguments.get("compute_kernel_config")
    wide = "" if given is None else f", {'32' if given.fp32_dest_acc_en else '16'}-bit destination"
    return f"{formats}, {fidelity_of(launch).name}{wide}"
