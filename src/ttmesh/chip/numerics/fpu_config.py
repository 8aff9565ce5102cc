"""What decides how the FPU computes one call."""

from __future__ import annotations

from dataclasses import dataclass

from ttmesh.base import numerics_mode
from ttmesh.base.dtypes import Arch, DataType, MathFidelity, bfloat16

PHASES = {MathFidelity.LoFi: 1, MathFidelity.HiFi2: 2, MathFidelity.HiFi3: 3, MathFidelity.HiFi4: 4}


@dataclass(frozen=True)
class FpuConfig:
    """One call's settings, all resolved; `a` is the activations' operand, `b` the weights'."""

    arch: Arch = Arch.WORMHOLE_B0
    fidelity: MathFidelity = MathFidelity.HiFi2
    fp32_dest: bool = False
    packer_l1_acc: bool = False
    k_block: int | None = None  # elements of K per block; None: one block
    a_dtype: DataType = bfloat16
    b_dtype: DataType = bfloat16
    out_dtype: DataType = bfloat16
    fused_bias: bool = False  # then every block is added up in L1, from where the bias takes the sum

    @property
    def phases(self) -> int:
        """How many passes over the operands' bits."""
        return PHASES[self.fidelity]

    @property
    def has_minus_one_fault(self) -> bool:
        """Whether a sum of exactly -1 unit renormalises wrongly: Wormhole's 32-bit destinations (tt-metal #38306)."""
        return self.fp32_dest and self.arch is Arch.WORMHOLE_B0 and numerics_mode.state.minus_one_fault

    def block_starts(self, depth: int) -> list[int]:
        """Where the blocks of K begin."""
        return list(range(0, max(depth, 1), self.k_block or max(depth, 1)))
