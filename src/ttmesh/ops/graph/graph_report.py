"""The contents of a graph report besides the graph: meshes and, if enabled, every page of every buffer."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import yaml

from ttmesh.chip.catalogue import current_system
from ttmesh.chip.cells import Cell
from ttmesh.chip.cluster_descriptor import describe_cluster
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.mesh.functions.device_info import get_device_info
from ttmesh.mesh.functions.memory_reports import BufferPageInfo, list_pages


class _Detail:
    """The flag of detailed buffer tracing."""

    enabled = False


def enable_detailed_buffer_tracing() -> None:
    """Make captures record every live buffer after each operation, and every page when it is allocated."""
    _Detail.enabled = True


def disable_detailed_buffer_tracing() -> None:
    """Make captures record allocations only."""
    _Detail.enabled = False


def is_detailed_buffer_tracing_enabled() -> bool:
    """Whether captures record live buffers and pages."""
    return _Detail.enabled


def describe_device(mesh: MeshDevice) -> dict[str, Any]:
    """A mesh with the keys of TT-NN's reports."""
    return {
        "device_id": mesh.id(),
        **asdict(get_device_info(mesh)),
        "arch": mesh.arch().name,
        "num_dram_channels": mesh.chip.dram_banks,
        "dram_size_per_channel": mesh.chip.dram_view_bytes,
    }


def describe_topology() -> dict[str, str]:
    """The system as reports carry it: of these files ttnn-visualizer draws its Topology page."""
    files = describe_cluster(current_system())
    names = {
        "cluster_descriptor": "cluster_descriptor.yaml",
        "mesh_coordinate_mapping": "physical_chip_mesh_coordinate_mapping.yaml",
    }
    return {
        key: yaml.safe_dump(files[name], default_flow_style=None, sort_keys=False)
        for key, name in names.items()
        if name in files
    }


def list_live_cells(mesh: MeshDevice) -> list[Cell]:
    """Every buffer of a mesh, oldest first; read without a lock, because captures call it during an allocation."""
    return sorted((cell for kind in mesh.heap.live.values() for cell in kind.values()), key=lambda c: c.buffer_id)


def list_live_buffers(mesh: MeshDevice) -> list[dict[str, Any]]:
    """Every buffer of a mesh with the keys of TT-NN's reports."""
    return [
        {
            "device_id": mesh.id(),
            "address": cell.address,
            "max_size_per_bank": cell.bank_bytes,
            "buffer_type": cell.buffer_type.value,
            "buffer_layout": 0,
        }
        for cell in list_live_cells(mesh)
    ]


def list_buffer_pages(mesh: MeshDevice, address: int | None = None) -> list[dict[str, Any]]:
    """Every page of a mesh's buffers, or of those at an address; addresses are the same on all its chips."""
    chip = mesh.local_ids()[0]
    cells = (cell for cell in list_live_cells(mesh) if address is None or cell.address == address)
    pages = (page for cell in cells for page in list_pages(mesh, cell) if page.device_id == chip)
    return [_describe_page(mesh, page) for page in pages]


def _describe_page(mesh: MeshDevice, page: BufferPageInfo) -> dict[str, Any]:
    facts = {name: getattr(page, name) for name in PAGE_FIELDS}
    return {"device_id": mesh.id(), **facts, "buffer_type": page.buffer_type.value}


PAGE_FIELDS = ("address", "core_y", "core_x", "bank_id", "page_index", "page_address", "page_size")
