"""Requirements of a whole call, such as how the shapes of its operands go together, with TT-NN's texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ttmesh.base.errors import require
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.tensor import Tensor

Arguments = Call | Mapping[str, Any]


@dataclass(frozen=True)
class CallRule:
    """What must hold of a call's arguments, and TT-NN's text where it does not."""

    holds: Callable[[Any], bool]
    wrong: str | Callable[[Any], str]
    expected: str
    fix: str
    is_format = False

    def check(self, call: Arguments) -> None:
        """Raise for a call of which it does not hold."""
        if not self.holds(call):
            require(False, self.wrong if isinstance(self.wrong, str) else self.wrong(call), self.expected, self.fix)


def that(
    holds: Callable[[Any], bool],
    wrong: str | Callable[[Any], str],
    expected: str = "shapes that go together",
    fix: str = "Reshape one of the tensors.",
) -> CallRule:
    """A requirement of shapes unless said."""
    return CallRule(holds, wrong, expected, fix)


def padded(call: Arguments, name: str) -> tuple[int, ...]:
    """The padded shape of an operand."""
    return tuple(call[name].spec.padded_shape)


def same_format(first: str, others: str, wrong: str) -> tuple[CallRule, ...]:
    """Operands in the format of the first; {0} in the text is its format, {1} the one found."""

    def rule(name: str) -> CallRule:
        def text(call: Any) -> str:
            return wrong.format(f"DataType::{call[first].dtype.name}", f"DataType::{call[name].dtype.name}")

        def holds(call: Any) -> bool:
            return not isinstance(call[name], Tensor) or call[name].dtype is call[first].dtype

        return that(holds, text, "equal formats", "Convert one with ttnn.typecast.")

    return tuple(rule(name) for name in others.split())


def equal_lengths_of(first: str, second: str, dims: tuple[int, int], wrong: str) -> CallRule:
    """One dim of each of two operands has the same padded length; {0} and {1} in the text are the lengths."""

    def lengths(call: Any) -> tuple[int, int]:
        return padded(call, first)[dims[0]], padded(call, second)[dims[1]]

    return that(lambda call: len(set(lengths(call))) == 1, lambda call: wrong.format(*lengths(call)), "equal lengths")
