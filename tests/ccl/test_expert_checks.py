"""Tokens of experts: what all_to_all_dispatch and all_to_all_combine refuse, and sums over a device's experts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from ccl_meshes import opened

from ttmesh import ttnn

EXPERTS, DEVICES = 16, 8
RESULTS, METADATA, MAPPING = (2, 8, 2, 64), (1, 8, 2, 4), (1, 1, EXPERTS, DEVICES)


@pytest.fixture
def mesh() -> Iterator[ttnn.MeshDevice]:
    with opened((2, 4), config=ttnn.FabricConfig.FABRIC_1D) as device:
        yield device


def rows(mesh, values, dtype=ttnn.uint16):
    if isinstance(values, tuple):
        values = torch.zeros(values, dtype=torch.int32)
    values = values.bfloat16() if dtype is ttnn.bfloat16 else values.int()
    mapper = ttnn.ReplicateTensorToMesh(mesh)
    return ttnn.from_torch(values, dtype=dtype, layout=ttnn.ROW_MAJOR_LAYOUT, device=mesh, mesh_mapper=mapper)


def combine(mesh, results=RESULTS, metadata=METADATA, mapping=MAPPING, **options):
    operands = rows(mesh, results, ttnn.bfloat16), rows(mesh, metadata), rows(mesh, mapping)
    return ttnn.all_to_all_combine(*operands, **{"cluster_axis": 0, **options})


REFUSED = [
    ({"results": (8, *RESULTS[1:]), "local_reduce": True}, "Expecting input dim 0 equal to num devices: 8, got: 8"),
    ({"results": (1, *RESULTS[1:])}, "Expected input shape dim 0: 1 to be equal to expert mapping dim 2: 16"),
    ({"results": RESULTS[1:]}, "Input, metadata, and mapping tensors must all be rank 4"),
    ({"mapping": (1, 1, 12, 8)}, "Number of experts 12 should be evenly divisible by devices: 8"),
    ({"cluster_axis": None}, "Axis must be specified at the moment"),
    ({"output_shard_dim": 3}, "Output shard dimension must be 1 or 2, got 3."),
    ({"results": (2, 3, 2, 64), "metadata": (1, 3, 2, 4)}, "Batch 3 must be divisible by axis group"),
]


@pytest.mark.parametrize(("changed", "text"), REFUSED, ids=[text[:24] for _, text in REFUSED])
def test_combine_refuses_in_tt_nns_words(mesh, changed, text):
    with pytest.raises(RuntimeError) as error:
        combine(mesh, **changed)

    assert str(error.value).startswith(text)


@pytest.mark.parametrize(
    ("indices", "text"),
    [
        ((8, 1, 3, 4), "Input and indices tensor must have the same shape for all dimensions except the last."),
        ((8, 2, 4), "Input and indices tensor must have the same number of dimensions"),
    ],
)
def test_dispatch_takes_one_row_of_indices_per_token(mesh, indices, text):
    tokens, table = rows(mesh, (8, 1, 2, 64), ttnn.bfloat16), rows(mesh, MAPPING)

    with pytest.raises(RuntimeError, match=text):
        ttnn.all_to_all_dispatch(tokens, rows(mesh, indices), table, cluster_axis=0)


def test_sums_over_a_devices_experts_come_back_as_one_slice(mesh):
    """Each device of the column holds two experts; a token that both serve gets their sum once."""
    home = torch.arange(EXPERTS) // 2
    mapping = torch.nn.functional.one_hot(home, DEVICES)[None, None]
    metadata = torch.tensor([0, 1, 8, 9]).expand(1, 8, 2, 4)  # experts of devices 0 and 4, one column
    sums = torch.randn(1, 8, 2, 64)

    back = combine(mesh, sums, metadata, mapping, local_reduce=True)

    got = ttnn.to_torch(ttnn.get_device_tensors(back)[0])
    assert torch.equal(got[0], sums[0, :4].bfloat16())
    assert torch.equal(got[2], sums[0, :4].bfloat16())
    assert not got[1].any()
    assert not got[3].any()
