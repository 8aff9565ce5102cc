"""Choices that mixtures of experts are configured with (tt-metal e4f9f0b, all_to_all_dispatch_metadata.hpp, moe_compute)."""

from __future__ import annotations

from enum import Enum


class DispatchAlgorithm(Enum):
    """Which packets carry a token on the chip: speed only."""

    BROADCAST = 0
    SPARSE_UNICAST = 1
    SPARSE_MCAST_LINEAR = 2
    SPARSE_MCAST_SHORTEST_PATH = 3
    SPARSE_MCAST_SPLIT_BW = 4


class WorkerMode(Enum):
    """How the cores that send share a link on the chip: speed only."""

    DIRECT = 0
    MUX_TOKEN_SPLIT = 1
    MUX_PAYLOAD_SPLIT = 2


class MoEActivationFunction(Enum):
    """What stands between the two products of an expert."""

    SILU = 0
    SWIGLU = 1
    GELU = 2
