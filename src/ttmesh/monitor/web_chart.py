"""Charts of the web page as ready SVG paths: what devices held over the server's history, equal lines as one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from ttmesh.base.sizes import size_text
from ttmesh.monitor.view import device_ranges, format_count
from ttmesh.tracking.history import DAY, HOUR, Point
from ttmesh.tracking.state import POOLS, Histories, HistoryState

WIDTH, HEIGHT = 1000, 100  # of the drawing, which the page stretches
POINTS = 240  # of a line
MOMENTS = 60  # of those that show what was held when pointed at
MOST_LINES = 6  # the rest is drawn as one band
MOST_TICKS = 4
LINE_COLOURS = ("#2f81f7", "#e8590c", "#2eaf4d", "#9370db", "#d6336c", "#0c8599")
REST_COLOUR = "#8a9199"
WINDOWS = {"1 min": 60, "10 min": 600, "1 h": HOUR, "all": DAY}
FASTEST_MS = 2000
TIME_STEPS_S = (10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600)


@dataclass(frozen=True)
class WebLine:
    """Devices with the same history: its path, the band between least and most of every step, and what is held now."""

    name: str
    colour: str
    latest: str
    path: str
    band: str


@dataclass(frozen=True)
class WebTick:
    """A place on an axis, in percent, and its text."""

    percent: float
    text: str


@dataclass(frozen=True)
class WebChart:
    """One pool on its own scale; `moments` are columns of the chart with what was held then."""

    title: str
    lines: tuple[WebLine, ...]
    value_ticks: tuple[WebTick, ...]
    time_ticks: tuple[WebTick, ...]
    moments: tuple[WebTick, ...]
    moment_percent: float


@dataclass(frozen=True)
class WebHistory:
    """A chart for every pool, and when to ask again."""

    charts: tuple[WebChart, ...]
    note: str
    refresh_ms: int


def make_web_history(histories: Histories, *, now_s: float, window_s: int) -> WebHistory:
    """What the page draws of the histories of one device or all."""
    held = [any(point.high for point in points) for points in histories.curves]
    series = [one for one in histories.series if histories.points_of(one) and (one.is_open or held[one.curve])]
    first_s = min((histories.points_of(one)[0].time_s for one in series), default=int(now_s) - 60)
    start_s = min(max(first_s, now_s - window_s), now_s - 10)
    charts = tuple(
        _chart(pool, [(one, histories.points_of(one)) for one in series if one.pool == pool], start_s, now_s)
        for pool in POOLS
    )
    left_out = histories.left_out
    note = f"{format_count(left_out, 'history').replace('historys', 'histories')} did not fit" if left_out else ""
    return WebHistory(charts, note, max(FASTEST_MS, round(1000 * (now_s - start_s) / POINTS)))


def choose_ticks(most_bytes: int) -> list[int]:
    """A few steps up to past `most_bytes`, each a power of two as all sizes on the page."""
    step = 1
    while most_bytes / step > MOST_TICKS:
        step *= 2
    return [i * step for i in range(most_bytes // step + 2)]


def _chart(pool: str, series: Sequence[tuple[HistoryState, Sequence[Point]]], start_s: float, now_s: float) -> WebChart:
    groups: dict[tuple[Point, ...], tuple[Sequence[Point], list[HistoryState]]] = {}
    for one, points in series:  # the last step is not over: its values may be those before and after a change
        groups.setdefault(tuple(points[:-1]) or tuple(points), (points, []))[1].append(one)
    ordered = sorted(groups.values(), key=lambda group: -group[0][-1].last)
    several = len({(one.host, one.system) for one, _ in series}) > 1
    lines = [(_name(devices, several=several), points) for points, devices in ordered[:MOST_LINES]]
    rest = [points for points, _ in ordered[MOST_LINES:]]
    most = max((p.high for points, _ in ordered for p in points), default=0)
    ticks = choose_ticks(max(1024, most))
    scale = _Scale(start_s, now_s, ticks[-1])
    drawn = [_line(name, LINE_COLOURS[i], points, scale) for i, (name, points) in enumerate(lines)]
    if rest:
        devices = sum(len(group) for _, group in ordered[MOST_LINES:])
        drawn.append(_line(f"{format_count(devices, 'more device')}", REST_COLOUR, _envelope(rest), scale))
    return WebChart(
        title=pool,
        lines=tuple(drawn),
        value_ticks=tuple(WebTick(100 * tick / ticks[-1], size_text(tick)) for tick in ticks[:-1]),
        time_ticks=tuple(_time_ticks(start_s, now_s)),
        moments=tuple(_moments(lines, scale)),
        moment_percent=100 / MOMENTS,
    )


def _name(devices: Sequence[HistoryState], *, several: bool) -> str:
    """The devices of a line: their ids, with their system where there are several."""
    by_system: dict[tuple[str, str, bool], list[int]] = {}
    for one in devices:
        by_system.setdefault((one.host, one.system, one.is_open), []).append(one.physical_id)
    names = []
    for (host, system, is_open), ids in by_system.items():
        where = " ".join(filter(None, (system if several else "", f"on {host}" if host else "")))
        noun = "device" if len(ids) == 1 else "devices"
        names.append(f"{where} {noun} {device_ranges(ids)}{'' if is_open else ' (closed)'}".strip())
    return ", ".join(names)


@dataclass(frozen=True)
class _Scale:
    """From seconds and bytes to the drawing."""

    start_s: float
    now_s: float
    most_bytes: int

    def x(self, time_s: float) -> str:
        share = (time_s - self.start_s) / (self.now_s - self.start_s)
        return f"{WIDTH * min(1.0, max(0.0, share)):.1f}".removesuffix(".0")

    def y(self, size_bytes: int) -> str:
        return f"{HEIGHT - HEIGHT * size_bytes / self.most_bytes:.2f}".rstrip("0").rstrip(".")


def _line(name: str, colour: str, points: Sequence[Point], scale: _Scale) -> WebLine:
    path = f"M{scale.x(points[0].time_s)} {scale.y(points[0].last)}"
    for before, point in pairwise(points):
        if point.last != before.last:
            path += f"H{scale.x(point.time_s)}V{scale.y(point.last)}"
    return WebLine(name, colour, size_text(points[-1].last), f"{path}H{WIDTH}", _band(points, scale))


def _band(points: Sequence[Point], scale: _Scale) -> str:
    """The area between the least and the most of every step; empty where they are the same."""
    if all(p.low == p.high for p in points):
        return ""
    ends = [*(p.time_s for p in points[1:]), scale.now_s]
    there = f"M{scale.x(points[0].time_s)} {scale.y(points[0].low)}"
    there += "".join(f"V{scale.y(p.high)}H{scale.x(end)}" for p, end in zip(points, ends, strict=True))
    starts = [p.time_s for p in points]
    back = "".join(f"V{scale.y(p.low)}H{scale.x(start)}" for p, start in zip(points[::-1], starts[::-1], strict=True))
    return f"{there}{back}Z"


def _envelope(histories: Sequence[Sequence[Point]]) -> list[Point]:
    """The least and the most of several histories at every time."""
    at: dict[int, list[Point]] = {}
    for points in histories:
        for point in points:
            at.setdefault(point.time_s, []).append(point)
    return [
        Point(time_s, min(p.low for p in here), max(p.high for p in here), max(p.last for p in here))
        for time_s, here in sorted(at.items())
    ]


def _time_ticks(start_s: float, now_s: float) -> list[WebTick]:
    length = now_s - start_s
    step = next((step for step in TIME_STEPS_S if length / step <= 5), TIME_STEPS_S[-1])
    ago = [step * i for i in range(int(length // step) + 1)]
    return [WebTick(100 - 100 * s / length, f"−{duration_text(s)}" if s else "now") for s in ago]


def duration_text(seconds: float) -> str:
    """45 s, 1 min 30 s, 12 min, 3 h 20 min."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 600 and round(seconds) % 60:
        return f"{round(seconds) // 60} min {round(seconds) % 60} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    return f"{minutes // 60} h" + (f" {minutes % 60} min" if minutes % 60 else "")


def _moments(lines: Sequence[tuple[str, Sequence[Point]]], scale: _Scale) -> list[WebTick]:
    """What every line held at equal distances of time."""
    found = []
    step_s = (scale.now_s - scale.start_s) / MOMENTS
    at = [0] * len(lines)
    for i in range(MOMENTS):
        time_s = scale.start_s + (i + 1) * step_s
        texts = []
        for number, (name, points) in enumerate(lines):
            while at[number] + 1 < len(points) and points[at[number] + 1].time_s <= time_s:
                at[number] += 1
            point = points[at[number]]
            if point.time_s <= time_s:
                texts.append(f"{name}: {size_text(point.last)}")
        ago = scale.now_s - time_s
        found.append(
            WebTick(100 * i / MOMENTS, "\n".join([f"{duration_text(ago)} ago" if ago >= 1 else "now", *texts]))
        )
    return found
