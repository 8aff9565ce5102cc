"""Every TTMESH_ variable and the TT_ variables of the runtime, in one table, with default and meaning."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ttmesh.base.errors import SettingError, one_of, suggest_names

MAX_INTEGER = 2**63 - 1
MAX_SECONDS = 10_000_000.0  # four months; what the operating system's timers certainly hold


def parse_integer(text: str, low: int = -MAX_INTEGER, high: int = MAX_INTEGER) -> int:
    """A decimal number in a range; not all that int() takes: no underscores, no digits of other scripts."""
    stripped = text.strip()
    if not re.fullmatch(r"[+-]?[0-9]{1,20}", stripped) or not low <= int(stripped) <= high:
        raise ValueError(text)
    return int(stripped)


def parse_seconds(text: str, *, zero: bool = False) -> float:
    """A finite time, more than 0 unless `zero` is allowed."""
    value = float(text) if text.isascii() and "_" not in text else math.nan
    if not 0 <= value <= MAX_SECONDS or (value == 0 and not zero):
        raise ValueError(text)
    return value


def _parse_count(text: str) -> int:
    return parse_integer(text, low=0)


def _parse_text(text: str) -> str:
    """A printable text: not blank, without control characters and invalid UTF-8."""
    stripped = text.strip()
    if not stripped or not stripped.isprintable():
        raise ValueError(text)
    return stripped


def _parse_path(text: str) -> str:
    """A path may hold any bytes but control characters; it need not exist."""
    stripped = text.strip()
    if not stripped or any(ord(c) < 32 for c in stripped):
        raise ValueError(text)
    return stripped


def _parse_file(text: str) -> str:
    path = _parse_path(text)
    if not os.path.isfile(path):
        raise ValueError(text)
    return path


def _parse_switch(text: str) -> bool:
    lowered = text.strip().lower()
    if lowered in ("1", "true", "on", "yes"):
        return True
    if lowered in ("0", "false", "off", "no"):
        return False
    raise ValueError(text)


def _make_choice_parser(*names: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.strip() not in names:
            raise ValueError(text)
        return text.strip()

    return parse


def _parse_ids(text: str) -> tuple[str, ...]:
    return tuple(item.strip() for item in _parse_text(text).split(",") if item.strip())


@dataclass(frozen=True)
class Setting:
    """One variable: its parser, its default, its allowed values and its meaning."""

    variable: str
    parse: Callable[[str], object]
    default: object
    allowed: str
    meaning: str
    secret: bool = False  # never printed


SETTINGS: tuple[Setting, ...] = (
    Setting("TTMESH_SYSTEM", _parse_path, "t3000", "a system name, RxC or a YAML file", "which system is emulated"),
    Setting("TTMESH_BACKEND", _parse_text, "cpu", "a name from chip/backends", "the torch device that holds the lanes"),
    Setting(
        "TTMESH_SCHEDULE",
        _make_choice_parser("eager", "async", "adversarial"),
        "eager",
        one_of(["eager", "async", "adversarial"]),
        "how command queues run their commands",
    ),
    Setting(
        "TTMESH_NUMERICS",
        _make_choice_parser("ideal", "realistic", "exact"),
        "realistic",
        one_of(["ideal", "realistic", "exact"]),
        "how the FPU (a core's matrix engine) computes: float32 rounded once, close to the chip's, or the chip's bits",
    ),
    Setting(
        "TTMESH_MINUS_ONE_FAULT",
        _parse_switch,
        True,
        "0 or 1",
        "in numerics `exact`: Wormhole's wrong sums of exactly -1 unit in 32-bit destinations (tt-metal #38306)",
    ),
    Setting("TTMESH_SEED", parse_integer, 0, "an integer", "seed of the adversarial schedule"),
    Setting(
        "TTMESH_UNWRITTEN",
        _make_choice_parser("zeros", "poison"),
        "zeros",
        one_of(["zeros", "poison"]),
        "what memory reads as before anything was written to it",
    ),
    Setting(
        "TTMESH_TRACEBACK",
        _make_choice_parser("short", "full"),
        "short",
        one_of(["short", "full"]),
        "whether a traceback ends at the program's own line or shows the frames of ttmesh too",
    ),
    Setting("TTMESH_KERNELS", _parse_switch, True, "0 or 1", "use compiled kernels where a C compiler is found"),
    Setting(
        "TTMESH_CACHE", _parse_path, "", "a directory", "where compiled kernels are kept (default: the user's cache)"
    ),
    Setting(
        "TTMESH_ENGINE",
        _parse_text,
        "",
        "a name from fabric/transports",
        "what joins ranks (default: how it was started)",
    ),
    Setting(
        "TTMESH_TIMEOUT_S",
        parse_seconds,
        300.0,
        f"seconds, more than 0 and at most {MAX_SECONDS:.0f}",
        "how long a rank waits for the others in one operation",
    ),
    Setting(
        "TTMESH_CHECK_RANKS",
        _parse_switch,
        False,
        "0 or 1",
        "before every collective ranks compare what they call, and the first difference is named: for programs that hang",
    ),
    Setting(
        "TTMESH_ORDERED",
        _parse_switch,
        False,
        "0 or 1",
        "sums over ranks add chip by chip as one process does: the same bits, at the traffic of an all_gather",
    ),
    Setting(
        "TTMESH_CLAIMS",
        _make_choice_parser("auto", "exclusive", "shared"),
        "auto",
        one_of(["auto", "exclusive", "shared"]),
        "whether a chip belongs to one process: auto = only when TT_VISIBLE_DEVICES partitions the system",
    ),
    Setting(
        "TTMESH_RUNTIME_DIR",
        _parse_path,
        "",
        "a directory",
        "a private directory for the allocation server's socket and for claims (default: the system's for this user)",
    ),
    Setting(
        "TTMESH_LAUNCHED",
        _parse_switch,
        False,
        "0 or 1",
        "set by `ttmesh launch`, which learns of a crash from stderr",
    ),
    Setting(
        "TTMESH_SHARED_MEMORY",
        _parse_path,
        "/dev/shm",
        "a directory",
        "where real tt-metal's memory statistics are read",
    ),
    Setting("TTMESH_SOCKET", _parse_path, "", "a path or HOST:PORT", "where the allocation server listens"),
    Setting(
        "TTMESH_TOKEN", _parse_text, "", "a secret", "what a client shows to an allocation server over TCP", secret=True
    ),
    Setting("TTMESH_TRACK_STACKS", _parse_switch, False, "0 or 1", "record where each buffer was allocated"),
    Setting("TT_ALLOC_TRACKING_ENABLED", _parse_switch, False, "0 or 1", "report allocations to the allocation server"),
    Setting("TT_COORDINATOR_DEVICE_ID", _parse_count, None, "a device id", "the physical device that leads every mesh"),
    Setting("TT_VISIBLE_DEVICES", _parse_ids, None, "device ids, comma-separated", "the devices this process may use"),
    Setting("TT_MESH_ID", _parse_count, None, "a number from 0", "the mesh this rank belongs to"),
    Setting("TT_MESH_HOST_RANK", _parse_count, None, "a number from 0", "this rank's place in its mesh"),
    Setting(
        "TT_RUN_SUBCONTEXT_ID",
        _parse_count,
        None,
        "a number from 0",
        "the sub-context of a split job that this rank belongs to, set by the launcher",
    ),
    Setting(
        "TT_MESH_GRAPH_DESC_PATH",
        _parse_file,
        "",
        "a file that exists",
        "its host_topology says how ranks divide a mesh (nothing else of it is read)",
    ),
    Setting(
        "TT_METAL_TRACE_ALLOC_TRACKING",
        _parse_switch,
        False,
        "0 or 1",
        "whether execute_trace refuses to overwrite buffers allocated since the capture",
    ),
    Setting(
        "TT_METAL_TRACE_ALLOC_TRACEBACKS",
        _parse_switch,
        False,
        "0 or 1",
        "whether that error says where they were allocated and who holds them",
    ),
    Setting(
        "TT_METAL_TRACE_ALLOC_REFERRER_DEPTH",
        _parse_count,
        10,
        "a number from 0",
        "how deep containers are searched for who holds such a buffer",
    ),
    Setting("TT_METAL_CACHE", _parse_path, "", "a directory", "a separate cache for this process"),
)

_BY_NAME = {setting.variable: setting for setting in SETTINGS}
_overrides: dict[str, object] = {}


def get(variable: str, environ: Mapping[str, str] | None = None) -> object:
    """The current value: from `override`, else the environment, else the default."""
    if variable in _overrides:
        return _overrides[variable]
    setting = _BY_NAME[variable]
    text = (os.environ if environ is None else environ).get(variable)
    if not text:  # `VARIABLE= command` unsets it
        return setting.default
    return _parse_value(setting, text)


def get_str(variable: str) -> str:
    """A text setting."""
    return str(get(variable))


def get_bool(variable: str) -> bool:
    """An on/off setting."""
    return bool(get(variable))


def get_int(variable: str) -> int | None:
    """A number, or None when it is not set."""
    value = get(variable)
    return None if value is None else int(str(value))


def override(variable: str, value: object) -> None:
    """Set a value for this process, before the environment; None removes it."""
    if variable not in _BY_NAME:
        raise SettingError(
            f"no setting named {variable!r}", expected=one_of(_BY_NAME), fix=suggest_names(variable, _BY_NAME)
        )
    if value is None:
        _overrides.pop(variable, None)
    else:
        setting = _BY_NAME[variable]
        _overrides[variable] = _parse_value(setting, value) if isinstance(value, str) else value


def get_override(variable: str) -> str | None:
    """What `override` set of a text setting, or None."""
    value = _overrides.get(variable)
    return None if value is None else str(value)


def check_environment(environ: Mapping[str, str] | None = None) -> None:
    """Refuse unknown TTMESH_* variables (a typo would be silently ignored) and unusable values."""
    env = os.environ if environ is None else environ
    for variable in env:
        if variable.startswith("TTMESH_") and variable not in _BY_NAME:
            raise SettingError(
                f"{variable} is not a setting of ttmesh",
                expected=one_of(_BY_NAME),
                fix=suggest_names(variable, _BY_NAME),
            )
    for setting in SETTINGS:
        get(setting.variable, env)


def list_set_values() -> dict[str, object]:
    """Every variable that is set, by the environment or by `override`, with its value; secrets as "set"."""
    known = [s for s in SETTINGS if s.variable in _overrides or os.environ.get(s.variable)]
    return {s.variable: "set" if s.secret else get(s.variable) for s in known}


def _parse_value(setting: Setting, text: str) -> object:
    try:
        return setting.parse(text)
    except ValueError:
        raise SettingError(
            f"{setting.variable}={'(not shown)' if setting.secret else repr(text[:200])} cannot be used",
            expected=setting.allowed,
            fix=f"Correct or unset it; it says {setting.meaning}.",
        ) from None
