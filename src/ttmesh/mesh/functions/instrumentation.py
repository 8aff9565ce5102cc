"""Functions of TT-NN that instrument the real runtime or clean it up: accepted, and mostly without effect here.

There is no Tracy profiler, no kernel cache and no memory report of the runtime: `ttmesh monitor` shows memory, and
kernels in Python are not compiled. Dispatch is always fast: cores for slow dispatch are not emulated.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ttmesh.base.argument_types import refuse_wrong_types
from ttmesh.base.dtypes import Arch
from ttmesh.base.errors import MeshError
from ttmesh.mesh.device.dispatch_cores import DispatchCoreAxis
from ttmesh.mesh.device.mesh_device import MeshDevice


def start_tracy_zone(source: str, functName: str, lineNum: int, color: int = 0) -> None:
    """Start a zone of the Tracy profiler; nothing is recorded here."""


def stop_tracy_zone(name: str = "", color: int = 0) -> bool:
    """End it; True, as in TT-NN."""
    return True


def tracy_message(source: str, color: int = 0xF0F8FF) -> None:
    """Send a message to the Tracy profiler; nothing is recorded here."""


def tracy_frame() -> None:
    """Mark a frame for the Tracy profiler; nothing is recorded here."""


def enable_memory_reports() -> None:
    """Make the runtime write memory reports; it has none here, ttmesh's tracking shows memory."""


def disable_memory_reports() -> None:
    """Stop them."""


def clear_kernel_cache() -> None:
    """Delete compiled kernels; there are none here."""


def set_root_dir(root_dir: str) -> None:
    """Say where TT-Metal's sources are; they are not needed here."""


@refuse_wrong_types
def initialize_fast_dispatch(device: MeshDevice, allow_destructive: bool = False) -> None:
    """Turn fast dispatch on, which it always is here."""


@refuse_wrong_types
def terminate_fast_dispatch(device: MeshDevice) -> None:
    """Turn it off again; here it stays on."""


@contextmanager
def setup_fast_dispatch(device: MeshDevice, *, allow_destructive: bool = False) -> Iterator[None]:
    """Fast dispatch inside the block; here it is on everywhere."""
    initialize_fast_dispatch(device, allow_destructive)
    try:
        yield
    finally:
        terminate_fast_dispatch(device)


@refuse_wrong_types
def enable_asynchronous_slow_dispatch(device: MeshDevice) -> None:
    """Refused, as by TT-NN with fast dispatch."""
    raise _fast_dispatch_error("enable_asynchronous_slow_dispatch can only be called when Fast Dispatch is disabled.")


@refuse_wrong_types
def disable_asynchronous_slow_dispatch(device: MeshDevice) -> None:
    """Refused, as by TT-NN with fast dispatch."""
    raise _fast_dispatch_error("disable_asynchronous_slow_dispatch can only be called when Fast Dispatch is disabled.")


@refuse_wrong_types
def is_asynchronous_slow_dispatch_enabled(device: MeshDevice) -> bool:
    """Refused, as by TT-NN with fast dispatch."""
    raise _fast_dispatch_error("std::bad_cast")


@refuse_wrong_types
def get_dispatch_core_axis(device: MeshDevice) -> DispatchCoreAxis:
    """Whether the cores that dispatch are a row or a column of the chip."""
    return DispatchCoreAxis.COL if device.arch() is Arch.BLACKHOLE else DispatchCoreAxis.ROW


def pad_to_tile_shape(unpadded_shape: list[int]) -> list[int]:
    """A shape whose last two dims are rounded up to tiles of 32x32."""
    if len(unpadded_shape) != 4:
        raise TypeError(f"pad_to_tile_shape takes a shape of four dims, not {list(unpadded_shape)}")
    return [*unpadded_shape[:2], *(-(-size // 32) * 32 for size in unpadded_shape[2:])]


def _fast_dispatch_error(wrong: str) -> MeshError:
    return MeshError(wrong, expected="slow dispatch", fix="ttmesh emulates fast dispatch only: leave the call out.")
