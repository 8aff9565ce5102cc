"""The pytest plugin: TT-NN's fixtures on emulated chips, a choice of coordinator, a leak check, peaks per test.

Loading it imports nothing heavy: only tests that use a device pay for importing ttmesh.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ttmesh.showcase.example_files import find_folder
from ttmesh.testing.coordinators import choose, order_devices
from ttmesh.testing.memory_watch import MemoryUsage, leaks, usage

if TYPE_CHECKING:
    from ttmesh.mesh.device.mesh_device import MeshDevice

TEXT_DEMO = "models/tt_transformers/demo/simple_text_demo.py"
VARIABLE = "TT_COORDINATOR_DEVICE_ID"
SEED = 213919  # TT-NN's own reset_seeds
USAGES = pytest.StashKey[list[MemoryUsage]]()
FAILED = pytest.StashKey[bool]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of the plugin, in a separate group."""
    group = parser.getgroup("ttmesh", "emulated Tenstorrent devices")
    group.addoption("--tt-system", help="the system to emulate, such as t3000, galaxy or 4x8")
    group.addoption("--coordinator", metavar="N|all|random", help="which physical device leads the mesh of each test")
    group.addoption("--tt-memory", action="store_true", help="print peak DRAM and L1 of every test")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(args: list[str]) -> None:
    """Run ttmesh's text demo for the path of tt-metal's, if there is no tt-metal checkout."""
    for i, arg in enumerate(args):
        path, separator, rest = arg.partition("::")
        if path.endswith(TEXT_DEMO) and not Path(path).exists():
            args[i] = f"{find_folder() / 'text_demo.py'}{separator}{rest}"


def pytest_configure(config: pytest.Config) -> None:
    """Set the chosen system and prepare the storage for tests' reports."""
    config.stash[USAGES] = []
    config.addinivalue_line("markers", "tt_allow_leaks: do not fail when buffers are still allocated at the end")
    system = config.getoption("--tt-system")
    if system is not None:
        os.environ["TTMESH_SYSTEM"] = system


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """--coordinator all: every test that has a mesh runs once with each device as coordinator."""
    wants_mesh = "mesh_device" in metafunc.fixturenames and "coordinator_id" not in metafunc.fixturenames
    if wants_mesh and metafunc.config.getoption("--coordinator") == "all":
        from ttmesh.chip.catalogue import current_system

        metafunc.fixturenames.append("coordinator_id")
        metafunc.parametrize("coordinator_id", current_system().ids, ids=lambda i: f"coordinator={i}")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Record whether the test failed: its traceback keeps tensors alive, which is not a leak."""
    outcome: Any = yield
    if call.when == "call":
        item.stash[FAILED] = outcome.get_result().failed


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print the coordinators, the devices with the highest L1 use, and on request the peaks."""
    from ttmesh.base.sizes import size_text

    usages = config.stash[USAGES]
    if usages and (config.getoption("--tt-memory") or config.getoption("--coordinator") or _variable() is not None):
        terminalreporter.section("ttmesh memory")
        for used in usages:
            highest = used.highest_l1_device
            terminalreporter.write_line(
                f"{used.test}: coordinator {used.coordinator}, highest L1 on device {highest} "
                f"({size_text(used.l1_bytes[highest])}), peak DRAM {size_text(used.peak_dram_bytes)}, "
                f"peak L1 {size_text(used.peak_l1_bytes)} per device"
            )


@pytest.fixture
def reset_seeds() -> None:
    """The random generators of torch, numpy and Python start from TT-NN's seed."""
    import numpy as np
    import torch

    torch.manual_seed(SEED)
    np.random.seed(SEED)
    random.seed(SEED)


@pytest.fixture
def device_params(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Options for opening, given by indirect parametrisation."""
    return dict(getattr(request, "param", {}) or {})


@pytest.fixture
def silicon_arch_name() -> str:
    """wormhole_b0 or blackhole."""
    from ttmesh.mesh.functions.cluster import get_arch_name

    return get_arch_name()


@pytest.fixture
def galaxy_type() -> str | None:
    """6U on a Galaxy, else None."""
    from ttmesh.mesh.functions.cluster import ClusterType, get_cluster_type

    return "6U" if get_cluster_type() in (ClusterType.GALAXY, ClusterType.BLACKHOLE_GALAXY) else None


@pytest.fixture
def device(request: pytest.FixtureRequest, device_params: dict[str, Any]) -> Iterator[MeshDevice]:
    """One chip, the default device while the test runs."""
    from ttmesh.base.geometry import MeshShape
    from ttmesh.mesh.device.opening import get_default_device, set_default_device

    before = get_default_device()
    with _open_mesh(request, MeshShape(1, 1), [device_params.pop("device_id", 0)], device_params) as opened:
        set_default_device(opened)
        yield opened
        set_default_device(before)


@pytest.fixture
def mesh_device(request: pytest.FixtureRequest, device_params: dict[str, Any]) -> Iterator[MeshDevice]:
    """A mesh of the parametrised shape: (rows, cols), a number n for 1xn, or the full system."""
    yield from _mesh(request, getattr(request, "param", None), device_params)


@pytest.fixture
def t3k_mesh_device(request: pytest.FixtureRequest, device_params: dict[str, Any]) -> Iterator[MeshDevice]:
    """The eight chips of a T3000 as 2x4."""
    yield from _mesh(request, (2, 4), device_params)


@pytest.fixture
def pcie_mesh_device(request: pytest.FixtureRequest, device_params: dict[str, Any]) -> Iterator[MeshDevice]:
    """The four chips on the host's PCIe bus as 1x4."""
    from ttmesh.base.geometry import MeshShape
    from ttmesh.chip.catalogue import current_system

    ids = current_system().mmio
    if len(ids) != 4:
        pytest.skip(f"needs 4 devices with PCIe, the system has {len(ids)}")
    with _open_mesh(request, MeshShape(1, 4), list(ids), device_params) as opened:
        yield opened


@pytest.fixture
def expect_error() -> Callable[[type[Exception], str], contextlib.AbstractContextManager[Any]]:
    """`with expect_error(RuntimeError, "text"):` the block must raise that."""
    return lambda error, message: pytest.raises(error, match=message)


def _mesh(request: pytest.FixtureRequest, wanted: Any, params: dict[str, Any]) -> Iterator[MeshDevice]:
    from ttmesh.base.geometry import MeshShape
    from ttmesh.chip.catalogue import current_system

    system = current_system()
    if wanted is None:
        shape = system.shape
    else:
        shape = MeshShape(1, wanted) if isinstance(wanted, int) else MeshShape(*wanted)
    if shape.mesh_size() > len(system.ids):
        pytest.skip(f"{shape!r} needs {shape.mesh_size()} devices, the system {system.name} has {len(system.ids)}")
    given = params.pop("physical_device_ids", None)
    parameters = getattr(getattr(request.node, "callspec", None), "params", {})
    coordinator = None
    if not given:
        coordinator = choose(
            parameter=parameters.get("coordinator_id"),
            option=request.config.getoption("--coordinator"),
            variable=_variable(),
            available=system.ids,
            seed=request.node.nodeid,
        )
    if coordinator is None:  # the mesh that a script gets for this shape
        with _open_mesh(request, shape, list(given or ()), params) as opened:
            yield opened
        return
    ids = order_devices(shape.mesh_size(), coordinator, system.ids)
    print(f"CUSTOM COORDINATOR: device {coordinator} leads {ids}")
    with pytest.MonkeyPatch.context() as environment, _open_mesh(request, shape, ids, params) as opened:
        environment.setenv(VARIABLE, str(coordinator))  # the test can ask who leads, whichever way it was chosen
        yield opened


@contextlib.contextmanager
def _open_mesh(
    request: pytest.FixtureRequest, shape: Any, ids: list[int], params: dict[str, Any]
) -> Iterator[MeshDevice]:
    from ttmesh.mesh.device.opening import close_mesh_device, open_mesh_device
    from ttmesh.mesh.functions.process_fabric import set_fabric_config

    fabric = params.pop("fabric_config", None)
    if fabric is not None:
        set_fabric_config(fabric)
    mesh = open_mesh_device(mesh_shape=shape, physical_device_ids=ids, **params)
    left: list[str] = []
    try:
        yield mesh
    finally:
        if mesh.is_open():
            request.config.stash[USAGES].append(usage(request.node.name, mesh))
            passed = not request.node.stash.get(FAILED, True)
            if passed and request.node.get_closest_marker("tt_allow_leaks") is None:
                left = leaks(mesh)
            close_mesh_device(mesh)
        if fabric is not None:
            set_fabric_config(type(fabric).DISABLED)
    if left:
        pytest.fail(
            f"buffers still allocated at the end of the test: {'; '.join(left)}. Free them (ttnn.deallocate, or let the "
            "last reference go), or mark a test that means to keep them with @pytest.mark.tt_allow_leaks.",
            pytrace=False,
        )


def _variable() -> int | None:
    from ttmesh.base import settings

    return settings.get_int(VARIABLE)
