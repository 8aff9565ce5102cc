"""In which order the stages of a pipeline work on the micro-batches of a step: pure lists, nothing runs here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ttmesh.base.errors import MeshError


@dataclass(frozen=True)
class Action:
    """One stage works on one micro-batch, forwards or backwards."""

    stage: int
    micro: int
    forward: bool


Plan = list[list[Action]]  # per stage, in its order


def gpipe(stages: int, micro_batches: int) -> Plan:
    """All micro-batches forwards, then all backwards: simple, and every activation is kept until the turn."""
    order = [(micro, True) for micro in range(micro_batches)] + [(micro, False) for micro in range(micro_batches)]
    return [[Action(stage, *item) for item in order] for stage in range(stages)]


def one_forward_one_backward(stages: int, micro_batches: int) -> Plan:
    """A stage starts backwards as soon as it can: stage s of S keeps at most S - s micro-batches' activations."""
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


def planned(schedule: str, stages: int, micro_batches: int) -> Plan:
    """The plan of a schedule by its name."""
    if schedule not in SCHEDULES:
        raise MeshError(
            f"no pipeline schedule named {schedule!r}",
            expected=f"one of {sorted(SCHEDULES)}",
            fix="Choose one of them.",
        )
    if micro_batches < 1:
        raise MeshError(
            f"a step of {micro_batches} micro-batches",
            expected="one or more; as many as stages, or more, keep all stages busy",
            fix="Give micro_batches a positive number.",
        )
    return SCHEDULES[schedule](stages, micro_batches)


def issue_order(plan: Plan) -> list[Action]:
    """The actions of all stages in an order in which each finds what it needs: stages take turns, clock by clock."""
    places = [0] * len(plan)
    done: set[Action] = set()
    order: list[Action] = []
    while len(order) < sum(len(actions) for actions in plan):
        ready = [
            actions[place]
            for actions, place in zip(plan, places, strict=True)
            if place < len(actions) and _needs(actions[place], len(plan)) <= done
        ]
        assert ready, "a plan in which nobody can go on"
        for action in ready:
            places[action.stage] += 1
        order += ready
        done.update(ready)
    return order


def _needs(action: Action, stages: int) -> set[Action]:
    """What other stages must have done first."""
    before = action.stage - 1 if action.forward else action.stage + 1
    return {Action(before, action.micro, action.forward)} if 0 <= before < stages else set()
