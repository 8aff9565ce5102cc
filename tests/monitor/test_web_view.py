"""What the web page draws, with plain values; the page itself computes none of it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict, replace
from importlib import resources

import msgspec
import pytest
from fixed_state import LEAKS, MB, NOW, FixedSource, grid_facts

from ttmesh.base.records import Opened
from ttmesh.monitor.exports.shared_memory import HOST as REAL_CHIPS
from ttmesh.monitor.leak_groups import LeakReport, group_leaks
from ttmesh.monitor.view import DeviceView, LinkView, View
from ttmesh.monitor.web_chart import MOST_LINES, POINTS, choose_ticks, duration_text, make_web_history
from ttmesh.monitor.web_device import MAP_CELLS, WebDevice, make_web_device
from ttmesh.monitor.web_grid import COLOURS, make_web_groups
from ttmesh.monitor.web_view import WebView, make_web_view
from ttmesh.tracking.history import Point
from ttmesh.tracking.ledger import Ledger
from ttmesh.tracking.state import POOLS, Histories, HistoryState, Leaks
from ttmesh.tracking.wire import Who

CLEAN = LeakReport((), ())


@pytest.fixture
def view() -> View:
    return FixedSource().view(trends=True)


def draw(view: View, report: LeakReport = CLEAN) -> WebView:
    return make_web_view(view, report)


def draw_device(physical_id: int = 4) -> WebDevice:
    source = FixedSource()
    detail = source.detail(("", "t3000", physical_id))
    assert detail is not None
    return make_web_device(detail, source.view())


def open_system(ledger: Ledger, name: str, rows: int, columns: int, *, wrap: bool = False) -> None:
    """A process that opens a whole system, with its grid and links."""
    facts = tuple(grid_facts(chip, rows, columns, wrap=wrap) for chip in range(rows * columns))
    process = ledger.join(Who("", 5000 + len(ledger.processes), 1), f"python {name}.py", 0.0)
    ledger.events(process, 0, [Opened(1, None, (rows, columns), name, facts, 0)])


def test_the_summary_counts_what_is_shown(view: View) -> None:
    assert draw(view).summary == "8 devices, 41 buffers, 2 processes, 16 records, 9 missed"
    assert draw(replace(view, missed=0)).summary.endswith("2 processes, 16 records")


def test_a_system_is_its_grid_with_links_between_neighbours() -> None:
    ledger = Ledger()
    open_system(ledger, "galaxy", 8, 4)

    (group,) = make_web_groups(FixedSource(ledger).view())

    assert (group.title, group.rows, group.columns, group.density) == ("galaxy", 8, 4, "compact")
    assert [(chip.row, chip.column) for chip in group.chips[:5]] == [(2, 2), (2, 4), (2, 6), (2, 8), (4, 2)]
    assert len(group.links) == 8 * 3 + 7 * 4
    boxes = {(chip.row, chip.column) for chip in group.chips}
    for link in group.links:
        ahead = (0, 1) if link.direction == "horizontal" else (1, 0)
        assert (link.row - ahead[0], link.column - ahead[1]) in boxes
        assert (link.row + ahead[0], link.column + ahead[1]) in boxes
        assert not link.is_wrap


def test_links_around_the_edges_are_stubs_outside_the_boxes() -> None:
    ledger = Ledger()
    open_system(ledger, "torus", 1, 4, wrap=True)

    (group,) = make_web_groups(FixedSource(ledger).view())

    assert [(link.row, link.column) for link in group.links if link.is_wrap] == [(2, 1), (2, 9)]


def test_traffic_thickens_links_and_is_listed_busiest_first(view: View) -> None:
    ledger = Ledger()
    open_system(ledger, "n300", 1, 2)
    seen = FixedSource(ledger).view()
    links = tuple(LinkView("n300", *ends, size) for *ends, size in ((0, 1, 3 * MB), (1, 0, MB), (-1, 0, 5 * MB)))
    others = (LinkView("galaxy", 0, 1, 99 * MB),)  # of another system, or one that is closed
    busy = replace(seen, processes=(replace(seen.processes[0], links=(*links, *others)),))

    drawn = draw(busy)

    (link,) = drawn.groups[0].links
    assert (link.level, link.tooltip) == (4, "0 → 1: 3.00 MB, 1 → 0: 1.00 MB")
    assert make_web_groups(seen)[0].links[0].level == 0
    assert [(row.name, row.sent, row.received, row.percent) for row in drawn.links] == [
        ("0 ↔ 1", "3.00 MB", "1.00 MB", 100.0)
    ]
    assert drawn.host_traffic == "Host: 5.00 MB written to chips, 0 B read."


def test_two_systems_are_two_grids_and_their_chips_are_told_apart() -> None:
    ledger = Ledger()
    open_system(ledger, "galaxy", 8, 4)
    open_system(ledger, "t3000", 2, 4)

    view = FixedSource(ledger).view()
    groups = make_web_groups(view)

    assert [(group.title, len(group.chips)) for group in groups] == [("galaxy", 32), ("t3000", 8)]
    assert len({chip.key for group in groups for chip in group.chips}) == 40
    assert {device.title for device in view.devices if device.physical_id == 0} == {"0/galaxy", "0/t3000"}


def test_chips_without_a_grid_stand_in_rows_of_four(view: View) -> None:
    def strip(device: DeviceView) -> DeviceView:
        return replace(device, host=REAL_CHIPS, system=f"{device.physical_id}", coord=(), position=(), links=())

    (group,) = make_web_groups(replace(view, devices=tuple(map(strip, view.devices))))

    assert (group.title, group.columns, group.rows, group.links) == ("tt-metal", 4, 2, ())
    assert [chip.title for chip in group.chips] == ["0", "1", "2", "3", "4R", "5R", "6R", "7R"]


def test_a_chip_shows_both_pools_with_their_shares(view: View) -> None:
    chip = next(chip for chip in make_web_groups(view)[0].chips if chip.title == "4R")
    dram, l1 = chip.bars

    assert (dram.used, dram.percent, dram.capacity, dram.level) == ("9.11 GB", "75.9%", "12.00 GB", "warm")
    assert (l1.used, l1.percent, l1.capacity) == ("15.17 MB", "22.3%", "68.00 MB")
    assert [segment.tooltip for segment in l1.segments] == [
        "L1 8.00 MB in 1 buffer, peak 8.00 MB",
        "CB 4.00 MB in 1 buffer, peak 4.00 MB",
        "SYSTEM 3.17 MB in 0 buffers, peak 3.17 MB",
    ]
    assert chip.is_coordinator
    assert sum(segment.percent for segment in dram.segments) == pytest.approx(75.9, abs=0.1)


def test_every_class_of_memory_has_a_colour_and_the_legend_names_each_once(view: View) -> None:
    assert {kind for kinds in POOLS.values() for kind in kinds} < COLOURS.keys()
    assert [entry.name for entry in draw(view).legend] == ["DRAM", "TRACE", "L1", "CB", "SYSTEM"]


def test_processes_are_rows_of_texts_in_the_order_of_the_view(view: View) -> None:
    first, second = draw(view).processes

    assert (first.pid, first.devices, first.meshes, first.mark) == ("4242", "0-7", "2x4", "step 3")
    assert (first.l1, first.circular_buffers) == ("99.67 MB", "32.00 MB")
    assert (second.name, second.dram, second.devices) == ("python infer.py --chip 0", "50.00 MB", "0")


def series(chip: int, *values: int, pool: str = "DRAM") -> tuple[HistoryState, list[Point]]:
    points = [Point(NOW - len(values) + 1 + i, value, value, value) for i, value in enumerate(values)]
    return HistoryState("", "t3000", chip, pool, True, -1), points


def make_histories(series: Iterable[tuple[HistoryState, list[Point]]]) -> Histories:
    found = list(series)
    return Histories(
        [msgspec.structs.replace(one, curve=i) for i, (one, _) in enumerate(found)], [points for _, points in found]
    )


def test_lines_that_coincide_are_one_and_l1_has_its_own_scale() -> None:
    histories = make_histories(
        [*(series(chip, 0, 1 << 30, (1 << 30) + chip // 4) for chip in range(8)), series(0, 0, MB, pool="L1")]
    )

    dram, l1 = make_web_history(histories, now_s=float(NOW), window_s=60).charts

    assert [(line.name, line.latest) for line in dram.lines] == [("devices 0-7", "1.00 GB")]  # also in the last step
    assert [(line.name, line.latest) for line in l1.lines] == [("device 0", "1.00 MB")]
    assert (dram.value_ticks[-1].text, l1.value_ticks[-1].text) == ("1.00 GB", "1.00 MB")
    assert dram.lines[0].path.startswith("M")
    assert dram.lines[0].band == ""


def test_more_lines_than_colours_are_a_band_from_the_least_to_the_most() -> None:
    histories = make_histories([series(chip, chip, 1000 * chip) for chip in range(20)])

    dram, _ = make_web_history(histories, now_s=float(NOW), window_s=60).charts

    assert len(dram.lines) == MOST_LINES + 1
    assert (dram.lines[-1].name, bool(dram.lines[-1].band)) == ("14 more devices", True)


def test_history_begins_with_the_server_not_a_minute_ago_and_says_which_devices_are_closed() -> None:
    closed = HistoryState("", "galaxy", 3, "DRAM", False, -1)
    long = closed, [Point(NOW - 7200, 5, MB, 7), Point(NOW - 60, 0, 0, 0)]

    history = make_web_history(make_histories([long, series(1, 7)]), now_s=float(NOW), window_s=86_400)

    dram = history.charts[0]
    assert [line.name for line in dram.lines] == ["t3000 device 1", "galaxy device 3 (closed)"]
    assert dram.lines[1].path.startswith("M0 ")
    assert [tick.text for tick in dram.time_ticks][:3] == ["now", "−30 min", "−1 h"]
    assert history.refresh_ms == 7200 * 1000 // POINTS
    assert "galaxy device 3 (closed): 7 B" in dram.moments[10].text


@pytest.mark.parametrize(
    ("seconds", "text"), [(7, "7 s"), (90, "1 min 30 s"), (630, "10 min"), (3600, "1 h"), (12_000, "3 h 20 min")]
)
def test_durations_are_short(seconds: int, text: str) -> None:
    assert duration_text(seconds) == text


@pytest.mark.parametrize("most", [1024, 5000, 200 << 20, 12 << 30])
def test_ticks_are_few_and_powers_of_two_apart(most: int) -> None:
    ticks = choose_ticks(most)

    assert ticks[-2] <= most < ticks[-1]
    assert 3 <= len(ticks) <= 6
    assert ticks[1].bit_count() == 1


def test_a_device_has_pools_maps_and_buffers_grouped_by_call_site() -> None:
    shown = draw_device()

    assert (shown.title, shown.facts) == (
        "Device 4R",
        "t3000 · wormhole_b0 · logical 0 · at (0, 0) · ★ coordinator · reached through its board",
    )
    assert shown.pools[0].map_caption == "0x0 … 0x40000000 of every bank, 2 holes"
    assert {len(pool.cells) for pool in shown.pools} == {MAP_CELLS}
    assert [(site.size, site.label) for site in shown.sites[:2]] == [
        ("9.00 GB", "kv cache"),
        ("100.00 MB", "from_torch"),
    ]
    assert (shown.sites[1].site, shown.sites[1].stack) == (
        "train.py:12 in step",
        "train.py:12 in step\ntrain.py:40 in <module>",
    )
    assert "TTMESH_TRACK_STACKS=1" in shown.sites[0].site


def test_buffers_of_one_call_site_are_one_row_with_their_addresses() -> None:
    source = FixedSource()
    detail = source.detail(("", "t3000", 4))
    assert detail is not None
    many = [msgspec.structs.replace(detail.buffers.buffers[0], address=n, size_bytes=MB) for n in range(30)]
    whole = replace(detail, buffers=msgspec.structs.replace(detail.buffers, buffers=many, left_out=7))

    shown = make_web_device(whole, source.view())

    (site,) = shown.sites
    assert (site.size, site.count, len(site.buffers), site.more) == ("30.00 MB", "30 buffers", 12, "and 18 more")
    assert shown.more == "7 smaller buffers not shown"


def test_leaks_are_what_was_lost_and_what_was_held_at_close() -> None:
    drawn = draw(FixedSource().view(), group_leaks(LEAKS)).leaks

    assert drawn.lost_caption.startswith("Lost: still allocated when the process ended, 24.00 MB")
    assert [(row.size, row.times, row.site) for row in drawn.lost] == [("24.00 MB", "3×", "train.py:12 in step")]
    assert [(row.size, row.buffers) for row in drawn.at_close] == [("1.00 MB", "4 buffers")]


def test_an_empty_server_says_what_to_do() -> None:
    empty = draw(FixedSource(Ledger()).view())
    history = make_web_history(Histories(), now_s=float(NOW), window_s=60)

    assert empty.nothing.startswith("No device is open yet.")
    assert "TT_ALLOC_TRACKING_ENABLED=1 python your_program.py" in empty.nothing
    assert (empty.groups, empty.links, empty.leaks.lost) == ((), (), ())
    assert [chart.lines for chart in history.charts] == [(), ()]


def test_everything_that_is_drawn_is_json(view: View) -> None:
    drawn = draw(view, group_leaks(Leaks([], [])))

    assert msgspec.json.decode(msgspec.json.encode(drawn))["summary"] == drawn.summary


def test_the_page_reads_fields_that_exist_and_computes_nothing() -> None:
    script = resources.files("ttmesh.monitor").joinpath("page").joinpath("page.js").read_text(encoding="utf-8")
    drawn = {
        "view": asdict(draw(FixedSource().view(trends=True))),
        "device": asdict(draw_device()),
        "history_": asdict(make_web_history(make_histories([series(0, 1)]), now_s=float(NOW), window_s=60)),
    }

    for name, values in drawn.items():
        assert set(re.findall(rf"\b{name}\.(\w+)", script)) <= values.keys()
    assert not re.findall(r"Math\.|\.sort\(|\.reduce\(|\.filter\(|toFixed|toString|#[0-9a-f]{6}", script)
