"""Gradients summed over the mesh while `backward` still runs: full buckets are summed on a second queue.

    sums = OverlappedSums(parameters)
    with tape() as record:
        loss = cross_entropy(model(x), y)
    sums.backward(record, loss)  # backward, accumulate and synchronize_gradients in one
    optimiser.step()

As on the chips, two queues may only launch at the same time on different sub-devices: the mesh needs two queues and a
loaded sub-device manager, whose second sub-device the collectives use.
"""

from __future__ import annotations

from dataclasses import dataclass

from ttmesh.base.dtypes import DataType
from ttmesh.base.errors import MeshError
from ttmesh.ccl.collectives.reduce_gather import all_reduce
from ttmesh.mesh.allocation.sub_devices import SubDeviceId
from ttmesh.mesh.functions.queue_functions import command_queue, record_event, wait_for_event
from ttmesh.nn.autograd.row_packing import count_rows, pack_tensors, unpack_tensors
from ttmesh.nn.parameters import Parameter, ParameterSet
from ttmesh.nn.tape import Tape
from ttmesh.tensor.tensor import Tensor

COMPUTE, SUMS = 0, 1
COLLECTIVES = SubDeviceId(1)
BUCKET_BYTES = 2**20  # smaller than without overlap: nothing runs beside the last bucket, so its time counts in full


@dataclass
class BucketInFlight:
    """A bucket that is being summed; its tensors are kept until then, as another queue reads them."""

    parameters: list[Parameter]
    sent: list[Tensor]
    summed: Tensor


class OverlappedSums:
    """Sums of gradients along the axes where parameters are replicated, started as soon as they are complete."""

    def __init__(self, parameters: ParameterSet, *, mode: str = "fabric", bucket_bytes: int = BUCKET_BYTES) -> None:
        self._parameters = list(parameters.values())
        self._mesh = self._parameters[0].mesh
        self._mode, self._limit = mode, bucket_bytes
        self._filling: dict[tuple[DataType, tuple[int, ...]], list[Parameter]] = {}
        self._in_flight: list[BucketInFlight] = []
        if len(self._mesh.queues) < 2:
            raise MeshError(
                f"{self._mesh!r} has one command queue",
                expected="two command queues, the second for the sums",
                fix="Open the mesh with num_command_queues=2.",
            )
        if len(self._mesh.sub_devices.loaded.sub_devices) < 2:
            raise MeshError(
                f"{self._mesh!r} is one sub-device, on which only one queue may launch at a time",
                expected="two sub-devices, the second for the sums",
                fix="Divide the cores with create_sub_device_manager() and load_sub_device_manager().",
            )

    def backward(self, record: Tape, loss: Tensor, seed: float | None = None) -> None:
        """Run the backward pass; add to every parameter's gradient its gradient summed over the mesh."""
        record.backward(loss, [p.tensor for p in self._parameters], seed, self._add_to_bucket)
        for axes in list(self._filling):
            self._sum_bucket(axes)
        wait_for_event(COMPUTE, record_event(self._mesh, SUMS))
        for bucket in self._in_flight:
            _store_gradients(bucket)
        self._in_flight.clear()

    def _add_to_bucket(self, position: int, gradient: Tensor) -> None:
        parameter = self._parameters[position]
        parameter.accumulate(gradient)
        axes = parameter.replicated_axes
        if not axes:
            return
        assert parameter.grad is not None, "accumulated just now"
        key = (parameter.grad.dtype, axes)
        self._filling.setdefault(key, []).append(parameter)
        if sum(p.grad.spec.packed_size_bytes for p in self._filling[key] if p.grad is not None) >= self._limit:
            self._sum_bucket(key)

    def _sum_bucket(self, key: tuple[DataType, tuple[int, ...]]) -> None:
        """Sum a bucket on the second queue once the first has computed it; the first continues the backward pass."""
        parameters = self._filling.pop(key)
        gradients = [p.grad for p in parameters if p.grad is not None]
        shapes = tuple(tuple(g.shape) for g in gradients)
        total = gradients[0] if len(gradients) == 1 else pack_tensors(tensors=gradients, rows=count_rows(shapes))
        sent = [*gradients, total]
        wait_for_event(SUMS, record_event(self._mesh, COMPUTE))
        with command_queue(SUMS):
            for axis in key[1]:
                total = all_reduce(total, cluster_axis=axis, mode=self._mode, subdevice_id=COLLECTIVES)
                sent.append(total)
        self._in_flight.append(BucketInFlight(parameters, sent, total))


def _store_gradients(bucket: BucketInFlight) -> None:
    if len(bucket.parameters) == 1:
        bucket.parameters[0].grad = bucket.summed
        return
    shapes = tuple(tuple(p.grad.shape) for p in bucket.parameters if p.grad is not None)
    for parameter, gradient in zip(bucket.parameters, unpack_tensors(packed=bucket.summed, shapes=shapes), strict=True):
        parameter.grad = gradient
