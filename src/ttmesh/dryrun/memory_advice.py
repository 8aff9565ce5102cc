"""What would make a program fit that does not: who holds the memory, and what half the format or more chips would free."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ttmesh.base.errors import OutOfMemoryError
from ttmesh.base.sizes import size_text

REFUSED = re.compile(
    r"allocate (?P<size>\d+) B (?P<memory>\w+) buffer across (?P<banks>\d+) banks, where each bank needs to store "
    r"(?P<need>\d+) B, but bank size is (?P<bank>\d+) B \(allocated: (?P<used>\d+) B, free: (?P<free>\d+) B"
)
SHRINKABLE = ("weights and inputs", "kv cache")  # have a format that the program chooses
WORDS = {"weights and inputs": "weights", "kv cache": "the kv cache"}


def advise(failure: OutOfMemoryError, holdings: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Sentences on what would make room; `holdings` has bytes by kind for each memory."""
    found = REFUSED.search(failure.wrong)
    if found is None:
        return [failure.fix]
    memory, banks = found["memory"], int(found["banks"])
    need, free, bank, used = (int(found[name]) for name in ("need", "free", "bank", "used"))
    by_kind = holdings.get(memory, {})
    advice = [failure.fix]
    if need <= free:
        return [
            *advice,
            f"There is room ({size_text(free * banks)} free), but not in one piece: allocate the large buffer earlier, or "
            f"free what lies between.",
        ]
    missing = (need - free) * banks
    advice.append(f"{size_text(missing)} per chip are missing.")
    for kind, size in by_kind.items():
        words = WORDS.get(kind, kind)
        if kind not in SHRINKABLE:
            advice.append(f"{words} hold {size_text(size)}.")
            continue
        verdict = "that alone would do" if size // 2 >= missing else "that alone would not do"
        advice.append(
            f"{kind} hold {size_text(size)}: half the format for {words} (bfloat8_b for bfloat16, bfloat4_b for "
            f"bfloat8_b) frees about {size_text(size // 2)}; {verdict}."
        )
    times = -(-(used + need) // bank)
    chips = 1 << (times - 1).bit_length()
    advice.append(f"Sharded over {chips} times as many chips along the axis that splits them, it would fit.")
    return advice
