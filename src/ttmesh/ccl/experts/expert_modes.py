"""Options of mixtures of experts (tt-metal e4f9f0b, all_to_all_dispatch_metadata.hpp, moe_compute)."""

from __future__ import annotations

from enum import Enum


class DispatchAlgorithm(Enum):
    """Which packets carry a token; it affects only speed."""

    BROADCAST = 0
    SPARSE_UNICAST = 1
    SPARSE_MCAST_LINEAR = 2
    SPARSE_MCAST_SHORTEST_PATH = 3
    SPARSE_MCAST_SPLIT_BW = 4


class WorkerMode(Enum):
    """How the sending cores of a chip share a link; it affects only speed."""

    DIRECT = 0
    MUX_TOKEN_SPLIT = 1
    MUX_PAYLOAD_SPLIT = 2


class MoEActivationFunction(Enum):
    """The activation between the two matmuls of an expert."""

    SILU = 0
    SWIGLU = 1
    GELU = 2
