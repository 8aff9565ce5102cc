"""How a program computes on a chip: fidelity, accumulation, approximation.

Operations of the FPU follow it where TTMESH_NUMERICS is realistic or exact (docs/numerics.md). In ideal it is kept
and compared: results accumulate in float32 and round once, which is HiFi4 with fp32_dest_acc_en, the best a chip does.
`fp32_dest_acc_en` and `packer_l1_acc` do change how much L1 a product's circular buffers take.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ttmesh.base.dtypes import Arch, MathFidelity, PrintedEnum


class ThrottleLevel(PrintedEnum):
    """How much the FPU is slowed down to save power."""

    NO_THROTTLE = 0
    LEVEL_1 = 1
    LEVEL_2 = 2
    LEVEL_3 = 3
    LEVEL_4 = 4
    LEVEL_5 = 5


@dataclass(unsafe_hash=True)
class WormholeComputeKernelConfig:
    """Options of TT-NN's compute kernels; one class for all chips."""

    math_fidelity: MathFidelity = MathFidelity.Invalid
    math_approx_mode: bool = True
    fp32_dest_acc_en: bool = False
    packer_l1_acc: bool = False
    dst_full_sync_en: bool = False
    throttle_level: ThrottleLevel = ThrottleLevel.NO_THROTTLE


DeviceComputeKernelConfig = BlackholeComputeKernelConfig = WormholeComputeKernelConfig


def init_device_compute_kernel_config(
    arch: Arch,
    device_kernel_config: WormholeComputeKernelConfig | None = None,
    *,
    math_fidelity: MathFidelity = MathFidelity.LoFi,
    math_approx_mode: bool = True,
    fp32_dest_acc_en: bool = False,
    packer_l1_acc: bool = False,
    dst_full_sync_en: bool = False,
    throttle_level: ThrottleLevel = ThrottleLevel.NO_THROTTLE,
) -> WormholeComputeKernelConfig:
    """The given config, or one from these defaults. Every arch takes the same fields."""
    if device_kernel_config is None:
        return WormholeComputeKernelConfig(
            math_fidelity, math_approx_mode, fp32_dest_acc_en, packer_l1_acc, dst_full_sync_en, throttle_level
        )
    if device_kernel_config.math_fidelity is MathFidelity.Invalid:
        return replace(device_kernel_config, math_fidelity=math_fidelity)
    return device_kernel_config


def layernorm_default_compute_config(arch: Arch) -> WormholeComputeKernelConfig:
    """The default compute config of layer norm."""
    return init_device_compute_kernel_config(
        arch, math_fidelity=MathFidelity.HiFi4, math_approx_mode=False, fp32_dest_acc_en=True
    )


def rmsnorm_default_compute_config(arch: Arch) -> WormholeComputeKernelConfig:
    """The default compute config of RMS norm."""
    return init_device_compute_kernel_config(arch, math_fidelity=MathFidelity.HiFi4)
