"""Circular-buffer bytes per core of a list of calls, as a graph capture prints them; for TT-NN and for ttmesh alike.

    python circular_buffers.py real.jsonl                          # under TT-NN, on a mock cluster or chips
    TTMESH_BACKEND=meta ttmesh run circular_buffers.py ours.jsonl  # under ttmesh
    python circular_buffers.py --compare real.jsonl ours.jsonl [-v] [FAMILY ...]
    python circular_buffers.py --sample real.jsonl ours.jsonl sample.jsonl COUNT   # the file of tests/dryrun

A row is one call: its family, its text, and the most that one core holds of the buffers of one program (buffers laid
over a tensor's own shards take nothing). The calls are in circular_buffer_calls.py; CHIPS=8 adds collectives, on a row
of so many chips.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

CORES = re.compile(r"\(?(?:x=)?(\d+)[-,](?:y=)?(\d+)\)? - \(?(?:x=)?(\d+)[-,](?:y=)?(\d+)\)?")


def program_sizes(nodes: list[dict[str, Any]]) -> list[int]:
    """The bytes of every program of a capture: the most that one core holds."""
    sizes: list[int] = []
    held: Counter[tuple[int, int, int]] = Counter()  # by chip and core

    def finish() -> None:
        if held:
            sizes.append(max(held.values()))
        held.clear()

    for node in nodes:
        kind, params = node["node_type"], node["params"]
        if kind in ("circular_buffer_deallocate_all", "function_start"):
            finish()
        elif kind in ("circular_buffer_allocate", "dataflow_buffer_allocate", "scratchpad_allocate"):
            if "1" in (str(params.get("globally_allocated")), str(params.get("borrows_memory"))):
                continue
            for found in CORES.finditer(params["core_range_set"]):
                left, top, right, bottom = map(int, found.groups())
                for x in range(left, right + 1):
                    for y in range(top, bottom + 1):
                        held[int(params.get("device_id", 0)), x, y] += int(params["size"])
    finish()
    return sizes


def record(path: str, start: int, only: list[str]) -> None:
    """Run the calls from a number on and write a row for each."""
    import circular_buffer_calls as calls  # imports ttnn
    import ttnn

    with open(path, "a") as rows:
        for number, call in enumerate(calls.list_calls()):
            if number < start or (only and call.family not in only):
                continue
            Path(path + ".at").write_text(str(number))
            arguments: Any = None  # those of the call before are freed
            row: dict[str, Any] = {"number": number, "family": call.family, "call": call.text}
            try:
                arguments = call.prepare()
                calls.device().clear_program_cache()
                ttnn.graph.begin_graph_capture(ttnn.graph.RunMode.NO_DISPATCH)
                try:
                    call.run(*arguments)
                finally:
                    nodes = ttnn.graph.end_graph_capture()
                row["programs"] = program_sizes(nodes)
                names = [node["params"]["name"] for node in nodes if node["node_type"] == "function_start"]
                row["operations"] = [name for name in names if name.endswith("Operation")]
            except Exception as refusal:
                text = str(refusal)
                found = re.search(r"info:\s*\n(.*)", text)
                row["error"] = (found.group(1) if found else text.split("\n")[0])[:160]
            rows.write(json.dumps(row) + "\n")
            rows.flush()
        calls.close()


def record_all(path: str, only: list[str]) -> None:
    """Run the calls in processes of their own, the next one behind a call that ends the process."""
    Path(path).unlink(missing_ok=True)
    start = 0
    while subprocess.run([sys.executable, __file__, "--from", str(start), path, *only], check=False).returncode:
        start = int(Path(path + ".at").read_text()) + 1
    Path(path + ".at").unlink()


def compare(real_path: str, ours_path: str, only: list[str], *, verbose: bool) -> None:
    """Print how many calls of every family take as much in both."""
    ours = {row["call"]: row for row in map(json.loads, Path(ours_path).read_text().splitlines())}
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for real in map(json.loads, Path(real_path).read_text().splitlines()):
        mine = ours.get(real["call"])
        if only and real["family"] not in only:
            continue
        if mine is None or "error" in real or "error" in mine:
            if verbose and mine is not None and "error" in mine and "error" not in real:
                print("refused", real["call"], mine["error"])
            continue
        expected, found = max(real["programs"], default=0), max(mine["programs"], default=0)
        tally = counts[real["family"]]
        tally[0] += 1
        tally[1] += expected == found
        tally[2] += found == 0 < expected
        if verbose and expected != found:
            print(f"{real['call']}: {real['programs']} ours {mine['programs']} {' '.join(real.get('operations', []))}")
    for family, (calls, equal, missing) in counts.items():
        print(f"{family:18} {equal:5} of {calls:5} equal, {missing} without a rule")
    print(f"{'all':18} {sum(t[1] for t in counts.values()):5} of {sum(t[0] for t in counts.values()):5} equal")


def write_sample(real_path: str, ours_path: str, sample_path: str, most: int) -> None:
    """Write some calls of every family that take as much in both, evenly spread, with their bytes."""
    ours = {row["call"]: row for row in map(json.loads, Path(ours_path).read_text().splitlines())}
    families: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for real in map(json.loads, Path(real_path).read_text().splitlines()):
        mine = ours.get(real["call"], {"error": ""})
        sizes = [max(row.get("programs") or [0]) for row in (real, mine)]
        if "error" not in real and "error" not in mine and sizes[0] == sizes[1]:
            families[real["family"]].append({"call": real["call"], "bytes": sizes[0]})
    rows = [row for calls in families.values() for row in calls[:: max(-(-len(calls) // most), 1)]]
    Path(sample_path).write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    arguments = sys.argv[1:]
    if arguments[0] == "--compare":
        names = [name for name in arguments[1:] if name != "-v"]
        compare(names[0], names[1], names[2:], verbose="-v" in arguments)
    elif arguments[0] == "--sample":
        write_sample(*arguments[1:4], int(arguments[4]))
    elif arguments[0] == "--from":
        record(arguments[2], int(arguments[1]), arguments[3:])
        os._exit(0)
    elif "ttmesh" in sys.modules:  # nothing ends the process
        Path(arguments[0]).unlink(missing_ok=True)
        record(arguments[0], 0, arguments[1:])
    else:
        record_all(arguments[0], arguments[1:])
