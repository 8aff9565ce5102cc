"""Which cores TT-NN would start kernels on for a sharded tensor."""

from __future__ import annotations

from ttmesh.base.argument_types import name_wrong_types
from ttmesh.base.cores import NOC, CoreCoord
from ttmesh.base.dtypes import BufferType
from ttmesh.base.errors import MeshError
from ttmesh.tensor.tensor import Tensor


@name_wrong_types
def get_optimal_worker_cores_for_sharded_tensor(tensor: Tensor, noc: NOC = NOC.NOC_0) -> list[CoreCoord]:
    """The cores that hold shards, in the order of the shards; for DRAM the worker near each bank that holds one."""
    mesh, layout = tensor.device(), tensor.spec.shard_layout
    if mesh is None:
        raise MeshError(
            "Tensor must be on device to compute optimal worker cores",
            expected="a device tensor",
            fix="Move it with to_device() first.",
        )
    if layout is None:
        raise MeshError(
            "Tensor must be sharded to compute optimal worker cores",
            expected="a sharded tensor",
            fix="Give it a sharded memory configuration.",
        )
    if tensor.spec.buffer_type is not BufferType.DRAM:
        return list(layout.cores_with_data)
    workers = mesh.get_optimal_dram_bank_to_logical_worker_assignment(noc)
    return [workers[bank.x] for bank in layout.cores_with_data]
