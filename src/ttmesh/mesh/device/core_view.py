"""The cores of a mesh's chips."""

from __future__ import annotations

from ttmesh.base.cores import NOC, CoreCoord, CoreGrid, DramGrid
from ttmesh.base.dtypes import Arch
from ttmesh.base.geometry import MeshCoordinate
from ttmesh.chip.system import ChipSpec
from ttmesh.mesh.device.dram_workers import assign_dram_workers


class CoreView:
    """Properties of a MeshDevice that are the same for every chip: grids of cores and constants of the vector unit."""

    @property
    def chip(self) -> ChipSpec:
        """The description of each chip."""
        raise NotImplementedError

    def arch(self) -> Arch:
        """The chips' generation."""
        return self.chip.arch

    def compute_with_storage_grid_size(self) -> CoreCoord:
        """Columns and rows of compute cores."""
        return self.chip.compute_grid

    @property
    def core_grid(self) -> CoreGrid:
        """The compute cores as a grid."""
        return CoreGrid(y=self.chip.compute_grid.y, x=self.chip.compute_grid.x)

    def dram_grid_size(self) -> CoreCoord:
        """DRAM banks as a grid."""
        return DramGrid(self.chip.dram_banks, 1)  # create_sharded_memory_config recognises DRAM by this type

    def worker_core_from_logical_core(self, logical_core: CoreCoord) -> CoreCoord:
        """The NoC coordinate of a logical core: tensix cores start at (18, 18) in virtual coordinates on Wormhole."""
        base = 18 if self.chip.arch is Arch.WORMHOLE_B0 else 0
        offset = (0, 0) if base else (1, 2)
        return CoreCoord(logical_core.x + base + offset[0], logical_core.y + base + offset[1])

    def get_optimal_dram_bank_to_logical_worker_assignment(
        self, noc: NOC | int | None = None, coord: MeshCoordinate | None = None
    ) -> list[CoreCoord]:
        """The worker core nearest to each DRAM bank, as seen over one of the two NoCs."""
        network = noc.value if isinstance(noc, NOC) else int(noc or 0)
        return assign_dram_workers(self.chip.arch, self.chip.compute_grid, self.chip.dram_banks, network)

    def sfpu_eps(self) -> float:
        """The vector unit's machine epsilon, a float32 (TT-NN 0.81.1, both architectures)."""
        return 1.1920899822825959e-07

    def sfpu_nan(self) -> float:
        """What the vector unit has for NaN: a number (TT-NN 0.81.1)."""
        return 7.0039998997052e19

    def sfpu_inf(self) -> float:
        """What the vector unit has for infinity: a large number (TT-NN 0.81.1)."""
        return 1.7013999693950742e38
