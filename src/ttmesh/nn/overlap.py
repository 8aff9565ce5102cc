"""Gradients summed over the mesh while `backward` still runs: buckets leave on a second queue as they fill.

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
from ttmesh.nn.autograd.row_packing import join_tensors, part_tensors, row_count
from ttmesh.nn.parameters import Parameter, ParameterSet
from ttmesh.nn.tape import Tape
from ttmesh.tensor.tensor import Tensor

COMPUTE, SUMS = 0, 1
COLLECTIVES = SubDeviceId(1)
BUCKET_BYTES = 2**20  # smaller than without overlap: the last bucket is what nothing hides


@dataclass
class Travelling:
    """A bucket on its way; the tensors are kept until it has arrived, as another queue reads them."""

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
        self._travelling: list[Travelling] = []
        if len(self._mesh.queues) < 2:
            raise MeshError(
                f"{self._mesh!r} has one command queue",
                expected="a second one for the sums",
                fix="Open the mesh with num_command_queues=2.",
            )
        if len(self._mesh.sub_devices.loaded.sub_devices) < 2:
            raise MeshError(
                f"{self._mesh!r} is one sub-device, on which only one queue may launch at a time",
                expected="a second sub-device for the sums",
                fix="Divide the cores with create_sub_device_manager() and load_sub_device_manager().",
            )

    def backward(self, record: Tape, loss: Tensor, seed: float | None = None) -> None:
        """Walk the tape back; every parameter then has its summed gradient, added to what it had."""
        record.backward(loss, [p.tensor for p in self._parameters], seed, self._take)
        for axes in list(self._filling):
            self._send(axes)
        wait_for_event(COMPUTE, record_event(self._mesh, SUMS))
        for bucket in self._travelling:
            _put_back(bucket)
        self._travelling.clear()

    def _take(self, place: int, gradient: Tensor) -> None:
        parameter = self._parameters[place]
        parameter.accumulate(gradient)
        axes = parameter.replicated_axes
        if not axes:
            return
        assert parameter.grad is not None, "accumulated just now"
        key = (parameter.grad.dtype, axes)
        self._filling.setdefault(key, []).append(parameter)
        if sum(p.grad.spec.packed_size_bytes for p in self._filling[key] if p.grad is not None) >= self._limit:
            self._send(key)

    def _send(self, key: tuple[DataType, tuple[int, ...]]) -> None:
        """Start a bucket once the first queue has made it; that queue goes on with the walk."""
        parameters = self._filling.pop(key)
        gradients = [p.grad for p in parameters if p.grad is not None]
        shapes = tuple(tuple(g.shape) for g in gradients)
        total = gradients[0] if len(gradients) == 1 else join_tensors(tensors=gradients, rows=row_count(shapes))
        sent = [*gradients, total]
        wait_for_event(SUMS, record_event(self._mesh, COMPUTE))
        with command_queue(SUMS):
            for axis in key[1]:
                total = all_reduce(total, cluster_axis=axis, mode=self._mode, subdevice_id=COLLECTIVES)
                sent.append(total)
        self._travelling.append(Travelling(parameters, sent, total))


def _put_back(bucket: Travelling) -> None:
    if len(bucket.parameters) == 1:
        bucket.parameters[0].grad = bucket.summed
        return
    shapes = tuple(tuple(p.grad.shape) for p in bucket.parameters if p.grad is not None)
    for parameter, part in zip(bucket.parameters, part_tensors(joined=bucket.summed, shapes=shapes), strict=True):
        parameter.grad = part
