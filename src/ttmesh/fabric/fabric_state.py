"""The setup made by `set_fabric_config`, and when it may change."""

from __future__ import annotations

from dataclasses import dataclass, field

from ttmesh.base.errors import MeshError
from ttmesh.fabric.fabric_config import (
    FabricConfig,
    FabricManagerMode,
    FabricReliabilityMode,
    FabricRouterConfig,
    FabricTensixConfig,
    FabricUDMMode,
)


@dataclass(frozen=True)
class FabricSetup:
    """The fabric as a program configured it; without a call it is disabled.

    Only `config` changes what is emulated. Links are never down and routers have no cores of their own here, so the
    reliability, tensix, UDM, manager and router settings are kept and have no effect.
    """

    config: FabricConfig = FabricConfig.DISABLED
    reliability_mode: FabricReliabilityMode = FabricReliabilityMode.STRICT_INIT
    num_planes: int | None = None
    tensix_config: FabricTensixConfig = FabricTensixConfig.DISABLED
    udm_mode: FabricUDMMode = FabricUDMMode.DISABLED
    manager_mode: FabricManagerMode = FabricManagerMode.DEFAULT
    router_config: FabricRouterConfig = field(default_factory=FabricRouterConfig)


@dataclass
class FabricProcess:
    """The fabric of this process.

    `launched`: a mesh was opened with a fabric, and none has been disabled by the program since. `has_routes`: a mesh was
    ever opened with a fabric; its routing tables outlive it.
    """

    setup: FabricSetup = field(default_factory=FabricSetup)
    launched: bool = False
    has_routes: bool = False

    def open(self) -> None:
        """Note that a mesh is opened."""
        if self.setup.config is not FabricConfig.DISABLED:
            self.launched = self.has_routes = True

    def close(self) -> None:
        """The last mesh was closed: as in TT-NN this resets the configuration."""
        self.setup = FabricSetup()


fabric_process = FabricProcess()


def replace_setup(current: FabricSetup, wanted: FabricSetup, *, devices_open: bool) -> FabricSetup:
    """The setup after a change: off at any time, on only while every mesh is closed, over another only after off."""
    if wanted.config is FabricConfig.DISABLED:
        return FabricSetup()
    if devices_open:
        raise MeshError(
            f"SetFabricConfig({wanted.config.name}) is not allowed while devices are still open: it would reinitialize "
            "the control plane underneath running fabric kernels and dangle the ControlPlane& held by the fabric "
            "firmware initializer. Close the mesh device before changing the fabric config to a non-DISABLED value.",
            expected="set_fabric_config before open_mesh_device",
            fix="Close the mesh first.",
        )
    if current.config not in (FabricConfig.DISABLED, wanted.config):
        raise MeshError(
            f"Tried to override previous value of fabric config: {current.config.name}, with: {wanted.config.name}",
            expected="FabricConfig.DISABLED in between",
            fix="Call set_fabric_config(FabricConfig.DISABLED) first.",
        )
    return wanted
