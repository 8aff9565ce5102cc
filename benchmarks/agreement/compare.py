"""How far two records agree: python compare.py REAL.jsonl OURS.jsonl [REAL OURS ...] [-v | --operations]"""

from __future__ import annotations

import collections
import json
import re
import sys
from pathlib import Path

KINDS = ("refused or not", "text", "spec", "everything")


def words(text: str) -> str:
    return re.sub(r"\W+", " ", text)


def specs(result):
    """A result without addresses."""
    if (
        isinstance(result, list)
        and len(result) == 2
        and isinstance(result[0], str)
        and not isinstance(result[1], (str, list))
    ):
        return result[0]
    return [specs(item) for item in result] if isinstance(result, list) else result


def judge(real: dict, ours: dict) -> dict[str, bool]:
    """Which kinds of agreement count for this call, and which hold."""
    refused = ["error" in row for row in (real, ours)]
    if refused[0] != refused[1]:
        return {"refused or not": False}
    if refused[0]:
        return {"refused or not": True, "text": words(real["error"])[:60] in words(ours["error"])}
    spec = specs(real["result"]) == specs(ours["result"])
    same = real["result"] == ours["result"] and real["programs"] == ours["programs"]
    return {"refused or not": True, "spec": spec, "everything": same}


def main() -> None:
    files = [argument for argument in sys.argv[1:] if not argument.startswith("-")]
    counts: dict[str, collections.Counter] = collections.defaultdict(collections.Counter)
    ended = 0
    for real_file, our_file in zip(files[::2], files[1::2], strict=True):
        real, ours = (
            [json.loads(line) for line in Path(name).read_text().splitlines()] for name in (real_file, our_file)
        )
        for a, b in zip(real, ours, strict=False):
            if a.get("error") == "process ended" or a.get("setup"):
                ended += 1
                continue
            verdict = judge(a, b)
            for key in ("", a["name"]):
                counts[key]["calls"] += 1
                for kind, holds in verdict.items():
                    counts[key][kind] += 1
                    counts[key][kind, True] += holds
            if "-v" in sys.argv and not all(verdict.values()):
                wrong = next(kind for kind, holds in verdict.items() if not holds)
                print(f"{wrong}\t{a['i']} {a['call']}\n   TT-NN {told(a)}\n   here  {told(b)}")
    if "--operations" in sys.argv:
        print("| operation | calls | " + " | ".join(KINDS) + " |\n|---|---|---|---|---|---|")
        for name in sorted(filter(None, counts)):
            print(
                f"| `{name}` | {counts[name]['calls']} | "
                + " | ".join(share(counts[name], kind) for kind in KINDS)
                + " |"
            )
    print(counts[""]["calls"], "calls;", ended, "not counted;", len(counts) - 1, "operations;",
          min(c["calls"] for c in counts.values()), "at least")  # fmt: skip
    for kind in KINDS:
        count, of = counts[""][kind, True], counts[""][kind]
        print(f"{kind}: {count} of {of} ({100 * count / max(of, 1):.1f} %)")


def told(row: dict) -> str:
    return row["error"][:170] if "error" in row else f"{row['programs']} {row['result']}"


def share(counter: collections.Counter, kind: str) -> str:
    return f"{counter[kind, True]} of {counter[kind]}" if counter[kind] else "–"


if __name__ == "__main__":
    main()
