"""What the web page draws, with plain values; the page itself computes none of it."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, replace
from importlib import resources

import pytest
from fixed_state import CHIPS, FixedSource

from ttmesh.monitor.view import View
from ttmesh.monitor.web_view import COLOURS, MAP_CELLS, choose_ticks, make_web_device, make_web_view
from ttmesh.tracking.ledger import Ledger
from ttmesh.tracking.state import POOLS


@pytest.fixture
def view() -> View:
    return FixedSource().view(trends=True)


def test_the_summary_counts_what_is_shown(view: View) -> None:
    assert make_web_view(view).summary == "8 devices, 41 buffers, 2 processes, 16 records, 9 missed"
    assert make_web_view(replace(view, missed=0)).summary.endswith("2 processes, 16 records")


def test_chips_stand_as_on_the_mesh_and_without_coordinates_in_rows_of_four(view: View) -> None:
    loose = replace(view, devices=tuple(replace(device, coord=()) for device in view.devices))

    assert [chip.physical_id for chip in make_web_view(view).chips] == list(CHIPS)
    assert (make_web_view(view).columns, make_web_view(loose).columns) == (4, 4)
    assert [chip.title for chip in make_web_view(view).chips][:2] == ["4R (0, 0)", "0 (0, 1)"]
    assert [chip.title for chip in make_web_view(loose).chips] == [device.title for device in loose.devices]


def test_a_chip_shows_both_pools_with_their_shares(view: View) -> None:
    chip = make_web_view(view).chips[0]
    dram, l1 = chip.bars

    assert (dram.caption, l1.caption) == ("DRAM 9.11 GB 75.9%", "L1 15.17 MB 22.6%")
    assert [segment.tooltip for segment in l1.segments] == [
        "L1 8.00 MB in 1 buffer, peak 8.00 MB",
        "CB 4.00 MB in 1 buffer, peak 4.00 MB",
        "SYSTEM 3.17 MB in 0 buffers, peak 3.17 MB",
    ]
    assert chip.shades == {"DRAM": 53, "L1": 16}
    assert chip.is_coordinator
    assert sum(segment.percent for segment in dram.segments) == pytest.approx(75.9, abs=0.1)


def test_every_class_of_memory_has_a_colour_and_the_legend_names_each_once(view: View) -> None:
    names = [entry.name for entry in make_web_view(view).legend]

    assert {kind for kinds in POOLS.values() for kind in kinds} < COLOURS.keys()
    assert names == ["DRAM", "TRACE", "L1", "CB", "SYSTEM"]


def test_processes_are_rows_of_texts_in_the_order_of_the_view(view: View) -> None:
    first, second = make_web_view(view).processes

    assert (first.pid, first.devices, first.meshes, first.mark) == ("4242", "0-7", "2x4", "step 3")
    assert (first.l1, first.circular_buffers) == ("99.67 MB", "32.00 MB")
    assert (second.name, second.dram, second.devices) == ("python infer.py --chip 0", "50.00 MB", "0")


def test_timelines_end_now_and_have_ticks_past_the_highest_value(view: View) -> None:
    timeline = make_web_view(view).timelines["DRAM"]

    assert [series.name for series in timeline.series] == [f"device {device.title}" for device in view.devices]
    for series in timeline.series:
        assert len(series.seconds) == len(series.used_bytes) > 0
        assert series.seconds[-1] == 0
    assert timeline.tick_bytes[-1] > max(value for series in timeline.series for value in series.used_bytes)
    assert timeline.tick_texts[:3] == ("0 B", "2.00 GB", "4.00 GB")


@pytest.mark.parametrize("most", [1024, 5000, 200 << 20, 12 << 30])
def test_ticks_are_few_and_powers_of_two_apart(most: int) -> None:
    ticks = choose_ticks(most)

    assert ticks[-2] <= most < ticks[-1]
    assert 3 <= len(ticks) <= 7
    assert ticks[1].bit_count() == 1


def test_a_device_has_maps_buffers_and_a_timeline_of_its_pools() -> None:
    detail = FixedSource().detail(("", "t3000", 4))
    assert detail is not None

    shown = make_web_device(detail)

    assert shown.title == "Device 4R wormhole_b0 ★ coordinator"
    assert shown.maps[0].caption == "DRAM 0x0 … 0x40000000 of every bank, 2 holes"
    assert {len(one.cells) for one in shown.maps} == {MAP_CELLS}
    assert (shown.buffers[0].size, shown.buffers[0].address) == ("9.00 GB", "0xc800000")
    assert [(row.site, row.tooltip) for row in shown.buffers if row.site] == [
        ("train.py:12 in step", "train.py:12 in step\ntrain.py:40 in <module>")
    ]
    assert [series.name for series in shown.timeline.series] == ["DRAM", "L1"]


def test_an_empty_server_says_what_to_do() -> None:
    empty = make_web_view(FixedSource(Ledger()).view())

    assert empty.nothing.startswith("No device is open yet.")
    assert "TT_ALLOC_TRACKING_ENABLED=1 python your_program.py" in empty.nothing
    assert (empty.columns, empty.chips) == (1, ())


def test_everything_that_is_drawn_is_json(view: View) -> None:
    drawn = asdict(make_web_view(view))

    assert json.loads(json.dumps(drawn))["summary"] == drawn["summary"]


def test_the_page_reads_fields_that_exist_and_computes_nothing() -> None:
    script = resources.files("ttmesh.monitor").joinpath("page").joinpath("page.js").read_text(encoding="utf-8")
    detail = FixedSource().detail(("", "t3000", 4))
    assert detail is not None
    drawn = {"view": asdict(make_web_view(FixedSource().view(trends=True))), "device": asdict(make_web_device(detail))}

    for name, values in drawn.items():
        read = set(re.findall(rf"\b{name}\.(\w+)", script))
        assert read - {"hidden"} <= values.keys()
    assert not re.findall(r"Math\.|\.sort\(|\.reduce\(|\.filter\(|toFixed|toString|#[0-9a-f]{6}", script)
