"""What the random calls of `mesh_calls.py` are made of: arguments that TT-NN takes, and others for the one that is changed."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")
FORMATS = ("bf16", "bf16", "bf16", "f32", "bf8")
OTHER_FORMATS = ("u32", "i32", "u16", "u8", "bf4", "f32", "bf8")


class Draw:
    """Random choices of one call; the one numbered `change` is made among unusual values."""

    def __init__(self, seed: float, mesh: Sequence[int], change: int | None = None) -> None:
        self.rng, self.change, self.changeable = random.Random(seed), change, 0
        self.rows, self.columns = mesh

    def pick(self, usual: Sequence[T], odd: Sequence[T] = ()) -> T:
        """One of the usual values, or of the odd ones if this is the choice to change."""
        at, odd_at = self.rng.random(), self.rng.random()
        if odd:
            self.changeable += 1
            if self.changeable - 1 == self.change:
                return odd[int(odd_at * len(odd))]
        return usual[int(at * len(usual))]

    def number(self, usual: Sequence[int], odd: Sequence[int] = ()) -> int:
        """A length."""
        return self.pick(usual, odd)

    def choice(self, values: Sequence[T]) -> T:
        """Any of the values."""
        return self.rng.choice(values)

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return self.rng.random() < probability

    def axis(self) -> str:
        """A cluster axis."""
        return self.pick(["0", "1"], ["None", "2", "-1"])

    def axis_and_size(self) -> tuple[str, int]:
        """An axis of the mesh and how many chips lie along it."""
        axis = self.choice([0, 1])
        return str(axis), (self.rows, self.columns)[axis]

    def coordinate(self) -> str:
        """A coordinate of the mesh."""
        at = f"C({self.rng.randrange(self.rows)},{self.rng.randrange(self.columns)})"
        return self.pick([at], ["C(0,9)", "C(0)", "None", "(0,0)"])

    def dtype(self, usual: Sequence[str] = FORMATS) -> str:
        """A number format, as the calls write it."""
        return repr(self.pick(usual, OTHER_FORMATS))

    def layout(self) -> str:
        """A layout."""
        return self.pick(["TILE", "TILE", "TILE", "RM"], ["RM"])

    def memory(self) -> str:
        """A memory config, or the kind of shards."""
        return self.pick(["DRAM", "DRAM", "DRAM", "L1"], ["'h'", "'w'", "'b'", "L1"])

    def semaphores(self, count: int) -> str:
        """A list of global semaphores."""
        some = "[" + ",".join(["sem()"] * count) + "]"
        return self.pick([some], ["[]", "[sem()]", "sem()", "None", "[None]", "[sem(),sem(),sem(),sem()]"])


Writer = Callable[[Draw], str]


def tensor(
    shape: Sequence[int], dtype: str = "'bf16'", layout: str = "TILE", memory: str = "DRAM", mapper: str = "R"
) -> str:
    """A tensor on the mesh, as the calls write it."""
    if dtype in ("'bf8'", "'bf4'"):
        layout = "TILE"
    return f"mk(({','.join(map(str, shape))},),{dtype},{layout},{memory},{mapper})"


def placed(d: Draw, local: Sequence[int], dtype: str | None = None, layout: str | None = None) -> str:
    """A tensor of this shape on every chip, replicated or sharded over the mesh; its rank may be the thing to change."""
    shape, n = list(local), d.rows * d.columns
    form = d.choice(["R", "S", "S", "D", "D", "none"])
    mapper = "R"
    if form == "S":
        dim = d.rng.randrange(len(shape))
        shape[dim] *= n
        mapper = f"S({dim - len(shape) if d.chance(0.3) else dim})"
    elif form == "D":
        dims = [d.choice([None, 0, 1, 2, 3]), d.choice([None, 0, 1, 2, 3])]
        if dims[0] == dims[1]:
            dims[1] = None
        for dim, count in zip(dims, (d.rows, d.columns), strict=True):
            if dim is not None:
                shape[dim] *= count
        mapper = f"D(({dims[0]},{dims[1]}))"
    elif form == "none":
        mapper = "None"
    dtype, layout, memory = dtype or d.dtype(), layout or d.layout(), d.memory()
    shape = d.pick([shape], [shape[1:], shape[2:], [1, *shape]])
    text = tensor(shape, dtype, layout, memory, mapper if len(shape) >= 4 else "R")
    return d.pick([text], [f"host(({','.join(map(str, shape))},),{dtype})"])


def optional(d: Draw, name: str, usual: Sequence[str], odd: Sequence[str] = (), probability: float = 0.3) -> list[str]:
    """A keyword that is given with this probability, and always if it is the thing to change."""
    given = d.chance(probability)
    before = d.changeable
    value = d.pick(usual, odd)
    return [f"{name}={value}"] if given or (odd and before == d.change) else []


def collective_options(d: Draw) -> list[str]:
    """Keywords that most collectives have."""
    return [
        *optional(d, "cluster_axis", ["0", "1", "1", "None"], ["2", "-1", "5"], 0.9),
        *optional(d, "num_links", ["1"], ["0", "2", "3", "5", "100", "-1", "None"], 0.25),
        *optional(d, "topology", ["ttnn.Topology.Linear", "ttnn.Topology.Ring"], ["None", "ttnn.Topology.Mesh"], 0.4),
        *optional(d, "memory_config", ["DRAM", "L1"], ["shard('w',(64,256))", "None", "3"], 0.25),
        *optional(d, "subdevice_id", ["ttnn.SubDeviceId(0)"], ["ttnn.SubDeviceId(1)", "ttnn.SubDeviceId(3)", "0", "None"], 0.1),
    ]  # fmt: skip


def call(setup: str, name: str, arguments: Sequence[str], close: str = ")") -> str:
    """A call in the form `set-up => what is asked`."""
    return f"{setup} => {name}({','.join(arguments)}{close}"
