"""The order in which pipeline stages process the micro-batches of a step: plain lists, nothing runs here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ttmesh.base.errors import MeshError


@dataclass(frozen=True)
class Action:
    """The forward or backward pass of one micro-batch in one stage."""

    stage: int
    micro: int
    forward: bool


Plan = list[list[Action]]  # per stage, in its order


def gpipe(stages: int, micro_batches: int) -> Plan:
    """All micro-batches forwards, then all backwards: simple, but all activations are kept until the backward passes."""
    order = [(micro, True) for micro in range(micro_batches)] + [(micro, False) for micro in range(micro_batches)]
    return [[Action(stage, *item) for item in order] for stage in range(stages)]


def one_forward_one_backward(stages: int, micro_batches: int) -> Plan:
    """A stage runs backward passes as early as it can: stage s of S keeps at most S - s micro-batches' activations."""
    plan: Plan = []
    for stage in range(stages):
        ahead = min(stages - 1 - stage, micro_batches)
        order = [Action(stage, micro, True) for micro in range(ahead)]
        for micro in range(micro_batches):
            if micro + ahead < micro_batches:
                order.append(Action(stage, micro + ahead, True))
            order.append(Action(stage, micro, False))
        plan.append(order)
    return plan


SCHEDULES: dict[str, Callable[[int, int], Plan]] = {"gpipe": gpipe, "1f1b": one_forward_one_backward}


def make_plan(schedule: str, stages: int, micro_batches: int) -> Plan:
    """The plan of the schedule with this name."""
    if schedule not in SCHEDULES:
        raise MeshError(
            f"no pipeline schedule named {schedule!r}",
            expected=f"one of {sorted(SCHEDULES)}",
            fix="Pass one of these names as schedule.",
        )
    if micro_batches < 1:
        raise MeshError(
            f"a step of {micro_batches} micro-batches",
            expected="one or more; at least as many as stages keep all stages busy",
            fix="Pass a positive number as micro_batches.",
        )
    return SCHEDULES[schedule](stages, micro_batches)


def order_actions(plan: Plan) -> list[Action]:
    """The actions of all stages in one order in which every action follows those it depends on."""
    positions = [0] * len(plan)
    done: set[Action] = set()
    order: list[Action] = []
    while len(order) < sum(len(actions) for actions in plan):
        ready = [
            actions[position]
            for actions, position in zip(plan, positions, strict=True)
            if position < len(actions) and _find_requirements(actions[position], len(plan)) <= done
        ]
        assert ready, "a plan whose actions wait for each other"
        for action in ready:
            positions[action.stage] += 1
        order += ready
        done.update(ready)
    return order


def _find_requirements(action: Action, stages: int) -> set[Action]:
    """The action of a neighbouring stage that must come first."""
    before = action.stage - 1 if action.forward else action.stage + 1
    return {Action(before, action.micro, action.forward)} if 0 <= before < stages else set()
