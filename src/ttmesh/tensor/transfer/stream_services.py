"""Services that stream tensors between the host and a mesh through a separate device tensor (Blackhole Galaxy)."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import torch

from ttmesh.base.cores import CoreRange
from ttmesh.base.dtypes import BLOCK_FLOATS, BufferType, Layout
from ttmesh.base.errors import MeshError, NotEmulatedError, require
from ttmesh.base.geometry import MeshCoordinate
from ttmesh.base.placement import Replicate
from ttmesh.chip.formats.storage import USER_DTYPES
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.mesh.functions.cluster import ClusterType, get_cluster_type
from ttmesh.mesh.functions.queue_functions import synchronize_mesh_device
from ttmesh.tensor.distribution.mappers import MeshMapperConfig, TensorToMesh, create_mesh_mapper
from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.tensor import Tensor
from ttmesh.tensor.transfer.device_tensors import get_device_tensors
from ttmesh.tensor.transfer.transfers import (
    copy_device_to_host_tensor,
    copy_host_to_device_tensor,
    from_torch,
    to_torch,
)

# How a service chooses the pages of its sockets (tt-metal e4f9f0b, h2d_socket_service.cpp).
BURST_BYTES, TARGET_BURSTS, MIN_SLOTS = 16 * 1024, 4, 2
SCRATCH_BYTES = 16 * 1024  # of a service core's L1, besides its circular buffers


class StreamService:
    """What both directions share: a device tensor, its shards, and the pages in which it crosses."""

    NAME = ""

    def __init__(
        self,
        mesh_device: MeshDevice,
        global_spec: TensorSpec,
        fifo_size_bytes: int,
        max_socket_page_size_bytes: int,
        mapper: TensorToMesh | None,
        worker_cores: CoreRange | None,
        metadata_size_bytes: int,
    ) -> None:
        require(
            metadata_size_bytes == 0 or worker_cores is not None,
            f"{self.NAME}: metadata_size_bytes={metadata_size_bytes} requires Config::worker_cores to be set (no workers "
            "to multicast metadata to)",
            "worker_cores",
            "Pass worker_cores, or no metadata.",
        )
        if get_cluster_type() is not ClusterType.BLACKHOLE_GALAXY:
            first = MeshCoordinate([0] * mesh_device.shape.dims())
            raise MeshError(
                f"{self.NAME}: no claimable service core on device at coord {first}",
                expected="a Blackhole Galaxy, whose dispatch columns have cores for services",
                fix="Choose bh_galaxy with TTMESH_SYSTEM or --system.",
            )
        placements = [Replicate() for _ in range(mesh_device.shape.dims())]
        self._mapper = mapper or create_mesh_mapper(mesh_device, MeshMapperConfig(placements=placements))
        self._spec, self._mesh = global_spec, mesh_device
        empty = torch.zeros(tuple(global_spec.shape), dtype=torch.int32, device="cpu")
        self._tensor = self._distribute(empty).onto(mesh_device)
        page_bytes = self._choose_page(max_socket_page_size_bytes)
        require(
            metadata_size_bytes <= page_bytes,
            f"{self.NAME}: metadata_size_bytes={metadata_size_bytes} (aligned CB page {metadata_size_bytes}) exceeds "
            f"derived socket_page_size={page_bytes} (single-metadata-page constraint). Either reduce metadata or increase "
            "the per-shard page size.",
            f"at most {page_bytes} B",
            "Send less metadata.",
        )
        require(
            fifo_size_bytes == 0 or fifo_size_bytes >= page_bytes,
            f"{self.NAME}: fifo_size_bytes ({fifo_size_bytes} B) must be >= the derived socket_page_size ({page_bytes} B); "
            "increase fifo_size_bytes (or pass 0 to auto-size) or lower max_socket_page_size_bytes",
            f"{page_bytes} B or more",
            "Raise fifo_size_bytes.",
        )
        if worker_cores is not None:
            raise NotEmulatedError(
                f"{self.NAME} with worker_cores={worker_cores} waits for kernels on those cores, which is not emulated",
                expected="a service without workers",
                fix="Leave worker_cores out and read the tensor after barrier().",
            )

    def _choose_page(self, most_bytes: int) -> int:
        """The bytes of a socket's page: a divisor of the tensor's pages within the budget."""
        page, pages = self._tensor.buffer_page_size(), self._tensor.buffer_num_pages()
        room = self._mesh.chip.l1_bank_bytes - SCRATCH_BYTES
        require(
            page <= room,
            f"{self.NAME}: tensor page {page} B exceeds service-core CB L1 budget {room} B; use a layout with smaller pages",
            f"at most {room} B",
            "Shorten the rows.",
        )
        require(
            most_bytes == 0 or most_bytes >= page,
            f"{self.NAME}: max_socket_page_size_bytes ({most_bytes} B) must be >= the tensor page size ({page} B); the "
            "socket page can't be smaller than one tensor page (pass 0 to auto-size)",
            f"{page} B or more",
            "Raise max_socket_page_size_bytes.",
        )
        budget = min(most_bytes or TARGET_BURSTS * BURST_BYTES, room // MIN_SLOTS)
        largest = min(max(1, budget // page), pages)
        return page * next(count for count in range(largest, 0, -1) if pages % count == 0)

    def _distribute(self, values: torch.Tensor) -> Tensor:
        """A host tensor, split by the service's mapper."""
        return from_torch(values, spec=self._spec, mesh_mapper=self._mapper)

    def barrier(self) -> None:
        """Return once everything that was sent has arrived."""
        synchronize_mesh_device(self._mesh)

    def get_backing_tensor(self) -> Tensor:
        """The device tensor that the service writes or reads."""
        return self._tensor

    def get_per_shard_spec(self) -> TensorSpec:
        """The spec of the tensor on one chip."""
        return self._tensor.spec

    def payload_size_bytes(self) -> int:
        """The bytes of the whole tensor."""
        self._check_rows()
        return prod(self._spec.shape) * _element_bytes(self._spec)

    def metadata_size_bytes(self) -> int:
        """The bytes that go with every transfer: none without workers."""
        return 0

    def get_worker_cores(self) -> CoreRange:
        """The cores that the service signals: none are configured."""
        raise self._no_workers("get_worker_cores")

    def _no_workers(self, function: str) -> MeshError:
        return MeshError(
            f"{self.NAME}::{function}: worker-sync was not configured (Config::worker_cores unset).",
            expected="a service with worker_cores",
            fix="Wait with barrier() instead.",
        )

    def _check_rows(self) -> None:
        is_plain = self._spec.layout is Layout.ROW_MAJOR and self._spec.dtype not in BLOCK_FLOATS
        wrong = f"{self.NAME}: bytes of {self._spec.dtype} in {self._spec.layout}"
        require(is_plain, wrong, "ROW_MAJOR_LAYOUT", "Pass tensors instead of bytes.")


class H2DStreamService(StreamService):
    """Streams host tensors into a device tensor that it owns."""

    NAME = "H2DStreamService"

    def __init__(
        self,
        mesh_device: MeshDevice,
        global_spec: TensorSpec,
        fifo_size_bytes: int = 0,
        max_socket_page_size_bytes: int = 0,
        mapper: TensorToMesh | None = None,
        socket_buffer_type: BufferType = BufferType.L1,
        worker_cores: CoreRange | None = None,
        metadata_size_bytes: int = 0,
        parallel_host_push: bool = False,  # how many threads of the host write the sockets: only speed
        host_push_thread_count: int = 0,
    ) -> None:
        if socket_buffer_type not in (BufferType.L1, BufferType.DRAM):
            raise MeshError(
                f"{self.NAME}: socket_buffer_type={socket_buffer_type}",
                expected="L1 or DRAM",
                fix="Choose one of them.",
            )
        super().__init__(
            mesh_device,
            global_spec,
            fifo_size_bytes,
            max_socket_page_size_bytes,
            mapper,
            worker_cores,
            metadata_size_bytes,
        )

    def forward_to_tensor(self, host_tensor: Tensor, metadata: bytes = b"") -> None:
        """Send a distributed host tensor."""
        self._check_metadata(metadata)
        require(
            host_tensor.device() is None,
            f"{self.NAME}::forward_to_tensor: expected host tensor, got storage_type=StorageType.DEVICE",
            "a host tensor",
            "Move it with from_device() first.",
        )
        require(
            host_tensor.spec.shape == self._tensor.spec.shape and host_tensor.dtype is self._tensor.dtype,
            f"{self.NAME}::forward_to_tensor: host tensor per-shard spec ({host_tensor.spec}) does not match expected "
            f"({self._tensor.spec})",
            "a tensor split by the service's mapper",
            "Distribute it with the same mapper.",
        )
        copy_host_to_device_tensor(host_tensor, self._tensor)

    def forward_to_tensor_bytes(self, data: Any, metadata: bytes = b"") -> None:
        """Send the bytes of the whole tensor; the service splits them."""
        size, expected = np.asarray(data).nbytes, self.payload_size_bytes()
        require(
            size == expected,
            f"{self.NAME}::forward_to_tensor: span size {size} B does not match global_spec packed size {expected} B",
            f"{expected} B",
            "Pass the values of the whole tensor.",
        )
        self._check_metadata(metadata)
        raw = bytearray(np.ascontiguousarray(np.asarray(data)).tobytes())
        values = torch.frombuffer(raw, dtype=USER_DTYPES[self._spec.dtype]).reshape(tuple(self._spec.shape))
        copy_host_to_device_tensor(self._distribute(values), self._tensor)

    def _check_metadata(self, metadata: bytes) -> None:
        require(
            not metadata,
            f"{self.NAME}::forward_to_tensor: metadata span size {len(metadata)} B does not match "
            "Config::metadata_size_bytes=0 (must be exact match, including 0 when metadata is disabled)",
            "no metadata",
            "Leave metadata out.",
        )

    def get_data_ready_sem_addr(self) -> int:
        """The address of the workers' semaphore: there are no workers."""
        raise self._no_workers("get_data_ready_sem_addr")

    def get_consumed_counter_addr(self, coord: MeshCoordinate) -> int:
        """The address of the counter that workers increment: there are no workers."""
        raise MeshError(
            f"{self.NAME}::get_consumed_counter_addr: no consumed-counter at coord {coord} (worker-sync was not configured "
            "or the coord does not participate).",
            expected="a service with worker_cores",
            fix="Wait with barrier() instead.",
        )

    def get_metadata_addr(self) -> int:
        """The address of the metadata in the workers' L1: there are no workers."""
        raise MeshError(
            f"{self.NAME}::get_metadata_addr: metadata multicast was not configured (Config::metadata_size_bytes == 0).",
            expected="a service with metadata",
            fix="Send numbers in a tensor instead.",
        )


class D2HStreamService(StreamService):
    """Streams a device tensor that it owns to the host."""

    NAME = "D2HStreamService"

    def __init__(
        self,
        mesh_device: MeshDevice,
        global_spec: TensorSpec | None,
        fifo_size_bytes: int,
        max_socket_page_size_bytes: int = 0,
        mapper: TensorToMesh | None = None,
        worker_cores: CoreRange | None = None,
        metadata_size_bytes: int = 0,
        parallel_host_read: bool = True,  # how many threads of the host read the sockets: only speed
        host_read_thread_count: int = 0,
    ) -> None:
        wrong = f"{self.NAME}: fifo_size_bytes must be > 0"
        require(fifo_size_bytes > 0, wrong, "1 B or more", "Raise fifo_size_bytes.")
        if global_spec is None:
            wrong = f"{self.NAME}: metadata-only mode (absent global_spec) requires metadata_size_bytes > 0"
            require(metadata_size_bytes > 0, wrong, "a spec or metadata", "Pass global_spec.")
            raise NotEmulatedError(
                f"{self.NAME} of metadata alone is not emulated", expected="global_spec", fix="Send a small tensor."
            )
        super().__init__(
            mesh_device,
            global_spec,
            fifo_size_bytes,
            max_socket_page_size_bytes,
            mapper,
            worker_cores,
            metadata_size_bytes,
        )

    def read_from_tensor(self, host_tensor: Tensor) -> bytes:
        """Read the tensor into a distributed host tensor; returns the metadata, which are empty."""
        copy_device_to_host_tensor(self._tensor, host_tensor)
        return b""

    def read_from_tensor_bytes(self) -> bytes:
        """The bytes of the whole tensor, put together."""
        self._check_rows()
        shards = [axis for axis in self._mapper.config().placements if not isinstance(axis, Replicate)]
        if shards:
            raise NotEmulatedError(
                f"{self.NAME}.read_from_tensor_bytes of a sharded tensor is not emulated",
                expected="a replicated tensor",
                fix="Use read_from_tensor.",
            )
        values = to_torch(get_device_tensors(self._tensor)[0])
        return bytes(values.contiguous().view(torch.uint8).numpy())


def _element_bytes(spec: TensorSpec) -> int:
    return USER_DTYPES[spec.dtype].itemsize
