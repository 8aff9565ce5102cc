"""TT-NN's options: from a file, from TTNN_CONFIG_OVERRIDES, and what is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from ttmesh.base import ttnn_config
from ttmesh.base.errors import SettingError


@pytest.fixture(autouse=True)
def kept() -> Iterator[None]:
    before = dict(ttnn_config.CONFIG.__dict__)
    yield
    ttnn_config.CONFIG.__dict__.update(before)


def test_a_saved_file_is_read_again(tmp_path: Path) -> None:
    ttnn_config.CONFIG.enable_logging = True
    ttnn_config.save_config_to_json_file(tmp_path / "c.json")
    ttnn_config.CONFIG.enable_logging = False

    ttnn_config.load_config_from_json_file(tmp_path / "c.json")

    assert ttnn_config.CONFIG.enable_logging
    assert isinstance(ttnn_config.CONFIG.cache_path, Path)
    assert json.loads((tmp_path / "c.json").read_text())["report_name"] is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "TTNN config overrides are not valid JSON: "),
        ("", "TTNN config overrides are not valid JSON: "),
        ("[" * 100_000, "TTNN config overrides are not valid JSON: "),
        ("[1]", "TTNN config overrides must be a JSON object, got: [1] (from TTNN_CONFIG_OVERRIDES)"),
        ('{"nope": true}', "Unknown configuration key: nope"),
        ('{"enable_logging": "x"}', "Bad value for configuration key enable_logging: 'x'; expected bool"),
        ('{"enable_logging": 1}', "Bad value for configuration key enable_logging: 1"),
        ('{"comparison_mode_pcc": "0.5"}', "Bad value for configuration key comparison_mode_pcc: '0.5'"),
        ('{"cache_path": 5}', "Bad value for configuration key cache_path: 5"),
    ],
)
def test_overrides_that_make_no_sense_are_refused(text: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ttnn_config, "CONFIG_OVERRIDES", text)
    before = dict(ttnn_config.CONFIG.__dict__)

    with pytest.raises(SettingError, match=re.escape(message)):
        ttnn_config.load_environment()

    assert ttnn_config.CONFIG.__dict__ == before


@pytest.mark.parametrize("content", [None, b"\xff", b"{"], ids=["missing", "binary", "broken"])
def test_a_file_that_cannot_be_read_is_refused(
    content: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "c.json"
    if content is not None:
        path.write_bytes(content)
    monkeypatch.setattr(ttnn_config, "CONFIG_PATH", path)

    with pytest.raises(SettingError, match=re.escape(str(path))):
        ttnn_config.load_environment()


def test_a_user_without_a_home_can_import_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("posixpath.expanduser", lambda path: path)  # what it returns where HOME and passwd say nothing

    config = ttnn_config.Config()

    assert config.cache_path == Path("/nonexistent/.cache/ttnn")
