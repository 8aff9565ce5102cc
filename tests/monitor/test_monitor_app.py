"""The live terminal, driven by textual's pilot; screenshots are kept under artefacts/monitor."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest
from fixed_state import ARTEFACTS, NOW, FixedSource, matches_snapshot, screen_text
from textual.pilot import Pilot
from textual.widgets import Input, Static
from tracked import RunningServer, eventually

from ttmesh.monitor import device_screen
from ttmesh.monitor.app import MonitorApp
from ttmesh.monitor.device_screen import DeviceScreen
from ttmesh.monitor.line_table import LineTable
from ttmesh.monitor.source import Source
from ttmesh.monitor.view import EVERYTHING, Choice
from ttmesh.tracking.address import Address
from ttmesh.tracking.ledger import Ledger
from ttmesh.tracking.query import UnreachableError
from ttmesh.tracking.wire import Who

SIZE = (150, 40)


def drive(
    source: object,
    act: Callable[[MonitorApp, Pilot[None]], Awaitable[None]],
    choice: Choice = EVERYTHING,
    *,
    refresh_ms: int = 60_000,
) -> None:
    async def run() -> None:
        app = MonitorApp(source, choice, refresh_ms=refresh_ms)  # type: ignore[arg-type]
        async with app.run_test(size=SIZE) as pilot:
            await settled(app, pilot)
            await act(app, pilot)
            app.get_default_screen().paused = True  # so that no thread asks when all is over
            await app.workers.wait_for_complete()

    asyncio.run(run())


async def settled(app: MonitorApp, pilot: Pilot[None]) -> None:
    """Nobody asks any more, and what was answered is on the screen; an answer may start the next question."""
    while True:
        await app.workers.wait_for_complete()
        await pilot.pause()
        if all(worker.is_finished for worker in app.workers):
            return


async def until(pilot: Pilot[None], wanted: Callable[[], bool]) -> None:
    """Go on when it is so; on a busy machine the screen may be drawn some time after the answer."""
    deadline = time.monotonic() + 180
    while not wanted() and time.monotonic() < deadline:
        await pilot.pause(0.02)
    assert wanted()


def shot(app: MonitorApp, name: str) -> str:
    svg = app.export_screenshot()
    ARTEFACTS.mkdir(parents=True, exist_ok=True)
    (ARTEFACTS / f"{name}.svg").write_text(svg, encoding="utf-8")
    return screen_text(svg)


def rows(app: MonitorApp, table_id: str) -> list[str]:
    return [str(row[0]) for row in app.screen.query_one(table_id, LineTable).rows.values()]


@pytest.fixture(autouse=True)
def _fixed_time(monkeypatch):
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    monkeypatch.setattr(device_screen, "now_s", lambda: float(NOW))


def test_first_screen_shows_devices_and_processes():
    async def act(app: MonitorApp, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: rows(app, "#devices") == ["0", "1", "2", "3", "4R ★", "5R", "6R", "7R"])
        await until(pilot, lambda: rows(app, "#processes") == ["4242", "777"])
        await until(pilot, lambda: matches_snapshot("main", shot(app, "main")))

    drive(FixedSource(), act)


def test_enter_opens_the_device_under_the_cursor_and_escape_goes_back():
    async def act(app: MonitorApp, pilot: Pilot[None]) -> None:
        await pilot.press("down", "down", "down", "down", "enter")
        await settled(app, pilot)

        await until(pilot, lambda: isinstance(app.screen, DeviceScreen))
        await until(pilot, lambda: matches_snapshot("device", shot(app, "device")))
        text = shot(app, "device")
        assert "★ coordinator" in text
        assert "train.py:12 in step" in text
        await pilot.press("escape")
        await until(pilot, lambda: not isinstance(app.screen, DeviceScreen))

    drive(FixedSource(), act)


def test_s_changes_the_order_and_slash_filters():
    async def act(app: MonitorApp, pilot: Pilot[None]) -> None:
        await pilot.press("s", "s", "s")
        await until(pilot, lambda: rows(app, "#processes") == ["777", "4242"])
        await pilot.press("slash")
        await until(pilot, lambda: isinstance(app.focused, Input))
        await pilot.press(*"infer")
        await until(pilot, lambda: rows(app, "#processes") == ["777"])
        await until(pilot, lambda: "filter: infer" in shot(app, "filtered"))
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.focused, LineTable))
        await pilot.press("escape")
        await until(pilot, lambda: rows(app, "#processes") == ["777", "4242"])

    drive(FixedSource(), act)


@pytest.mark.parametrize("before", [(), ("slash", "i"), ("enter",)], ids=["tables", "filter", "device"])
def test_control_c_ends_it_wherever_one_is(before):
    async def act(app: MonitorApp, pilot: Pilot[None]) -> None:
        await pilot.press(*before)
        await pilot.press("ctrl+c")

        assert app._exit

    drive(FixedSource(), act)


def test_a_device_that_nobody_opened_lists_those_that_were():
    async def act(app: MonitorApp, pilot: Pilot[None]) -> None:
        assert "No such device was opened; those that were: 0-7." in shot(app, "unknown")

    drive(FixedSource(), act, Choice(devices=frozenset({99})))


def test_p_holds_the_picture():
    source = FixedSource()

    async def act(app: MonitorApp, pilot: Pilot[None]) -> None:
        await pilot.press("p")
        await until(pilot, lambda: "PAUSED" in shot(app, "paused"))
        await settled(app, pilot)
        source.ledger.leave(next(iter(source.ledger.processes.values())), orderly=True, now_s=NOW)
        app.screen.look()  # type: ignore[attr-defined]
        await settled(app, pilot)

        assert "PAUSED" in shot(app, "paused")
        assert rows(app, "#processes") == ["4242", "777"]
        await pilot.press("p")
        await until(pilot, lambda: rows(app, "#processes") == ["777"])

    drive(source, act)


def test_names_with_brackets_do_not_break_the_table():
    source = FixedSource()
    source.ledger.join(Who("", 666, 1), "python -c [/bold]", 0.0)

    async def act(app: MonitorApp, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: "python -c [/bold]" in shot(app, "brackets"))

    drive(source, act)


def test_an_absent_server_is_a_line_on_the_screen(tmp_path):
    async def act(app: MonitorApp, pilot: Pilot[None]) -> None:
        problem = app.screen.query_one("#problem", Static)
        await until(pilot, lambda: problem.display and "does not answer" in str(problem.content))
        assert "Start one with `ttmesh server`." in str(problem.content)

    drive(Source(Address(path=str(tmp_path / "nobody.sock"))), act)


def test_before_anything_is_tracked_it_says_how_to_begin():
    async def act(app: MonitorApp, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: "TT_ALLOC_TRACKING_ENABLED=1 python your_program.py" in shot(app, "nothing"))

    drive(FixedSource(Ledger()), act)


def test_live_monitor_follows_a_real_program_on_a_real_server(address: Address, start):
    running = RunningServer(address, quiet=True)
    source = Source(address)
    program = start()
    program.do("open")
    program.do("allocate 104857600 2")

    async def act(app: MonitorApp, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: "200.00 MB /  12.00 GB" in shot(app, "live"))
        await until(pilot, lambda: " 16 buffers" in shot(app, "live"))
        program.do("free 1")
        await until(pilot, lambda: " 8 buffers" in shot(app, "live"))
        program.kill()
        await until(pilot, lambda: " 0 buffers" in shot(app, "live"))

    drive(source, act, refresh_ms=100)
    source.close()
    running.stop()


def test_source_connects_again_after_the_server_was_away(address: Address, start):
    running = RunningServer(address, quiet=True)
    source = Source(address)
    program = start()
    program.do("open")
    program.do("allocate 8 1")
    eventually(lambda: source.view().buffers, lambda n: n == 8)
    running.stop()
    with pytest.raises(UnreachableError, match="does not answer"):
        source.view()

    again = RunningServer(address, quiet=True)

    eventually(lambda: source.view().buffers, lambda n: n == 8)
    assert source.detail(("", "t3000", 99)) is None
    assert source.detail(("", "t3000", 0)).buffers.buffers[0].size_bytes == 8
    source.close()
    again.stop()
