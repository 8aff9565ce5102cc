"""A call as text: tensors that are made first, " => ", and the call that is compared (the words of tests/agreement)."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod

SHARDS = ("h", "w", "b")
INTEGERS = ("i32", "u32", "u16", "u8")
Shape = tuple[int, ...]


def names(text: str) -> list[str]:
    """The words of a text."""
    return text.split()


def fits(shape: Shape) -> bool:
    """Whether whole tiles can be spread over cores."""
    return len(shape) > 1 and prod(shape[:-1]) % 32 == 0 and shape[-1] % 32 == 0


@dataclass
class Operand:
    """A tensor that a call takes."""

    shape: Shape
    dtype: str = "bf16"
    layout: str = "TILE"
    memory: str = "DRAM"

    def text(self) -> str:
        """How it is made."""
        if self.layout == "host":
            return f"host({self.shape})"
        memory = self.memory
        if memory in SHARDS:
            memory = repr(memory) if fits(self.shape) else "DRAM"
        if memory != "DRAM":
            return f"mk({self.shape}, {self.dtype!r}, {self.layout}, {memory})"
        if self.layout != "TILE":
            return f"mk({self.shape}, {self.dtype!r}, {self.layout})"
        return f"mk({self.shape}, {self.dtype!r})" if self.dtype != "bf16" else f"mk({self.shape})"


@dataclass
class Call:
    """A function of ttnn with its operands (by name), arguments and keywords (Python text)."""

    name: str
    operands: dict[str, Operand] = field(default_factory=dict)
    arguments: list[str] = field(default_factory=list)
    keywords: dict[str, str] = field(default_factory=dict)
    before: str = ""  # made of the operands, ahead of the call
    form: str = "{}"  # what is done with the call

    def text(self) -> str:
        """The call as one line."""
        made = [f"{name}={operand.text()}" for name, operand in self.operands.items()]
        asked = ", ".join([*self.arguments, *(f"{name}={value}" for name, value in self.keywords.items())])
        expression = self.form.format(f"ttnn.{self.name}({asked})")
        return "; ".join([*made, *([self.before] if self.before else [])]) + " => " + expression


class Draw:
    """Random choices of operands and keywords."""

    def __init__(self, seed: str, name: str = "", grid: tuple[int, int] = (8, 7)) -> None:
        self.random = random.Random(seed)
        self.name, self.grid = name, grid

    def pick(self, *choices: object) -> object:
        """One of them."""
        return self.random.choice(choices)

    def chance(self, probability: float) -> bool:
        """True as often as this."""
        return self.random.random() < probability

    def size(self, *choices: int) -> int:
        """One of these numbers."""
        return self.random.choice(choices)

    def shape(self, low: int = 1, high: int = 5, tiles: bool = False) -> Shape:
        """A shape of these ranks; `tiles`: of whole tiles."""
        rank = self.random.choice([r for r in (1, 2, 2, 3, 3, 4, 4, 4, 4, 5) if low <= r <= high])
        last = (32, 64, 96, 128, 160) if tiles else (1, 7, 17, 32, 32, 34, 50, 64, 64, 96, 128, 160)
        leading = [self.random.choice((1, 1, 2, 3, 5)) for _ in range(max(rank - 2, 0))]
        return (*leading, *(self.random.choice(last) for _ in range(min(rank, 2))))

    def dtype(self, *choices: str) -> str:
        """A format: of these, or any with the common ones more often."""
        common = ("bf16",) * 8 + ("f32",) * 4 + ("bf8",) * 3 + ("i32", "i32", "u32", "u16", "u8", "bf4")
        return self.random.choice(choices or common)

    def memory(self, sharded: float = 0.25) -> str:
        """Where a tensor lies."""
        if self.chance(sharded):
            return self.random.choice(SHARDS)
        return self.random.choice(("DRAM", "DRAM", "DRAM", "L1"))

    def layout(self, dtype: str, rows: float = 0.15) -> str:
        """Tiles or rows; block floats have tiles."""
        return "RM" if dtype not in ("bf8", "bf4") and self.chance(rows) else "TILE"

    def operand(
        self, shape: Shape | None = None, dtype: str | None = None, rows: float = 0.15, sharded: float = 0.25
    ) -> Operand:
        """A tensor, drawn where nothing is given."""
        shape = shape or self.shape()
        dtype = dtype or self.dtype()
        return Operand(shape, dtype, self.layout(dtype, rows), self.memory(sharded))

    def plain(self, shape: Shape, dtype: str | None = None, memory: str | None = None) -> Operand:
        """Tiles in DRAM or L1, mostly bfloat16: as operations of models take them."""
        dtype = dtype or self.dtype("bf16", "bf16", "bf16", "f32", "bf8")
        return Operand(shape, dtype, "TILE", memory or self.random.choice(("DRAM", "DRAM", "L1")))

    def rows(self, shape: Shape, dtype: str = "bf16") -> Operand:
        """Rows in DRAM or L1."""
        return Operand(shape, dtype, "RM", self.random.choice(("DRAM", "DRAM", "DRAM", "L1")))

    def placed(self, probability: float = 0.3) -> dict[str, str]:
        """The keyword memory_config, now and then."""
        if not self.chance(probability):
            return {}
        return {"memory_config": self.random.choice(("DRAM", "L1", "L1", "ttnn.L1_HEIGHT_SHARDED_MEMORY_CONFIG"))}

    def call(self, operands: dict[str, Operand], *arguments: object, form: str = "{}", **keywords: object) -> Call:
        """The call: operands by name, then other arguments; keywords that are None are left out."""
        named = {key: str(value) for key, value in keywords.items() if value is not None}
        return Call(self.name, operands, [str(argument) for argument in arguments], named, form=form)


Builder = Callable[[Draw], Call]
BUILDERS: dict[str, Builder] = {}


def operation(*names: str) -> Callable[[Builder], Builder]:
    """The builder of these operations' calls."""

    def enter(builder: Builder) -> Builder:
        for name in names:
            BUILDERS[name] = builder
        return builder

    return enter
