"""The view model, and the text drawn from it, with plain values."""

from __future__ import annotations

import dataclasses
import io
import json
import time
from collections.abc import Iterable

import msgspec
import pytest
from fixed_state import CHIPS, GB, LEAKS, MB, FixedSource, matches_snapshot
from rich.console import Console

from ttmesh.base.records import Allocated
from ttmesh.monitor import device_screen, plain, tables
from ttmesh.monitor.address_map import HOLE, AddressMap, Piece, address_maps
from ttmesh.monitor.leak_groups import group_leaks
from ttmesh.monitor.rows import Widths, device_cells, fit_widths, process_cells
from ttmesh.monitor.text_drawing import bar_cells, draw_trend
from ttmesh.monitor.view import Bar, Choice, Segment, ViewError, build, device_ranges, level, short_name
from ttmesh.tracking.ledger import Ledger
from ttmesh.tracking.leftovers import Ended, Leftover, LeftoverSums
from ttmesh.tracking.spans import Span
from ttmesh.tracking.state import Histories, Leaks
from ttmesh.tracking.wire import Who


@pytest.fixture(autouse=True)
def _utc(monkeypatch):
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()


@pytest.fixture
def source() -> FixedSource:
    return FixedSource()


def test_devices_are_in_order_of_physical_id_with_the_coordinator_marked(source):
    view = source.view()

    assert [d.physical_id for d in view.devices] == list(range(8))
    assert [d.physical_id for d in view.devices if d.is_coordinator] == [CHIPS[0]]
    assert (view.devices[4].logical_id, view.devices[4].place, view.devices[4].title) == (0, "(0, 0)", "4R")


def test_bars_hold_every_class_and_are_as_long_as_the_chip_has_memory(source):
    l1 = source.view().devices[4].bar("L1")

    held = {segment.memory_class: segment.used_bytes for segment in l1.segments}
    assert held == {"L1": 8 * MB, "CB": 4 * MB, "SYSTEM_L1": 74752 + 3173 * 1024}
    assert l1.used_bytes == sum(held.values())
    assert l1.capacity_bytes == 64 * (MB + 0x10000)


def test_bars_colour_at_75_and_90_percent():
    assert [level(share) for share in (0.74, 0.75, 0.89, 0.9)] == ["calm", "warm", "warm", "hot"]


def test_peaks_remember_what_is_gone(source):
    dram = source.view().devices[1].bar("DRAM").segments[0]

    assert (dram.used_bytes, dram.peak_bytes) == (9 * GB + 100 * MB, 10 * GB + 100 * MB)


def test_trends_sum_the_classes_of_a_pool(source):
    trend = source.view(trends=True).devices[1].bar("L1").trend

    assert trend[-3:] == (74752, 12 * MB + 74752, 12 * MB + 74752)


def test_processes_are_sorted_and_filtered(source):
    def pids(**wish) -> list[int]:
        return [p.pid for p in source.view(Choice(**wish)).processes]

    assert pids() == [4242, 777]
    assert pids(sort="pid") == [777, 4242]
    assert pids(sort="name") == [777, 4242]
    assert pids(text="TRAIN") == [4242]
    assert pids(text="77") == [777]
    assert pids(devices=frozenset({5})) == [4242]


def test_unknown_order_lists_the_known_ones():
    with pytest.raises(ViewError, match=r"no order named 'dramm'; expected one of \['dram', 'l1'.*Did you mean dram"):
        Choice(sort="dramm")


def test_what_did_not_fit_into_a_reply_is_noted_everywhere(source):
    state = msgspec.structs.replace(source.state(), left_out=3)
    view = build(state, Histories(left_out=7), problem="no answer from\x1b the server")
    out = Console(file=io.StringIO(), width=140, color_system=None)

    out.print(tables.smi(view))
    out.print(tables.leaks(group_leaks(Leaks([], [], 5))))

    for text in (out.file.getvalue(), plain.page(view, refresh_ms=500)):
        assert "3 more processes are not shown: the server's reply would be too large." in text
        assert "7 more histories are not shown" in text
    assert "Only the chips of real tt-metal are shown: no answer from· the server" in out.file.getvalue()
    assert "5 more processes are not shown" in out.file.getvalue()
    assert "perfect cleanup" not in out.file.getvalue()


def test_missed_records_are_shown_not_hidden(source):
    view = source.view()

    assert view.missed == 9
    assert "9 records were missed; what is held now is exact." in plain.page(view, refresh_ms=500)


def test_a_view_is_json(source):
    data = json.loads(json.dumps(dataclasses.asdict(source.view())))

    assert data["devices"][0]["bars"][0]["segments"][0]["memory_class"] == "DRAM"


def test_an_empty_ledger_makes_an_empty_view():
    view = FixedSource(Ledger()).view(trends=True)

    assert (view.devices, view.processes, view.buffers) == ((), (), 0)
    assert "No device is open" in plain.page(view, refresh_ms=500)
    assert "No process is connected: start one with TT_ALLOC_TRACKING_ENABLED=1" in plain.page(view, refresh_ms=500)


def test_ids_are_written_as_ranges():
    assert device_ranges([7, 0, 1, 2]) == "0-2,7"
    assert device_ranges([]) == ""


def test_every_class_that_holds_anything_is_seen_in_a_bar(source):
    cells = bar_cells(source.view().devices[0].bar("DRAM"), 25)

    classes = [cell.memory_class for cell in cells]
    assert len(cells) == 25
    assert set(classes) == {"DRAM", "TRACE", HOLE}
    assert classes.count("DRAM") == round(25 * (9 * GB + 150 * MB) / (12 * GB))


@pytest.mark.parametrize("width", [8, 10, 25])
def test_bars_of_nearly_the_same_length_differ(width):
    def draw(share: float) -> str:
        used = round(share * 1_000_000)
        segment = Segment("DRAM", used, 1, used, share)
        bar = Bar("DRAM", used, used, 1_000_000, share, "calm", (segment,), 0, 0.0, ())
        return "".join(cell.glyph for cell in bar_cells(bar, width))

    assert draw(0.048) != draw(0.081), "4.8 % and 8.1 %"
    assert draw(0.0001) == "▏" + "░" * (width - 1), "something is never drawn as nothing"
    assert draw(0.0) == "░" * width
    assert draw(1.0) == "█" * width
    assert draw(0.5) == ("█" * (width // 2) + "▌" * (width % 2)).ljust(width, "░")


def test_trend_is_drawn_relative_to_its_highest_value():
    assert draw_trend([0, 50, 100], 10) == "▁▄█"
    assert draw_trend([5, 0, 0], 2) == "▁▁"
    assert draw_trend([], 5) == ""


def test_address_map_shows_small_buffers_and_holes():
    bank = Span(1000, 2000)
    pieces = (Piece(Span(1000, 1001), "CB", ""), Piece(Span(1500, 2000), "L1", ""))

    cells = AddressMap("L1", bank, pieces, ()).cells(10)

    assert cells == ["CB", *[HOLE] * 4, *["L1"] * 5]


def test_address_maps_of_a_device_hold_its_buffers_and_holes(source):
    (device,) = [d for d in source.state().devices if d.physical_id == 1]
    detail = source.detail(("", "t3000", 1))

    dram, l1 = address_maps(device, detail.buffers)

    assert [p.memory_class for p in dram.pieces] == ["DRAM", "DRAM", "TRACE"]
    assert [p.memory_class for p in l1.pieces] == ["CB", "L1"]
    assert sum(h.length for h in l1.holes) + sum(p.span.length for p in l1.pieces) == MB


def test_plain_page_reads_like_the_first_monitor(source):
    page = plain.page(source.view(Choice(devices=frozenset({3, 4}))), refresh_ms=500)

    assert "Device 4R (wormhole_b0, logical 0 at (0, 0))  ← coordinator" in page
    assert matches_snapshot("plain", page)


def test_in_80_columns_smi_cuts_no_device_off(source):
    out = Console(file=io.StringIO(), width=80)

    out.print(tables.smi(source.view(), out.width))

    devices = out.file.getvalue().partition("Processes")[0]
    assert " / 68.00 MB  17.8% |" in devices
    assert "…" not in devices


def test_smi_tables_are_as_they_were(source):
    out = Console(file=io.StringIO(), width=140, color_system=None)

    out.print(tables.smi(source.view()))

    assert matches_snapshot("smi", out.file.getvalue())


def list_leftovers(buffers: Iterable[Allocated]) -> list[Leftover]:
    sums = LeftoverSums("exit")
    for record in buffers:
        sums.add(record)
    return sums.list_leftovers()


def test_leaks_are_grouped_by_place_and_a_clean_end_says_so(source):
    ledger = source.ledger
    process = ledger.processes[Who("", 4242, 1)]
    ended = Ended(process.who, process.name, 1_800_000_100.0, True, list_leftovers(process.held.values()), [], 5, 0)
    out = Console(file=io.StringIO(), width=140, color_system=None)

    out.print(tables.leaks(group_leaks(Leaks([ended], []))))
    out.print(tables.leaks(group_leaks(Leaks([ended], []), pid=1)))

    assert matches_snapshot("leaks", out.file.getvalue())
    assert "No buffers remaining - perfect cleanup!" in out.file.getvalue()


def test_what_was_lost_is_not_what_was_held_at_a_close_and_equal_ones_are_one_row():
    out = Console(file=io.StringIO(), width=140, color_system=None)

    out.print(tables.leaks(group_leaks(LEAKS)))

    assert matches_snapshot("leak_groups", out.file.getvalue())
    lost, _, at_close = out.file.getvalue().partition("Held at close: freed because the mesh was closed, 1.00 MB")
    assert "Lost: still allocated when the process ended, 24.00 MB" in lost
    assert (lost.count("matmul"), at_close.count("add")) == (1, 1)


def test_names_of_strangers_are_neither_markup_nor_control_characters(source):
    ledger = source.ledger
    stranger = ledger.join(Who("", 666, 1), "evil [/bold] \x1b[2J name", 0.0)
    record = source.ledger.processes[Who("", 4242, 1)].held[1, 1]
    ledger.events(stranger, 0, [Allocated(2, 1, (0,), "L1", 0, 8, 8, 1, 8, "[red]op", 0, "[x]\x07.py:1 in f")])
    out = Console(file=io.StringIO(), width=160, color_system=None)

    out.print(tables.smi(source.view()))
    left = list_leftovers([*stranger.held.values(), record])
    ended = Ended(stranger.who, stranger.name, 1.0, True, left, [], 1, 0)
    out.print(tables.leaks(group_leaks(Leaks([ended], []))))
    out.print(device_screen.draw_detail(source.detail(("", "", 0)), 150))  # its mesh is unknown
    text = out.file.getvalue() + plain.page(source.view(), refresh_ms=500)

    assert "\x1b" not in text
    assert "\x07" not in text
    assert text.count("evil [/bold] ·[2J name") == 3
    assert text.count("[red]op") == 2


def test_a_device_whose_mesh_is_unknown_has_no_capacity(source):
    ledger = Ledger()
    record = source.ledger.processes[Who("", 4242, 1)].held[1, 1]
    ledger.events(ledger.join(Who("", 1, 1), "p", 0.0), 0, [record])

    bar = build(FixedSource(ledger).state()).devices[0].bar("DRAM")

    assert (bar.percent, bar.used_bytes, bar.capacity_bytes) == ("?", 100 * MB, 0)


@pytest.mark.parametrize("columns", [80, 100, 130, 160, 240])
def test_the_tables_of_the_live_terminal_fit_into_its_columns(source, columns):
    view = source.view()
    widths = fit_widths(view, columns)

    for titles, rows in (
        (widths.device_columns(), [device_cells(d, widths) for d in view.devices]),
        (widths.process_columns(), [process_cells(p, widths) for p in view.processes]),
    ):
        texts = [titles, *([getattr(cell, "plain", cell) for cell in row] for row in rows)]
        assert sum(max(map(len, column)) + 2 for column in zip(*texts, strict=True)) <= columns


@pytest.mark.parametrize(("columns", "name"), [(80, "python train.py"), (60, "python… |")])
def test_smi_cuts_names_and_nothing_else_on_narrow_terminals(source, columns, name):
    out = Console(file=io.StringIO(), width=columns, color_system=None)

    out.print(tables.smi(source.view(), columns))

    text = out.file.getvalue()
    assert f"| 4242 | 0-7     | 72.91 GB | 99.67 MB |      40 | {name}" in text
    assert "…" not in text.partition("Processes")[0]
    assert len(text.partition("Processes")[0].splitlines()) == 13
    assert max(map(len, text.splitlines())) <= columns


def test_marks_are_shown_whatever_fits(source):
    train = next(p for p in source.view().processes if p.pid == 4242)

    assert process_cells(train, Widths(long=False, name=40))[-1] == "python train.py [step 3]"
    assert process_cells(train, Widths(long=False, name=20))[-1] == "python tra… [step 3]"
    assert process_cells(train, Widths(long=True, name=40))[-2:] == ["step 3", "python train.py"]


def test_devices_that_nobody_opened_are_not_said_to_be_closed(source):
    page = plain.page(source.view(Choice(devices=frozenset({99}))), refresh_ms=500)

    assert "No such device was opened; those that were: 0-7." in page
    assert "No process is connected" not in page


def test_long_command_lines_lose_their_folders_first():
    assert short_name("python /home/me/work/train.py --fast", 40) == "python /home/me/work/train.py --fast"
    assert short_name("python /home/me/work/train.py --fast", 30) == "python train.py --fast"
    assert short_name("python /home/me/work/train.py --fast", 10) == "python tr…"
