"""The live page: a read-only web server around the view model."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict
from importlib import resources

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from ttmesh.base.errors import MeshError
from ttmesh.monitor.exports.prometheus import CONTENT_TYPE, to_prometheus
from ttmesh.monitor.leak_groups import LeakReport, group_leaks
from ttmesh.monitor.source import Detail, Source
from ttmesh.monitor.view import EVERYTHING, View
from ttmesh.monitor.web_chart import POINTS, WINDOWS, make_web_history
from ttmesh.monitor.web_device import MAP_CELLS, make_web_device
from ttmesh.monitor.web_view import make_web_view
from ttmesh.tracking.history import DAY
from ttmesh.tracking.state import DeviceKey

MOST_READERS = 64
FILES = {
    "/": ("index.html", "text/html"),
    "/page.js": ("page.js", "text/javascript"),
    "/page.css": ("page.css", "text/css"),
}
NO_LEAKS = LeakReport((), ())
REFUSAL = "this address shows what is held to those with its token; expected ?token=… as `ttmesh web` printed it"
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:",  # data: an empty icon
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


class Page:
    """Queries the allocation server once per refresh for all browsers."""

    def __init__(self, source: Source, *, refresh_ms: int) -> None:
        self._source = source
        self._refresh_s = refresh_ms / 1000
        self._readers = 0
        self._latest = b""
        self._number = 0
        self._leaks = (-1, NO_LEAKS)  # those after so many changes
        self._news = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None

    async def events(self, request: Request) -> Response:
        """Every view from now on as the page draws it, as server-sent events."""
        if self._readers >= MOST_READERS:
            return PlainTextResponse("too many readers", status_code=503, headers=HEADERS)
        return StreamingResponse(
            self._stream(request), media_type="text/event-stream", headers={**HEADERS, "Cache-Control": "no-store"}
        )

    async def view(self, request: Request) -> Response:
        """The view, once."""
        return await self._answer(lambda: asdict(self._source.view(EVERYTHING, trends=True)))

    async def device(self, request: Request) -> Response:
        """One device: its largest buffers and the cells of its address maps."""

        def describe(detail: Detail) -> object:
            maps = [
                {
                    "pool": m.pool,
                    "start": m.bank.start,
                    "end": m.bank.end,
                    "holes": len(m.holes),
                    "cells": m.cells(MAP_CELLS),
                }
                for m in detail.maps
            ]
            largest = [{name: getattr(b, name) for name in b.__struct_fields__} for b in detail.buffers.buffers[:100]]
            return {"device": asdict(detail.device), "maps": maps, "buffers": largest}

        return await self._answer_about(request, describe)

    async def drawn_device(self, request: Request) -> Response:
        """One device as the page draws it."""
        found = await self._answer_about(request, lambda detail: make_web_device(detail, self._source.view()))
        if found.status_code == 404:  # it was closed, which is no fault: a browser would complain of one
            return JSONResponse(None, headers=HEADERS)
        return found

    async def drawn_history(self, request: Request) -> Response:
        """What one device or all held over time, as the page draws it."""
        text = request.query_params.get("window", "")
        window_s = int(text) if text.isdecimal() and int(text[:6]) in WINDOWS.values() else DAY
        device = _find_key(request, request.query_params["device"]) if "device" in request.query_params else None

        def ask() -> object:
            view = self._source.view()
            histories = self._source.histories(device, window_s=window_s, points=POINTS)
            return make_web_history(histories, now_s=view.time_s, window_s=window_s)

        return await self._answer(ask)

    async def metrics(self, request: Request) -> Response:
        """The metrics as Prometheus scrapes them."""
        try:
            view = await run_in_threadpool(self._source.view)
        except MeshError as error:
            return PlainTextResponse(str(error), status_code=503, headers=HEADERS)
        return Response(to_prometheus(view), media_type=CONTENT_TYPE, headers=HEADERS)

    async def file(self, request: Request) -> Response:
        """The page, its script and its style sheet."""
        name, kind = FILES[request.url.path]
        text = resources.files("ttmesh.monitor").joinpath("page").joinpath(name).read_text(encoding="utf-8")
        return Response(text, media_type=kind, headers=HEADERS)

    async def _answer_about(self, request: Request, describe: Callable[[Detail], object]) -> Response:
        """Answer with what `describe` makes of the device in the path; not found if there is none."""
        key = _find_key(request, request.path_params["physical_id"])
        if key is None:
            return JSONResponse(None, status_code=404, headers=HEADERS)

        def ask() -> object:
            detail = self._source.detail(key)
            return None if detail is None else describe(detail)

        return await self._answer(ask)

    async def _answer(self, ask: Callable[[], object]) -> Response:
        try:
            found = await run_in_threadpool(ask)
        except MeshError as error:
            return JSONResponse({"problem": str(error)}, status_code=503, headers=HEADERS)
        status = 200 if found is not None else 404
        return Response(msgspec.json.encode(found), status_code=status, media_type="application/json", headers=HEADERS)

    async def _stream(self, request: Request) -> AsyncIterator[bytes]:
        self._readers += 1
        if self._task is None:
            self._task = asyncio.create_task(self._ask_for_all())
        try:
            seen = 0
            while not await request.is_disconnected():
                async with self._news:
                    if self._number == seen:
                        await self._news.wait()
                    seen, latest = self._number, self._latest
                yield b"data: " + latest + b"\n\n"
        finally:
            self._readers -= 1

    async def _ask_for_all(self) -> None:
        while self._readers:
            text = await run_in_threadpool(self._look)
            async with self._news:
                self._latest, self._number = text, self._number + 1
                self._news.notify_all()
            await asyncio.sleep(self._refresh_s)
        self._task = None

    def _look(self) -> bytes:
        """The current page."""
        try:
            view = self._source.view()
            return msgspec.json.encode(make_web_view(view, self._find_leaks(view)))
        except MeshError as error:
            return msgspec.json.encode({"problem": str(error)})

    def _find_leaks(self, view: View) -> LeakReport:
        """What was left; the server is asked only if there may be more than before."""
        if view.leftovers != self._leaks[0]:
            self._leaks = (view.leftovers, group_leaks(self._source.leaks()) if view.leftovers else NO_LEAKS)
        return self._leaks[1]


def _find_key(request: Request, number: str) -> DeviceKey | None:
    """The device that a request names; None if that is none."""
    if not number.isdecimal() or len(number) > 5:  # no device id is longer, and int() raises for very long ones
        return None
    return request.query_params.get("host", ""), request.query_params.get("system", ""), int(number)


class TokenMiddleware:
    """Requires the token for all data; the page itself needs none."""

    def __init__(self, app: ASGIApp, *, token: str) -> None:
        self._app = app
        self._token = token.encode(errors="surrogateescape")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Accept `?token=…`, or `Authorization: Bearer …` as Prometheus sends it."""
        if scope["type"] == "http" and scope["path"] not in FILES:
            request = Request(scope)
            bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
            shown = request.query_params.get("token", "") or bearer
            if not hmac.compare_digest(shown.encode(errors="replace"), self._token):
                refusal = JSONResponse({"problem": REFUSAL}, status_code=401, headers=HEADERS)
                await refusal(scope, receive, send)
                return
        await self._app(scope, receive, send)


def web_app(source: Source, *, refresh_ms: int, hosts: list[str], token: str) -> Starlette:
    """The web application; without a token anybody who can connect may read.

    It answers only to the names in `hosts`, so that no other site's page can reach it by DNS.
    """
    page = Page(source, refresh_ms=refresh_ms)
    routes = [
        *(Route(path, page.file) for path in FILES),
        Route("/events", page.events),
        Route("/api/view", page.view),
        Route("/api/devices/{physical_id}", page.device),
        Route("/page/devices/{physical_id}", page.drawn_device),
        Route("/page/history", page.drawn_history),
        Route("/metrics", page.metrics),
    ]
    middleware = [Middleware(TrustedHostMiddleware, allowed_hosts=hosts)]
    if token:
        middleware.append(Middleware(TokenMiddleware, token=token))
    return Starlette(routes=routes, middleware=middleware)
