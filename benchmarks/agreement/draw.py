"""Writes random calls, one per line: name, tab, call.

usage: python draw.py SEED [--each N | --count N] [--changed] [--only REGEX] [--grid 8 7] > calls.txt
"""

from __future__ import annotations

import argparse
import random
import re

import attention  # noqa: F401  (the modules enter their builders)
import elementwise  # noqa: F401
import models  # noqa: F401
import moreh  # noqa: F401
import movement  # noqa: F401
from calls import BUILDERS, INTEGERS, SHARDS, Call, Draw, Operand


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("seed")
    parser.add_argument("--each", type=int, default=0, help="calls of every operation")
    parser.add_argument("--count", type=int, default=1000, help="calls of random operations, where --each is not given")
    parser.add_argument("--changed", action="store_true", help="one thing of every call is changed")
    parser.add_argument("--only", default=".", help="operations whose names match")
    parser.add_argument("--grid", type=int, nargs=2, default=(8, 7), help="cores of the chip that compute")
    asked = parser.parse_args()
    names = sorted(name for name in BUILDERS if re.search(asked.only, name))
    shuffle = random.Random(f"{asked.seed} order")
    chosen = names * asked.each if asked.each else [shuffle.choice(names) for _ in range(asked.count)]
    shuffle.shuffle(chosen)
    for i, name in enumerate(chosen):
        draw = Draw(f"{asked.seed} {i} {name}", name, tuple(asked.grid))
        call = BUILDERS[name](draw)
        if asked.changed:
            change(draw, call)
        print(f"{name}\t{call.text()}")


def change(draw: Draw, call: Call) -> None:
    """Changes one thing of a call: a format, layout, memory, rank or length of an operand, or a keyword."""
    keywords = [key for key in call.keywords if key not in ("device", "input_tensor", "weight_tensor")]
    if not call.operands or (keywords and draw.chance(0.15)):
        if keywords:
            del call.keywords[draw.random.choice(keywords)]
        return
    operand = call.operands[draw.random.choice(list(call.operands))]
    ways = [rank, length] if operand.layout == "host" else [dtype, dtype, layout, memory, rank, length, length]
    draw.random.choice(ways)(draw, operand)


def dtype(draw: Draw, operand: Operand) -> None:
    others = [d for d in ("bf16", "f32", "bf8", "bf4", *INTEGERS) if d != operand.dtype]
    operand.dtype = draw.random.choice(others)
    if operand.dtype in ("bf8", "bf4"):
        operand.layout = "TILE"


def layout(draw: Draw, operand: Operand) -> None:
    if operand.dtype in ("bf8", "bf4"):
        operand.dtype = "bf16"
    operand.layout = "RM" if operand.layout == "TILE" else "TILE"


def memory(draw: Draw, operand: Operand) -> None:
    operand.memory = draw.random.choice([m for m in ("DRAM", "L1", *SHARDS) if m != operand.memory])


def rank(draw: Draw, operand: Operand) -> None:
    shape = operand.shape
    if draw.chance(0.5) and len(shape) > 1:
        operand.shape = (shape[0] * shape[1], *shape[2:]) if len(shape) > 2 else (shape[0] * shape[1],)
    else:
        operand.shape = (1, *shape)
    operand.memory = operand.memory if operand.memory in ("L1", *SHARDS) else "DRAM"


def length(draw: Draw, operand: Operand) -> None:
    shape = list(operand.shape)
    at = draw.random.randrange(len(shape))
    shape[at] = draw.random.choice([n for n in (1, 2, 17, 32, 50, 64, 96) if n != shape[at]])
    operand.shape = tuple(shape)
    operand.memory = operand.memory if operand.memory in ("L1", *SHARDS) else "DRAM"


if __name__ == "__main__":
    main()
