"""`ttmesh web` over real HTTP, and in headless Chromium where there is one; screenshots go to artefacts/monitor."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
import uvicorn
from fixed_state import ARTEFACTS
from prometheus_client.parser import text_string_to_metric_families
from tracked import Program, RunningServer, environment, eventually

from ttmesh.tracking.address import Address

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Site(str):
    """The address without its token, which `get` adds."""

    token: str

    def path(self, path: str) -> str:
        return f"{self}{path}?token={self.token}"


def get(url: str, **headers: str) -> tuple[int, str, dict[str, str]]:
    request = urllib.request.Request(url, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=180) as reply:
            return reply.status, reply.read().decode(), dict(reply.headers)
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(), dict(error.headers)
    except urllib.error.URLError:
        return 0, "", {}


@pytest.fixture
def program(address: Address, start) -> Iterator[Program]:
    running = RunningServer(address, quiet=True)
    busy = start(TTMESH_TRACK_STACKS="1")
    busy.do("open")
    busy.do("reserve 74752")
    busy.do("allocate 104857600 2")
    busy.do("mark <b>step</b> 3")
    yield busy
    running.stop()


@pytest.fixture
def site(address: Address) -> Iterator[Site]:
    web = subprocess.Popen(
        [sys.executable, "-m", "ttmesh", "web", "--port", "0", "-r", "100"],
        env=environment(TTMESH_SOCKET=address.path),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert web.stdout
    url, _, token = web.stdout.readline().split()[1].partition("/?token=")
    site = Site(url)
    site.token = token
    eventually(lambda: get(f"{url}/page.css")[0], lambda status: status == 200, timeout_s=180)
    yield site
    web.terminate()
    web.communicate(timeout=180)


def test_the_api_gives_the_view_and_one_device(program, site):
    def view() -> dict:
        return json.loads(get(site.path("/api/view"))[1])

    seen = eventually(view, lambda v: sum(d["buffers"] for d in v.get("devices", [])) == 16)
    device = json.loads(get(site.path("/api/devices/3"))[1])

    assert [p["pid"] for p in seen["processes"]] == [program.pid]
    assert len(device["maps"][0]["cells"]) == 256
    assert device["buffers"][0]["label"] == "matmul"
    assert get(site.path("/api/devices/99"))[0] == 404


def test_metrics_are_what_prometheus_reads(program, site):
    def used() -> dict[str, float]:
        families = {f.name: f for f in text_string_to_metric_families(get(site.path("/metrics"))[1])}
        samples = families["ttmesh_memory_used_bytes"].samples if "ttmesh_memory_used_bytes" in families else []
        return {s.labels["device"]: s.value for s in samples if s.labels["class"] == "DRAM"}

    eventually(used, lambda found: found == {str(i): 209715200.0 for i in range(8)})


def test_events_are_pushed(program, site):
    with urllib.request.urlopen(site.path("/events"), timeout=180) as stream:
        first = json.loads(stream.readline().removeprefix(b"data: "))
        stream.readline()
        second = json.loads(stream.readline().removeprefix(b"data: "))

    assert second["time_s"] > first["time_s"]


def test_the_page_is_read_only_local_and_loads_nothing_from_elsewhere(program, site):
    status, page, headers = get(f"{site}/")
    foreign, _, _ = get(site.path("/api/view"), Host="evil.example")
    posted = urllib.request.Request(site.path("/api/view"), data=b"x", method="POST")

    assert status == 200
    assert "://" not in page
    assert headers["content-security-policy"].startswith("default-src 'self'")
    assert foreign == 400
    with pytest.raises(urllib.error.HTTPError, match="405"):
        urllib.request.urlopen(posted, timeout=180)


def test_only_those_with_the_token_see_what_is_held(program, site):
    for path in ("/api/view", "/api/devices/0", "/metrics", "/events", "/nothing"):
        status, text, _ = get(f"{site}{path}")
        guessed, _, _ = get(f"{site}{path}?token=guess")
        assert (status, guessed) == (401, 401), path
        assert "expected ?token=… as `ttmesh web` printed it" in text
    assert get(f"{site}/metrics", Authorization=f"Bearer {site.token}")[0] == 200
    assert get(f"{site}/")[0] == 200
    assert len(site.token) >= 20


@pytest.mark.parametrize("number", ["-1", "x", "9" * 5000, "99999999999999999999", "%ff"])
def test_what_is_no_device_is_not_found(program, site, number):
    assert get(site.path(f"/api/devices/{number}"))[0] == 404


def test_a_token_of_ones_own_is_not_printed_and_a_public_page_has_none(address, tmp_path):
    secret = tmp_path / "token"
    secret.write_text("hunter2\n")
    for options in (["--token-file", str(secret)], ["--public"]):
        web = subprocess.Popen(
            [sys.executable, "-m", "ttmesh", "web", "--port", "0", *options],
            env=environment(TTMESH_SOCKET=address.path),
            stdout=subprocess.PIPE,
            text=True,
        )
        url = web.stdout.readline().split()[1]
        eventually(lambda url=url: get(url)[0], lambda status: status == 200)
        allowed = get(f"{url}api/view?token=hunter2")[0] != 401, get(f"{url}api/view")[0] != 401
        web.terminate()
        web.communicate(timeout=180)

        assert "token" not in url
        assert allowed == (True, "--public" in options)


def test_silent_connections_and_readers_that_do_not_read_are_cut(monkeypatch):
    from ttmesh.monitor import web_connection

    monkeypatch.setattr(web_connection, "REQUEST_S", 0.05)
    monkeypatch.setattr(web_connection, "STALLED_S", 0.05)

    async def more_than_buffers_hold(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(1000):
            await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})

    config = uvicorn.Config(
        more_than_buffers_hold, port=0, http=web_connection.DeadlineConnection, lifespan="off", log_level="critical"
    )
    server = uvicorn.Server(config)
    listener = config.bind_socket()
    listener.listen()
    port = listener.getsockname()[1]
    running = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    running.start()
    with socket.create_connection(("127.0.0.1", port), timeout=180) as silent:
        assert silent.recv(1) == b""  # the server hangs up by itself
    deaf = socket.create_connection(("127.0.0.1", port), timeout=180)
    deaf.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")

    assert deaf.recv(8) == b"HTTP/1.1"
    eventually(lambda: len(server.server_state.connections), lambda left: left == 0)
    deaf.close()
    server.should_exit = True
    running.join(180)


def test_without_an_allocation_server_the_page_says_so(site):
    status, text, _ = get(site.path("/api/view"))

    assert status == 503
    assert "Start one with `ttmesh server`." in json.loads(text)["problem"]


def test_a_port_in_use_is_refused_before_an_address_is_printed(address):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        done = subprocess.run(
            [sys.executable, "-m", "ttmesh", "web", "--port", str(port)],
            env=environment(TTMESH_SOCKET=address.path),
            capture_output=True,
            text=True,
            timeout=300,
        )

    assert (done.returncode, done.stdout) == (2, "")
    assert f"http://127.0.0.1:{port}/ cannot be served: Address already in use" in done.stderr
    assert "Choose others with --host and --port" in done.stderr


def test_history_is_drawn_for_all_devices_or_one(program, site):
    def history(options: str) -> dict:
        return json.loads(get(f"{site.path('/page/history')}&{options}")[1])

    def names(found: dict) -> list[str]:
        return [line["name"] for chart in found.get("charts", []) for line in chart["lines"]]

    eventually(lambda: names(history("window=3600")), lambda found: found == ["devices 0-7", "devices 0-7"])
    assert names(history("window=x&device=3&system=t3000")) == ["device 3", "device 3"]
    assert history("device=77&system=t3000")["charts"][0]["lines"] == []


WIDTHS = (390, 1280, 1920)
HEIGHT = 800
# Boxes and their texts stay inside, and nothing makes the page scroll sideways.
CLIPPED = """() => {
  const wide = document.documentElement.scrollWidth > document.documentElement.clientWidth ? ["the page"] : [];
  const boxes = [...document.querySelectorAll(".chip, #side, #mesh, header")].filter((box) => {
    const { left, right } = box.getBoundingClientRect();
    return left < 0 || right > document.documentElement.clientWidth;
  });
  const texts = [...document.querySelectorAll(".chip .name, .chip .meter, h2")].filter(
    (one) => one.scrollWidth > one.clientWidth + 1);
  return [...wide, ...[...boxes, ...texts].map((one) => one.textContent)];
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[object]:
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=180_000)
    ARTEFACTS.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as play:
        running = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"], timeout=180_000)
        yield running
        running.close()


@pytest.fixture
def open_page(browser, site) -> Iterator[Callable[..., Page]]:
    """Opens pages; whatever they say on the console is a fault."""
    problems: list[str] = []

    def opened(width: int, theme: str = "light", hash_: str = "") -> Page:
        page = browser.new_page(viewport={"width": width, "height": HEIGHT}, color_scheme=theme)
        page.set_default_timeout(180_000)
        page.on("console", lambda message: problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(site.path("/") + hash_)
        page.wait_for_selector("body[data-ready=yes]")
        return page

    yield opened
    assert problems == []


in_a_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")


@in_a_browser
@pytest.mark.parametrize("width", WIDTHS)
def test_a_galaxy_fits_any_screen_and_a_chips_details_are_beside_it(program, site, open_page, width):
    from playwright.sync_api import expect

    program.do("galaxy")
    program.do("allocate 1048576 3")
    page = open_page(width, "dark" if width == 1280 else "light")
    expect(page.locator("#summary")).to_contain_text("40 devices")
    galaxy = page.locator(".group").first
    expect(galaxy.locator(".chip")).to_have_count(32)
    expect(galaxy.locator(".link")).to_have_count(8 * 3 + 7 * 4)
    assert page.evaluate(CLIPPED) == []
    tops = [galaxy.locator(".chip").nth(i).bounding_box() for i in (0, 31)]
    assert tops[1]["y"] + tops[1]["height"] <= HEIGHT  # all of it is on one screen

    galaxy.locator(".chip").nth(5).click()
    expect(page.locator("#device")).to_contain_text("Buffers by call site")
    assert page.evaluate(CLIPPED) == []
    side = page.locator("#side").bounding_box()
    assert 0 <= side["y"] < HEIGHT / 2
    assert side["y"] + 200 < HEIGHT
    page.wait_for_selector("#charts path")
    page.screenshot(path=str(ARTEFACTS / f"galaxy_{width}.png"))


@in_a_browser
def test_a_click_counts_although_the_page_is_drawn_anew_while_the_button_is_down(program, open_page):
    from playwright.sync_api import expect

    page = open_page(1280)
    chip, details = page.locator('.chip[data-key="/t3000/3"]'), page.locator("#device details")
    device, summary = page.locator("#device"), details.locator("summary b")

    def click_slowly(target: Locator, drawn_anew: Locator) -> None:
        target.hover()
        page.mouse.down()
        before = drawn_anew.text_content()
        program.do("allocate 10485760 1")
        expect(drawn_anew).not_to_have_text(before)
        page.mouse.up()

    click_slowly(chip.locator(".name b"), chip)
    expect(page.locator("#side-title")).to_have_text("Device 3")
    click_slowly(summary, summary)
    expect(details).to_have_attribute("open", "")
    click_slowly(chip.locator(".percent").first, chip)
    expect(device).to_be_hidden()


@in_a_browser
def test_a_click_counts_although_the_page_moves_while_the_button_is_down(program, open_page):
    from playwright.sync_api import expect

    page = open_page(390)
    chip, title = page.locator('.chip[data-key="/t3000/3"]'), page.locator("#side-title")

    def press_and_release(then: str, dx: int = 0) -> None:
        chip.hover(position={"x": 8, "y": 8})
        box = chip.bounding_box()
        page.mouse.down()
        page.evaluate(f"document.getElementById('groups').style.setProperty('margin-top', '{then}')")
        page.mouse.move(box["x"] + 8 + dx, box["y"] + 8)
        page.mouse.up()

    press_and_release("300px", dx=150)
    expect(title).to_have_text("History")  # dragged away: no click
    press_and_release("600px")
    expect(title).to_have_text("Device 3")


@in_a_browser
def test_numbers_that_grow_move_nothing(program, open_page):
    page = open_page(390)
    chip, summary = page.locator(".chip").first, page.locator("#summary")
    before = chip.bounding_box()["y"]
    page.evaluate("events.close()")  # what is written below stays

    page.evaluate("document.getElementById('summary').textContent += ', 1,234,567 records'")

    assert "1,234,567" in summary.text_content()
    assert chip.bounding_box()["y"] == before


@in_a_browser
def test_the_page_is_used_with_keys_links_and_a_search(program, site, open_page):
    from playwright.sync_api import expect

    program.do("send 0 3 5242880")
    page = open_page(1280)
    expect(page.locator(".chip")).to_have_count(8)
    expect(page.locator(".chip:has(.star) b")).to_have_text("4R")
    expect(page.locator("#processes tbody")).to_contain_text("<b>step</b> 3")
    expect(page.locator("#links tbody tr").first).to_contain_text("0 ↔ 3")
    expect(page.locator('.link[title^="0 → 3: 5.00 MB"]')).to_have_count(1)
    chips = page.locator(".chip")

    chips.nth(0).focus()
    page.keyboard.press("Enter")
    expect(page.locator("#side-title")).to_have_text("Device 4R")
    expect(page.locator(".map")).to_have_count(2)
    expect(page.locator("#device details")).to_have_count(1)  # two buffers of one call site
    expect(page.locator("#device details summary")).to_contain_text("2 buffers")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#side-title")).to_have_text("Device 0")
    assert "chip=%2Ft3000%2F0" in page.url
    copy = open_page(1280, hash_=page.url[page.url.index("#") :])
    expect(copy.locator("#side-title")).to_have_text("Device 0")
    copy.close()
    page.keyboard.press("Escape")
    expect(page.locator("#device")).to_be_hidden()
    expect(page.locator("#side-title")).to_have_text("History")

    page.keyboard.press("/")
    page.keyboard.type("device 6r")
    expect(page.locator(".chip:not(.miss) b")).to_have_text(["6R"])
    expect(page.locator("#processes tbody tr")).to_be_hidden()
    page.keyboard.press("Enter")
    expect(page.locator("#side-title")).to_have_text("Device 6R")
    page.click("#close")
    page.fill("#search", "")
    page.keyboard.press("Escape")
    page.keyboard.press("p")
    expect(page.locator("#pool")).to_have_text("L1")
    theme = page.locator("html").get_attribute("data-theme")
    page.click("#theme")
    expect(page.locator("html")).not_to_have_attribute("data-theme", theme)
    page.click("#windows button >> text=1 h")
    expect(page.locator("#charts .chart")).to_have_count(2)
    program.do("free 1")
    expect(page.locator("#summary")).to_contain_text("8 devices, 8 buffers")
    page.screenshot(path=str(ARTEFACTS / "page.png"), full_page=True)


@in_a_browser
def test_devices_leave_the_page_with_their_process_and_what_it_lost_is_shown(program, open_page):
    from playwright.sync_api import expect

    page = open_page(390, hash_="#chip=/t3000/3")
    expect(page.locator("#side-title")).to_have_text("Device 3")
    program.kill()

    expect(page.locator(".chip")).to_have_count(0)
    expect(page.locator("#nothing")).to_contain_text("No device is open yet.")
    expect(page.locator("#side-title")).to_have_text("Not open")
    page.keyboard.press("Escape")
    expect(page.locator("#lost tbody tr")).to_have_count(1)
    expect(page.locator("#lost-caption")).to_contain_text("Lost: still allocated when the process ended")
    expect(page.locator("#at-close")).to_be_hidden()
    expect(page.locator("#charts")).to_contain_text("devices 0-7 (closed)")
    assert page.evaluate(CLIPPED) == []
