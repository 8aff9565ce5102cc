"""Configurations as plain dictionaries, for logs and caches (`ttnn.config_serialization`)."""

from __future__ import annotations

import json
from typing import Any

from ttmesh.ops.configs.compute_config import WormholeComputeKernelConfig
from ttmesh.tensor.spec.memory_config import MemoryConfig


def memory_config_to_dict(memory_config: MemoryConfig) -> dict[str, Any]:
    """A memory configuration; `hash` is ours, another number than TT-NN's."""
    return {
        "memory_layout": str(memory_config.memory_layout),
        "buffer_type": str(memory_config.buffer_type),
        "shard_spec": str(memory_config.shard_spec),
        "is_sharded": memory_config.is_sharded(),
        "interleaved": memory_config.interleaved,
        "hash": hash(memory_config),
    }


def compute_kernel_config_to_dict(compute_kernel_config: WormholeComputeKernelConfig) -> dict[str, Any]:
    """A compute configuration."""
    return {
        "math_fidelity": str(compute_kernel_config.math_fidelity),
        "math_approx_mode": str(compute_kernel_config.math_approx_mode),
        "fp32_dest_acc_en": bool(compute_kernel_config.fp32_dest_acc_en),
        "packer_l1_acc": bool(compute_kernel_config.packer_l1_acc),
        "dst_full_sync_en": bool(compute_kernel_config.dst_full_sync_en),
        "throttle_level": str(compute_kernel_config.throttle_level),
    }


def program_config_to_dict(program_config: Any) -> dict[str, Any]:
    """A program configuration: its JSON where it has one, else what it prints."""
    if hasattr(program_config, "to_json"):
        return {**json.loads(program_config.to_json()), "type": type(program_config).__name__}
    return {"type": type(program_config).__name__, "repr": repr(program_config)}
