"""How far two records of programs agree: python compare_programs.py REAL.jsonl OURS.jsonl [REAL OURS ...] [-v]"""

from __future__ import annotations

import collections
import json
import re
import sys
from pathlib import Path

from compare import judge

KINDS = ("refused or not", "text", "spec", "everything")


def main() -> None:
    files = [argument for argument in sys.argv[1:] if not argument.startswith("-")]
    counts: collections.Counter = collections.Counter()
    first: dict[str, list[str]] = collections.defaultdict(list)
    programs: set[tuple[str, int]] = set()
    differing: set[tuple[str, int]] = set()
    for real_file, our_file in zip(files[::2], files[1::2], strict=True):
        real, ours = (
            [json.loads(line) for line in Path(name).read_text().splitlines()] for name in (real_file, our_file)
        )
        for a, b in zip(real, ours, strict=False):
            program = (real_file, a["program"])
            programs.add(program)
            if a.get("error") == "process ended" or "skipped" in a:
                continue
            counts["steps"] += 1
            if "skipped" in b:  # an operand is missing because an earlier step was refused only here
                counts["without operands"] += 1
                continue
            verdict = judge(a, b)
            if all(verdict.values()) and a.get("memory", b["memory"]) != b["memory"]:
                verdict["everything"] = False
            for kind, holds in verdict.items():
                counts[kind] += 1
                counts[kind, True] += holds
            wrong = next((kind for kind, holds in verdict.items() if not holds), None)
            if wrong is not None and (wrong != "everything" or program not in differing):
                # an address that differs moves those of later steps
                if wrong != "text":
                    differing.add(program)
                name = re.search(r"ttnn\.([\w.]+)|(mk|\[| [-+*/] )", a["text"].partition(" = ")[2] or a["text"])
                first[f"{wrong}: {name.group(0) if name else '?'}"].append(
                    f"{real_file} {a['program']}.{a['step']} {a['text']}\n   TT-NN {told(a)}\n   here  {told(b)}"
                )
    if "-v" in sys.argv:
        for kind in sorted(first, key=lambda kind: -len(first[kind])):
            print(f"== {kind}: {len(first[kind])}\n" + "\n".join(first[kind]))
    print(f"{len(programs)} programs, {len(differing)} with a difference; {counts['steps']} steps,", end=" ")
    print(f"{counts['without operands']} of them without operands here")
    for kind in KINDS:
        count, of = counts[kind, True], counts[kind]
        print(f"{kind}: {count} of {of} ({100 * count / max(of, 1):.1f} %)")


def told(row: dict) -> str:
    return row["error"][:170] if "error" in row else f"{row['programs']} {row['result']} {row.get('memory')}"


if __name__ == "__main__":
    main()
