"""tt-metal's shared-memory statistics, version 3: written for our chips, read from real ones."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import stat
import struct
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ttmesh.base import settings
from ttmesh.base.errors import MeshError
from ttmesh.tracking.spans import Span
from ttmesh.tracking.state import DeviceState, Pool, ProcessState, State, Usage

VERSION = 3
CLASSES = ("DRAM", "L1", "L1_SMALL", "TRACE", "CB")  # the order of the five counters everywhere in the file
HOST = "tt-metal"  # in place of a host's name, so that a real chip 0 is not mistaken for ours
OURS = 0x74746D6573680000  # "ttmesh" and the physical id: the unique id of a chip that does not exist

# facts: tt-metal e4f9f0b, memory_stats_shm.hpp
HEAD = struct.Struct("<IIQI4xQQI4x5Q")
CHIP = struct.Struct("<II5Q")
PROCESS = struct.Struct("<i4x5QQ64s")
CHIPS, CHIPS_AT = 16, 88
PROCESSES, PROCESSES_AT = 64, 856
FILE_BYTES = 8576
MOST_FILES = 1024  # files that are read at most; any user may create more
UNUSED = 0xFFFFFFFF
MANY_CHIPS = 4096  # more than a system has: between the numbers of chips of two systems with the same id


def default_directory() -> Path:
    """Where the files are: /dev/shm unless TTMESH_SHARED_MEMORY names another directory."""
    return Path(settings.get_str("TTMESH_SHARED_MEMORY"))


@dataclass(frozen=True)
class SharedProcess:
    """What one process holds, in the order of CLASSES."""

    pid: int
    used: tuple[int, ...]
    name: str


@dataclass(frozen=True)
class SharedChip:
    """What one chip holds, in the order of CLASSES."""

    chip_id: int
    is_remote: bool
    used: tuple[int, ...]


@dataclass(frozen=True)
class SharedDevice:
    """One file: a device, the chips behind it, its processes."""

    asic_id: int
    device_id: int
    used: tuple[int, ...]
    chips: tuple[SharedChip, ...]
    processes: tuple[SharedProcess, ...]


def pack(device: SharedDevice, *, time_ns: int) -> bytes:
    """The bytes of a file; what does not fit into its tables is left out of them, not out of the totals."""
    out = bytearray(FILE_BYTES)
    shown = device.processes[:PROCESSES]
    HEAD.pack_into(out, 0, VERSION, len(shown), time_ns, len(shown), 0, device.asic_id, device.device_id, *device.used)
    for i in range(CHIPS):
        CHIP.pack_into(out, CHIPS_AT + i * CHIP.size, UNUSED, 0, 0, 0, 0, 0, 0)
    for i, chip in enumerate(device.chips[:CHIPS]):
        CHIP.pack_into(out, CHIPS_AT + i * CHIP.size, chip.chip_id, int(chip.is_remote), *chip.used)
    for i, process in enumerate(shown):
        name = process.name.encode(errors="replace")[:63]
        PROCESS.pack_into(out, PROCESSES_AT + i * PROCESS.size, process.pid, *process.used, time_ns, name)
    return bytes(out)


def unpack(data: bytes) -> SharedDevice | None:
    """The content of a file, None if it is of another version."""
    if len(data) < FILE_BYTES or data[:4] != VERSION.to_bytes(4, "little"):
        return None
    _, _, _, _, _, asic_id, device_id, *used = HEAD.unpack_from(data, 0)
    chips = [CHIP.unpack_from(data, CHIPS_AT + i * CHIP.size) for i in range(CHIPS)]
    processes = [PROCESS.unpack_from(data, PROCESSES_AT + i * PROCESS.size) for i in range(PROCESSES)]
    return SharedDevice(
        asic_id,
        device_id,
        tuple(used),
        tuple(SharedChip(number, bool(remote), tuple(sizes)) for number, remote, *sizes in chips if number != UNUSED),
        tuple(
            SharedProcess(pid, tuple(sizes), name.partition(b"\0")[0].decode(errors="replace"))
            for pid, *sizes, _, name in processes
            if pid > 0
        ),
    )


def write(state: State, directory: Path) -> list[Path]:
    """One file for each of this host's devices; returns their paths."""
    paths: list[Path] = []
    numbers: set[int] = set()
    for device in state.devices:
        if device.host:
            continue
        number = device.physical_id
        while number in numbers:  # a chip of another system has the same id
            number += MANY_CHIPS
        numbers.add(number)
        used = _sizes(device.usage)
        chip = SharedChip(device.physical_id, device.is_remote, used)
        processes = tuple(
            SharedProcess(p.pid, _sizes(p.usage[device.system][device.physical_id]), p.name)
            for p in state.processes
            if not p.host and device.physical_id in p.usage.get(device.system, {})
        )
        shared = SharedDevice(OURS | number & 0xFFFF, device.physical_id, used, (chip,), processes)
        path = directory / f"tt_device_{shared.asic_id}_memory"
        _write_own(path, pack(shared, time_ns=time.time_ns()))
        paths.append(path)
    return paths


def clean(directory: Path) -> list[Path]:
    """Remove every file that `write` made, of any user, as far as permitted; returns the removed paths."""
    gone = []
    for path in sorted(directory.glob("tt_device_*_memory")):
        number = path.name.split("_")[2]
        if number.isdigit() and int(number) & ~0xFFFF == OURS:
            with contextlib.suppress(
                FileNotFoundError, PermissionError
            ):  # another process removed it, or it belongs to another user
                path.unlink()
                gone.append(path)
    return gone


def read(directory: Path) -> list[SharedDevice]:
    """Statistics that real tt-metal wrote; our own files and unreadable ones are skipped."""
    found = []
    for path in sorted(itertools.islice(directory.glob("tt_device_*_memory"), MOST_FILES)):
        try:
            device = unpack(_read_regular(path))
        except OSError:  # another user's: tt-metal makes them 0600
            continue
        if device is not None and device.asic_id & ~0xFFFF != OURS:
            found.append(device)
    return found


def _read_regular(path: Path) -> bytes:
    """The first FILE_BYTES of a regular file; pipes and links, which any user may create there, are refused."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return os.read(fd, FILE_BYTES) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
    finally:
        os.close(fd)


def _write_own(path: Path, data: bytes) -> None:
    """Write a regular file of this user; a file of another user in its place is not touched."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
                raise PermissionError(errno.EPERM, "it is not a file of yours")
            os.pwrite(fd, data, 0)
        finally:
            os.close(fd)
    except OSError as error:
        raise MeshError(
            f"{path} cannot be written: {error.strerror}",
            expected="a regular file of yours, or none",
            fix="Remove that file, or choose another folder with -o.",
        ) from None


def as_states(found: Iterable[SharedDevice]) -> tuple[list[DeviceState], list[ProcessState]]:
    """Real chips and their processes as a monitor shows them; capacities and addresses are not in the files."""
    devices: list[DeviceState] = []
    usage: dict[int, tuple[str, dict[str, dict[int, dict[str, Usage]]]]] = {}
    for device in found:
        system = f"{device.asic_id:x}"  # every file is a device of its own, also if another has the same id
        for chip in device.chips or (SharedChip(device.device_id, False, device.used),):
            devices.append(_device(system, chip))
        for process in device.processes:
            if os.path.exists(f"/proc/{process.pid}"):  # the files outlive their processes
                held = usage.setdefault(process.pid, (process.name, {}))[1]
                held.setdefault(system, {})[device.device_id] = _usage(process.used)
    processes = [
        ProcessState(HOST, pid, 0, name, 0.0, True, 0, 0, [], held, [], {}) for pid, (name, held) in usage.items()
    ]
    return devices, processes


def _device(system: str, chip: SharedChip) -> DeviceState:
    used = _usage(chip.used)
    dram, l1 = chip.used[0] + chip.used[3], chip.used[1] + chip.used[2] + chip.used[4]
    pools = {name: Pool(name, 0, size, size, 0, Span(0, 0), 0, 0, 0.0) for name, size in (("DRAM", dram), ("L1", l1))}
    return DeviceState(HOST, chip.chip_id, chip.chip_id, (), "", system, chip.is_remote, False, used, pools)


def _usage(sizes: tuple[int, ...]) -> dict[str, Usage]:
    return {kind: Usage(size, 0, size) for kind, size in zip(CLASSES, sizes, strict=True)}


def _sizes(usage: dict[str, Usage]) -> tuple[int, ...]:
    return tuple(usage[kind].used_bytes if kind in usage else 0 for kind in CLASSES)
