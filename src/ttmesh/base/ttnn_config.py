"""TT-NN's `CONFIG`: its options with their defaults, loaded from TTNN_CONFIG_PATH and TTNN_CONFIG_OVERRIDES."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path

from ttmesh.base.atomic_files import write_file
from ttmesh.base.errors import SettingError, near, one_of


def _home(*parts: str) -> Path:
    return Path.home().joinpath(".cache", "ttnn", *parts)


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


class Config(Options):
    """Options that can be copied: `ttnn.Config(ttnn.CONFIG)`."""

    def __init__(self, other: Options | None = None) -> None:
        super().__init__()
        if other is not None:
            self.__dict__.update(other.__dict__)

    @property
    def report_path(self) -> Path | None:
        """Where the report of this run goes."""
        return None if self.report_name is None else self.root_report_path / str(hash(self.report_name))


CONFIG = Config()
CONFIG_PATH = Path(os.environ["TTNN_CONFIG_PATH"]) if "TTNN_CONFIG_PATH" in os.environ else None
CONFIG_OVERRIDES = os.environ.get("TTNN_CONFIG_OVERRIDES")


def load_config_from_dictionary(config: Mapping[str, object], from_file: bool = False) -> None:
    """Set options by name; an unknown name is refused."""
    known = {option.name for option in fields(Options)}
    for name, value in config.items():
        if name not in known:
            where = f" in {CONFIG_PATH}" if from_file else ""
            raise SettingError(
                f"Unknown configuration key: {name}{where}", expected=one_of(known), fix=near(name, known)
            )
        current = getattr(CONFIG, name)
        setattr(CONFIG, name, type(current)(value) if current is not None else value)


def load_config_from_json_file(json_path: str | Path) -> None:
    """Set options from a file."""
    load_config_from_dictionary(json.loads(Path(json_path).read_text()), from_file=True)


def save_config_to_json_file(json_path: str | Path) -> None:
    """Write every option to a file."""
    values = {name: str(value) if isinstance(value, Path) else value for name, value in asdict(replace(CONFIG)).items()}
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
