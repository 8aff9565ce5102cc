"""`ttmesh info` shows the system, who coordinates, and what is wrong with a setting."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ttmesh.base.settings import SETTINGS
from ttmesh.cli import main, subcommands


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for setting in SETTINGS:
        monkeypatch.delenv(setting.variable, raising=False)
    monkeypatch.setenv("COLUMNS", "200")


GRID = """\
┌──────────────┬──────────────┬──────────────┬──────────────┐
│  Dev. ID: 4  │  Dev. ID: 0  │  Dev. ID: 3  │  Dev. ID: 7  │
├──────────────┼──────────────┼──────────────┼──────────────┤
│  Dev. ID: 5  │  Dev. ID: 1  │  Dev. ID: 2  │  Dev. ID: 6  │
└──────────────┴──────────────┴──────────────┴──────────────┘
"""


def test_info_draws_the_grid(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info"]) == 0

    out = capsys.readouterr().out
    assert out.startswith("t3000: 8 wormhole_b0 chips, 2x4 mesh\n" + GRID)
    for part in (
        "4: 0+4 1+5 2+6 3+7; 4, 5, 6, 7 without a PCIe link",
        "10 pairs with 2 links, 100 Gbit/s each way; rows form lines, columns form lines",
        "11.97 GB in 12 banks of 1070773184 B",
        "85.05 MB in 64 banks of 1393472 B",
        "8 x 8 at 1000 MHz",
        "device 4: an open mesh holds 3.17 MB of its L1",
        "no variables set",
    ):
        assert part in out


@pytest.mark.parametrize("device", range(8))
def test_the_chosen_coordinator_holds_most_l1(
    device: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TT_COORDINATOR_DEVICE_ID", str(device))

    assert main(["info", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert main(["info"]) == 0
    drawing = capsys.readouterr().out

    held = {int(chip): size for chip, size in facts["reserved_l1_bytes"].items()}
    assert facts["coordinator"] == facts["opens_as"][0] == device
    assert all(held[device] > size for chip, size in held.items() if chip != device)
    assert drawing.count("L1 3.17 MB") == 1
    assert drawing.count("│  coordinator  │") == 1
    assert drawing.count("L1 73 KB") == 7
    assert "the physical device that leads every mesh" in drawing


def test_json_holds_the_same_facts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "--system", "bh_galaxy", "--json"]) == 0

    facts = json.loads(capsys.readouterr().out)
    assert (facts["system"], facts["shape"], facts["topology"]) == ("bh_galaxy", [8, 4], "Torus")
    assert facts["chip"]["dram"]["banks"] == 8
    assert {"chips": [7, 31], "links": 4} in facts["links"]
    assert facts["rows"] == facts["columns"] == "ring"


def test_visible_devices_are_what_is_shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("TT_VISIBLE_DEVICES", "2")

    assert main(["info"]) == 0

    out = capsys.readouterr().out
    assert out.startswith("t3000: 2 wormhole_b0 chips, 1x2 mesh\n")
    assert "TT_VISIBLE_DEVICES" in out


def test_a_token_is_never_shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("TTMESH_TOKEN", "hunter2")

    assert main(["info"]) == 0
    assert main(["info", "--json"]) == 0

    out = capsys.readouterr().out
    assert "TTMESH_TOKEN" in out
    assert "hunter2" not in out


def test_a_user_file_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "desk.yaml"
    path.write_text("chip: blackhole_11x10\nshape: [1, 3]\nlinks: 1\nwrap: [1]\n")

    assert main(["info", "--system", str(path)]) == 0

    out = capsys.readouterr().out
    assert out.startswith("desk: 3 blackhole chips, 1x3 mesh")
    assert "3 pairs with 1 link, 400 Gbit/s each way; rows form rings" in out


def test_the_catalogue_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "--list"]) == 0
    assert "bh_galaxy" in capsys.readouterr().out
    assert main(["info", "--list", "--json"]) == 0
    assert {"name": "t3000", "shape": [2, 4], "chip": "wormhole_8x8"} in json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("TTMESH_SYSTEM", "t300", "no system named 't300'; expected one of ['n150', "),
        ("TT_COORDINATOR_DEVICE_ID", "9", "TT_COORDINATOR_DEVICE_ID=9 names no visible device; expected one of [0, 1"),
        ("TT_COORDINATOR_DEVICE_ID", "one", "TT_COORDINATOR_DEVICE_ID='one' cannot be used; expected a device id"),
        ("TT_VISIBLE_DEVICES", "8", "Invalid chip ID in TT_VISIBLE_DEVICES: 8."),
        ("TTMESH_BACKEND", "emulted", "no backend named 'emulted'; expected one of ["),
    ],
)
def test_a_bad_setting_is_one_line_and_status_2(
    variable: str, value: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(variable, value)

    assert main(["info"]) == 2

    error = capsys.readouterr().err
    assert error.startswith(f"ttmesh info: {message}")
    assert error.count("\n") == 1


def test_a_wrong_subcommand_is_answered_with_the_right_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inf"]) == 2
    assert "no subcommand 'inf'; expected one of [" in capsys.readouterr().err


@pytest.mark.parametrize("name", list(subcommands()))
def test_every_subcommand_says_what_it_does(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert subcommands()[name].endswith(".")
    assert main([]) == 0
    assert f"  {name} " in capsys.readouterr().out


def test_info_starts_without_torch() -> None:
    code = (
        "import sys; from ttmesh.cli import main; status = main(['info']); sys.exit(status or 'torch' in sys.modules)"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)

    assert done.returncode == 0, done.stdout + done.stderr


def test_the_module_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ttmesh", "--version"], capture_output=True, text=True, timeout=300, check=False
    )

    assert (done.returncode, done.stdout.split()[0]) == (0, "ttmesh")
