"""Functions of three tensors take operands of different formats; the result has the first one's."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch

import ttmesh.ttnn as ttnn
from ttmesh import MeshDevice

FORMATS = (ttnn.bfloat16, ttnn.bfloat8_b, ttnn.float32)
VALUES = torch.tensor([0.5, 2.0, 1.5])  # exact in every format


@pytest.fixture(scope="module")
def device() -> Iterator[MeshDevice]:
    with ttnn.manage_device(0) as opened:
        yield opened


@pytest.mark.parametrize(
    "formats", list(itertools.product(FORMATS, repeat=3)), ids=lambda three: "-".join(f.name for f in three)
)
def test_lerp_and_mac_take_operands_of_any_formats(device: MeshDevice, formats: tuple[ttnn.DataType, ...]) -> None:
    a, b, c = (
        ttnn.full([32, 32], value, dtype, ttnn.TILE_LAYOUT, device)
        for value, dtype in zip(VALUES.tolist(), formats, strict=True)
    )
    for result, expected in ((ttnn.lerp(a, b, c), 2.75), (ttnn.mac(a, b, c), 2.5), (ttnn.lerp(a, b, 0.5), 1.25)):
        assert result.dtype is formats[0]
        assert ttnn.to_torch(result).float().unique().tolist() == [expected]
