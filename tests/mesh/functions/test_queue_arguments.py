"""`queue_id` and `cq_id`: every function that TT-NN registers as an operation takes either."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import ttmesh.ttnn as ttnn
from ttmesh.mesh.device.mesh_device import current_queue_id
from ttmesh.mesh.functions.queue_functions import takes_queue
from ttmesh.ops.catalogue.definition import catalogue

# Functions of ttmesh that are no operations of its catalogue, and are registered operations in TT-NN.
REGISTERED = [
    "allocate_tensor_on_device",
    "allocate_tensor_on_host",
    "as_tensor",
    "copy_device_to_host_tensor",
    "copy_host_to_device_tensor",
    "copy_host_to_device_tensor_partial",
    "deallocate",
    "dump_tensor",
    "from_device",
    "from_torch",
    "load_tensor",
    "reallocate",
    "to_device",
    "to_dtype",
    "to_layout",
    "to_memory_config",
    "to_torch",
    "experimental.get_moe_combine_cores",
    "experimental.get_moe_tilize_drain_core",
    "experimental.get_moe_worker_mcast_bounding_box",
    "experimental.is_tensor_prefetcher_supported",
]


def find(name: str) -> Callable[..., Any]:
    """The function of a name below ttnn."""
    module, _, function = name.rpartition(".")
    found: Callable[..., Any] = getattr(getattr(ttnn, module) if module else ttnn, function)
    return found


@pytest.mark.parametrize("queue", ["queue_id", "cq_id"])
def test_no_operation_objects_to_a_queue(queue):
    functions = [find(name) for name in REGISTERED] + [entry.function for entry in catalogue.values()]

    objections = []
    for function in functions:
        try:
            function(**{queue: None})
        except Exception as problem:  # what is missing is another matter
            if f"'{queue}'" in str(problem):
                objections.append(str(problem))

    assert not objections


def test_the_named_queue_is_the_current_one_during_the_call():
    @takes_queue
    def see_queue() -> int | None:
        return current_queue_id.get()

    before = current_queue_id.get()

    assert (see_queue(queue_id=1), see_queue(cq_id=1), see_queue(cq_id=None)) == (1, 1, before)  # type: ignore[call-arg]
    assert current_queue_id.get() == before


@pytest.mark.parametrize("queue", ["queue_id", "cq_id"])
def test_a_tensor_comes_back_over_the_named_queue(queue):
    mesh = ttnn.open_mesh_device(ttnn.MeshShape(1, 1), num_command_queues=2)
    host = torch.arange(32.0).reshape(1, 32)

    tensor = ttnn.from_torch(host, device=mesh, **{queue: 1})
    back = ttnn.to_torch(ttnn.from_device(tensor, **{queue: 1}))

    assert torch.equal(back, host)
    with pytest.raises(RuntimeError, match="queue"):
        ttnn.from_device(tensor, **{queue: 7})
    ttnn.close_mesh_device(mesh)
