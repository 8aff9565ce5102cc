"""TT-NN's `CONFIG`: its options with their defaults, loaded from TTNN_CONFIG_PATH and TTNN_CONFIG_OVERRIDES."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path

from ttmesh.base.atomic_files import write_file
from ttmesh.base.errors import SettingError, one_of, suggest_names


def _home(*parts: str) -> Path:
    try:
        home = Path.home()
    except RuntimeError:  # a user without a home: what is stored there fails, not the import
        home = Path("/nonexistent")
    return home.joinpath(".cache", "ttnn", *parts)


@dataclass
class Options:
    """The options (tt-metal e4f9f0b, ttnn/api/ttnn/config.hpp); those about reports and fallbacks have no effect here."""

    cache_path: Path = field(default_factory=_home)
    model_cache_path: Path = field(default_factory=lambda: _home("models"))
    tmp_dir: Path = Path("/tmp/ttnn")
    enable_model_cache: bool = False
    enable_fast_runtime_mode: bool = True
    validate_program_args: bool = False
    throw_exception_on_fallback: bool = False
    enable_logging: bool = False
    enable_graph_report: bool = False
    enable_graph_python_stack_traces: bool = False
    enable_detailed_buffer_report: bool = False
    enable_detailed_tensor_report: bool = False
    enable_comparison_mode: bool = False
    comparison_mode_should_raise_exception: bool = False
    comparison_mode_pcc: float = 0.9999
    root_report_path: Path = Path("generated/ttnn/reports")
    report_name: str | None = None
    strict_ccl_topology: bool = False


class Config(Options):
    """Options that can be copied: `ttnn.Config(ttnn.CONFIG)`."""

    def __init__(self, other: Options | None = None) -> None:
        super().__init__()
        if other is not None:
            self.__dict__.update(other.__dict__)

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        if self is globals().get("CONFIG"):
            for listener in _listeners.get(name, ()):
                listener(value)

    @property
    def report_path(self) -> Path | None:
        """Where the report of this run goes: a folder with the first 64 characters of its name and the minute."""
        if self.report_name is None:
            return None
        name = re.sub(r"[^0-9A-Za-z]+", "_", str(self.report_name)[:64]).strip("_")
        return Path(self.root_report_path) / f"{name}_{time.strftime('%b%d_%H%M').lower()}"


_listeners: dict[str, list[Callable[[object], None]]] = {}


def on_change(name: str, listener: Callable[[object], None]) -> None:
    """Call a function with an option of `CONFIG` whenever it is set."""
    _listeners.setdefault(name, []).append(listener)


CONFIG = Config()
CONFIG_PATH = Path(os.environ["TTNN_CONFIG_PATH"]) if "TTNN_CONFIG_PATH" in os.environ else None
CONFIG_OVERRIDES = os.environ.get("TTNN_CONFIG_OVERRIDES")


def load_config_from_dictionary(config: Mapping[str, object], from_file: bool = False) -> None:
    """Set options by name; an unknown name or a value of another type is refused, and then nothing is set."""
    known = {option.name for option in fields(Options)}
    where = f" in {CONFIG_PATH}" if from_file else ""
    changed: dict[str, object] = {}
    for name, value in config.items():
        if name not in known:
            raise SettingError(
                f"Unknown configuration key: {name}{where}", expected=one_of(known), fix=suggest_names(str(name), known)
            )
        changed[name] = _convert_option(name, value, where)
    for name, value in changed.items():
        setattr(CONFIG, name, value)


def replace_config(config: Options) -> None:
    """What `ttnn.CONFIG = config` means: CONFIG stays the same object and takes the other's values."""
    for option in fields(Options):
        setattr(CONFIG, option.name, getattr(config, option.name))


def _convert_option(name: str, value: object, where: str) -> object:
    current = getattr(CONFIG, name)
    wanted: tuple[type, ...] = {bool: (bool,), float: (int, float)}.get(type(current), (str, Path, type(None)))
    if not isinstance(value, wanted) or (isinstance(value, bool) and bool not in wanted):
        raise SettingError(
            f"Bad value for configuration key {name}: {value!r:.200}{where}",
            expected=" or ".join(kind.__name__ for kind in wanted),
            fix=f"It is {current!r} now.",
        )
    return type(current)(value) if current is not None and value is not None else value


def load_config_from_json_file(json_path: str | Path) -> None:
    """Set options from a file."""
    try:
        text = Path(json_path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise SettingError(
            f"the configuration file {json_path} cannot be read ({getattr(error, 'strerror', None) or error})",
            expected="a JSON file with TT-NN's options",
            fix="Correct TTNN_CONFIG_PATH or unset it.",
        ) from None
    load_config_from_dictionary(_parse(text, "configuration values", str(json_path)), from_file=True)


def load_environment() -> None:
    """What is set at import: TTNN_CONFIG_PATH is read, TTNN_CONFIG_OVERRIDES wins over it.

    TT-NN writes its defaults to a path that does not exist; here a misspelt path is refused.
    """
    if CONFIG_PATH is not None:
        load_config_from_json_file(CONFIG_PATH)
    if CONFIG_OVERRIDES is not None:
        load_config_from_dictionary(_parse(CONFIG_OVERRIDES, "config overrides", "TTNN_CONFIG_OVERRIDES"))


def _parse(text: str, what: str, where: str) -> Mapping[str, object]:
    try:
        read = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SettingError(
            f"TTNN {what} are not valid JSON: {error} (from {where})",
            expected='a JSON object, such as {"enable_logging": true}',
            fix="Correct or unset it.",
        ) from None
    if not isinstance(read, dict):
        raise SettingError(
            f"TTNN {what} must be a JSON object, got: {text[:200]} (from {where})",
            expected='names and values, such as {"enable_logging": true}',
            fix="Correct or unset it.",
        )
    return read


def save_config_to_json_file(json_path: str | Path) -> None:
    """Write every option to a file."""
    options = {option.name: getattr(CONFIG, option.name) for option in fields(Options)}
    values = {name: str(value) if isinstance(value, Path) else value for name, value in options.items()}
    write_file(json_path, json.dumps(values, indent=2))


@contextmanager
def manage_config(name: str, value: object) -> Iterator[None]:
    """One option with another value for the length of a `with` block."""
    before = getattr(CONFIG, name)
    setattr(CONFIG, name, value)
    try:
        yield
    finally:
        setattr(CONFIG, name, before)
