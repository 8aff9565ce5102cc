"""A ledger with known contents and a fixed clock: a 2x4 mesh in one process, a single chip in another."""

from __future__ import annotations

import html
import os
import re
from pathlib import Path

from ttmesh.base.records import Allocated, ChipFacts, Freed, Marked, Opened, Reserved
from ttmesh.monitor.address_map import address_maps
from ttmesh.monitor.source import Detail
from ttmesh.monitor.view import EVERYTHING, Choice, View, build
from ttmesh.tracking.answers import Answers
from ttmesh.tracking.ledger import Ledger
from ttmesh.tracking.leftovers import Ended, Leftover
from ttmesh.tracking.state import DeviceKey, Histories, Leaks, ServerState, State
from ttmesh.tracking.wire import Query, Who

NOW = 1_800_000_000
HERE = Path(__file__).parent
ARTEFACTS = HERE.parent.parent / "artefacts" / "monitor"
MB = 1 << 20
GB = 1 << 30
CHIPS = (4, 0, 3, 7, 5, 1, 2, 6)
CHARACTER_WIDTH = 12.2  # of a terminal screenshot
SITE = "train.py:12 in step\ntrain.py:40 in <module>"


def facts(chip: int, i: int) -> ChipFacts:
    return ChipFacts(chip, i, (i // 4, i % 4), "wormhole_b0", 12, GB, 64, MB, chip > 3, l1_base=0x10000)


def grid_facts(chip: int, rows: int, columns: int, *, wrap: bool = False) -> ChipFacts:
    """A chip of a system with a grid: numbered row by row, linked to its neighbours."""
    row, column = divmod(chip, columns)
    near = [(row + dr, column + dc) for dr, dc in ((-1, 0), (1, 0), (0, -1), (0, 1))]
    if wrap:
        near = [(r % rows, c % columns) for r, c in near]
    ids = sorted({r * columns + c for r, c in near if 0 <= r < rows and 0 <= c < columns} - {chip})
    return ChipFacts(
        chip, chip, (row, column), "wormhole_b0", 12, GB, 64, MB, False,
        l1_base=0x10000, position=(row, column), links=tuple((other, 1) for other in ids),
    )  # fmt: skip


def _ended(pid: int, held: list[Leftover], at_close: list[Leftover]) -> Ended:
    return Ended(Who("", pid, 1), "python train.py", 1_800_000_100.0, False, held, at_close, 5, 0)


LEAKS = Leaks(  # three runs of a program that each lost the same; one of them closed a mesh with buffers
    [_ended(pid, [Leftover("death", SITE, "matmul", "DRAM", 2, 8, 8 * MB)], []) for pid in (1, 2)],
    [
        _ended(
            3, [Leftover("exit", SITE, "matmul", "DRAM", 2, 8, 8 * MB)], [Leftover("close", "", "add", "L1", 4, 8, MB)]
        )
    ],
)


def buffer(number: int, size: int, kind: str, address: int, bank: int, *, chips=CHIPS, label="", site="") -> Allocated:
    born = (NOW - 5) * 10**9
    return Allocated(1, number, chips, kind, address, size, bank, size // bank, 2048, label, born, site)


def fixed_ledger() -> Ledger:
    ledger = Ledger()
    train = ledger.join(Who("", 4242, 1), "python train.py", NOW - 100.0)
    mesh = Opened(1, None, (2, 4), "t3000", tuple(facts(chip, i) for i, chip in enumerate(CHIPS)), 0)
    system = [Reserved(1, CHIPS, "L1", 74752, "ring", 0), Reserved(1, CHIPS[:1], "L1", 3173 * 1024, "staging", 0)]
    held = [
        buffer(1, 100 * MB, "DRAM", 0, 100 * MB // 12, label="from_torch", site=SITE),
        buffer(2, 9 * GB, "DRAM", 200 * MB, 9 * GB // 12, label="kv cache"),
        buffer(3, 16 * MB, "TRACE", GB - 16 * MB // 12, 16 * MB // 12, label="trace"),
        buffer(4, 8 * MB, "L1", 0x10000 + MB // 2, MB // 8, label="matmul"),
        buffer(5, 4 * MB, "CB", 0x10000, MB // 16, label="matmul"),
    ]
    ledger.tick(NOW - 3)
    ledger.events(train, 0, [mesh, *system, *held[:2]])
    ledger.tick(NOW - 2)
    ledger.events(train, 5, [*held[2:], buffer(6, GB, "DRAM", 0, GB // 12), Freed(1, 6)])
    ledger.tick(NOW - 1)
    ledger.events(train, 10, [Marked("step 3", 0)])
    infer = ledger.join(Who("", 777, 1), "python infer.py --chip 0", NOW - 50.0)
    chip = Opened(1, 7, (1, 1), "t3000", (facts(0, 1),), 0)  # of a submesh: chip 0 keeps its coordinate
    ledger.snapshot(infer, 9, [chip, buffer(1, 50 * MB, "DRAM", GB // 2, 50 * MB // 12, chips=(0,))])
    ledger.tick(NOW)
    return ledger


class FixedSource:
    """Answers like monitor.source.Source, from the fixed ledger."""

    def __init__(self, ledger: Ledger | None = None) -> None:
        self.ledger = ledger or fixed_ledger()
        self._answers = Answers(self.ledger)
        self._server = ServerState(1, 1, NOW - 120.0, float(NOW), 16, 3, 0)

    def state(self) -> State:
        return self._answers.state(self._server)

    def histories(self) -> Histories:
        return self._answers.histories(Query("history", window_s=60), float(NOW))

    def view(self, choice: Choice = EVERYTHING, *, trends: bool = False) -> View:
        return build(self.state(), self.histories() if trends else None, choice)

    def detail(self, key: DeviceKey) -> Detail | None:
        states = [d for d in self.state().devices if d.key == key]
        if not states:
            return None
        device = next(d for d in self.view(trends=True).devices if d.key == key)
        buffers = self._answers.buffers(Query("buffers", key[2], key[0], system=key[1]))
        return Detail(device, buffers, tuple(address_maps(states[0], buffers)))


def screen_text(svg: str) -> str:
    """The characters of a terminal screenshot, line by line."""
    lines: dict[float, list[tuple[float, str]]] = {}
    for x, y, text in re.findall(r'<text[^>]*? x="([\d.]+)" y="([\d.]+)"[^>]*>([^<]*)</text>', svg):
        lines.setdefault(float(y), []).append((float(x), html.unescape(text).replace("\xa0", " ")))
    rows = []
    for _, parts in sorted(lines.items()):
        row = ""
        for x, text in sorted(parts):  # spaces of no colour are left out of the picture
            row = row.ljust(round(x / CHARACTER_WIDTH)) + text
        rows.append(row)
    return "\n".join(row.rstrip() for row in rows).strip() + "\n"


def matches_snapshot(name: str, text: str) -> bool:
    """Whether the text is as it was; UPDATE_SNAPSHOTS=1 takes the new one."""
    path = HERE / "snapshots" / f"{name}.txt"
    ARTEFACTS.mkdir(parents=True, exist_ok=True)
    (ARTEFACTS / f"{name}.txt").write_text(text, encoding="utf-8")
    if os.environ.get("UPDATE_SNAPSHOTS"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return path.read_text(encoding="utf-8") == text
