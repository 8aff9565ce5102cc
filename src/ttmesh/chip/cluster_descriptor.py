"""A system in the two files from which Tenstorrent's tools draw it: the cluster's descriptor and the mesh coordinates."""

from __future__ import annotations

from collections import Counter
from typing import Any

from ttmesh.chip.system import System

ARCH_NAMES = {"WORMHOLE_B0": "Wormhole", "BLACKHOLE": "Blackhole"}
CLUSTER_FILE = "cluster_descriptor.yaml"
MESH_FILE = "physical_chip_mesh_coordinate_mapping.yaml"


def describe_cluster(system: System) -> dict[str, dict[str, Any]]:
    """The contents of both files by name. Ports are counted up on every chip: which ones a link uses is not emulated."""
    ports: Counter[int] = Counter()
    links = []
    for (a, b), count in sorted(system.links.items()):
        for _ in range(count):
            links.append([{"chip": a, "chan": ports[a]}, {"chip": b, "chan": ports[b]}])
            ports.update((a, b))
    arch = ARCH_NAMES.get(system.chip.arch.name, system.chip.arch.name)
    rows = {chip: system.find_position(chip) for chip in system.ids}
    cluster = {
        "arch": dict.fromkeys(system.ids, arch),
        "chips": {chip: [column, row, 0, 0] for chip, (row, column) in rows.items()},
        "chip_unique_ids": {chip: chip + 1 for chip in system.ids},
        "ethernet_connections": links,
        "chips_with_mmio": [{chip: chip} for chip in system.mmio],
        "harvesting": {chip: {"noc_translation": True, "harvest_mask": 0} for chip in system.ids},
        "boardtype": dict.fromkeys(system.ids, system.name),
    }
    return {CLUSTER_FILE: cluster, MESH_FILE: {"chips": {chip: list(place) for chip, place in rows.items()}}}
