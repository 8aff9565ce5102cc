"""How far two runs of `mesh_session.py` agree: python mesh_compare.py REAL OURS [REAL OURS …] [--table] [--differences N]."""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

FAST_DISPATCH = "only supported for Fast Dispatch"  # which a t3000 on the mock cluster does not have
COLUMNS = ("refusal", "text", "spec", "everything")


def operation_of(call: str) -> str:
    """The operation that a call asks for."""
    found = re.search(r"ttnn\.([\w.]+)\(", call.rpartition("=>")[2])
    return found.group(1) if found else call.rpartition("=>")[2].strip().partition("(")[0]


def flatten(result: Any) -> list[list[Any]]:
    """The tensors of a result, in order; anything else as a text without an address."""
    if isinstance(result, list) and len(result) == 2 and isinstance(result[0], str):
        return [result]
    return [tensor for item in result for tensor in flatten(item)] if isinstance(result, list) else [[result, None]]


def judge(real: dict[str, Any], ours: dict[str, Any]) -> dict[str, bool] | None:
    """Which columns count for a call, and whether they agree; None for a call that ends the real process."""
    if "crash" in real or "setup" in real or FAST_DISPATCH in real.get("error", ""):
        return None
    if ("error" in real) != ("result" not in ours):
        return {"refusal": False}
    if "error" in real:
        words = re.sub(r"\W+", " ", real["error"])[:60]
        return {"refusal": True, "text": words in re.sub(r"\W+", " ", ours.get("error", ""))}
    pair = flatten(real["result"]), flatten(ours["result"])
    spec = [text for text, _ in pair[0]] == [text for text, _ in pair[1]]
    return {"refusal": True, "spec": spec, "everything": pair[0] == pair[1] and real["programs"] == ours["programs"]}


def show(counts: Counter[tuple[str, bool]], column: str) -> str:
    """`a of b (p %)`."""
    agree, differ = counts[column, True], counts[column, False]
    both = agree + differ
    return f"{agree} of {both} ({100 * agree / both:.1f} %)" if both else "–"


def main() -> None:
    """Print totals, and on request a table per operation and the differences."""
    parser = argparse.ArgumentParser()
    parser.add_argument("files", nargs="+")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--differences", type=int, default=0)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    total: Counter[tuple[str, bool]] = Counter()
    rows: dict[str, Counter[tuple[str, bool]]] = defaultdict(Counter)
    calls, crashes, failed_setups, shown = 0, 0, 0, Counter[str]()
    for real_file, ours_file in zip(options.files[::2], options.files[1::2], strict=True):
        lines = (Path(name).read_text().splitlines() for name in (real_file, ours_file))
        for real, ours in zip(*(map(json.loads, part) for part in lines), strict=False):
            name, verdict = operation_of(real["call"]), judge(real, ours)
            if options.only not in name:
                continue
            if verdict is None:
                crashes += "crash" in real or FAST_DISPATCH in real.get("error", "")
                failed_setups += "setup" in real
                continue
            calls += 1
            for column, agrees in verdict.items():
                total[column, agrees] += 1
                rows[name][column, agrees] += 1
            wrong = [column for column, agrees in verdict.items() if not agrees]
            if wrong and shown[name] < options.differences:
                shown[name] += 1
                print(f"{wrong[0]}: {real['call']}")
                for outcome in (real, ours):
                    print("    ", {k: v for k, v in outcome.items() if k not in ("call", "base")})
    if options.table:
        print("| operation | calls | refused or not | text | spec | everything |\n|---|---|---|---|---|---|")
        for name, counts in sorted(rows.items()):
            cells = " | ".join(show(counts, column).partition(" (")[0] for column in COLUMNS)
            print(f"| `{name}` | {counts['refusal', True] + counts['refusal', False]} | {cells} |")
    print(f"{calls} calls: " + "; ".join(f"{column} {show(total, column)}" for column in COLUMNS))
    print(f"left out: {crashes} that end TT-NN's process, {failed_setups} whose set-up TT-NN refuses")


if __name__ == "__main__":
    main()
