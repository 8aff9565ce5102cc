"""The fabric configuration of this process."""

from __future__ import annotations

from ttmesh.base.argument_types import name_wrong_types
from ttmesh.fabric.fabric_config import (
    FabricConfig,
    FabricManagerMode,
    FabricReliabilityMode,
    FabricRouterConfig,
    FabricTensixConfig,
    FabricUDMMode,
)
from ttmesh.fabric.fabric_state import FabricSetup, fabric_process, replace_setup
from ttmesh.mesh.device.opening import list_root_meshes

PAYLOAD_BYTES = (
    4 * 1088
)  # of a packet unless the router config says otherwise: four tiles of bfloat8_b (tt-metal e4f9f0b)


@name_wrong_types
def set_fabric_config(
    config: FabricConfig,
    reliability_mode: FabricReliabilityMode = FabricReliabilityMode.STRICT_INIT,
    num_planes: int | None = None,
    fabric_tensix_config: FabricTensixConfig = FabricTensixConfig.DISABLED,
    fabric_udm_mode: FabricUDMMode = FabricUDMMode.DISABLED,
    fabric_manager_mode: FabricManagerMode = FabricManagerMode.DEFAULT,
    router_config: FabricRouterConfig | None = None,
) -> None:
    """Configure how chips are connected, before a mesh is opened; DISABLED removes the configuration."""
    if not isinstance(config, FabricConfig):
        raise TypeError(f"config={config!r} is a {type(config).__name__}; pass ttnn.FabricConfig.FABRIC_1D, say")
    router = FabricRouterConfig() if router_config is None else router_config
    requested = FabricSetup(
        config, reliability_mode, num_planes, fabric_tensix_config, fabric_udm_mode, fabric_manager_mode, router
    )
    devices_open = bool(list_root_meshes())
    fabric_process.setup = replace_setup(fabric_process.setup, requested, devices_open=devices_open)
    if config is FabricConfig.DISABLED and not devices_open:
        fabric_process.launched = False


def get_fabric_config() -> FabricConfig:
    """The current configuration."""
    return fabric_process.setup.config


def get_tt_fabric_max_payload_size_bytes() -> int:
    """The most bytes that one packet carries."""
    return fabric_process.setup.router_config.max_packet_payload_size_bytes or PAYLOAD_BYTES


def fabric_setup() -> FabricSetup:
    """The current configuration with all its options."""
    return fabric_process.setup
