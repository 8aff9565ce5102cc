"""Tensors in files: TT-NN's .tensorbin, and the safetensors that earlier versions of ttmesh wrote under that name."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ttmesh.base.argument_types import name_wrong_types, refuse_plain_values
from ttmesh.base.dtypes import DataType, Layout, PrintedEnum
from ttmesh.base.errors import MeshError
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.mesh.functions.queue_functions import takes_queue
from ttmesh.tensor.distribution.mappers import ReplicateTensorToMeshWrapper
from ttmesh.tensor.spec.memory_config import MemoryConfig
from ttmesh.tensor.tensor import Tensor
from ttmesh.tensor.transfer.device_tensors import Mapper
from ttmesh.tensor.transfer.safetensors_files import TensorFileError, read_tensors
from ttmesh.tensor.transfer.tensor_descriptions import DescriptionError, parse_json, restore
from ttmesh.tensor.transfer.tensorbin_files import read_tensorbin, write_tensorbin
from ttmesh.tensor.transfer.transfers import from_torch

log = logging.getLogger("ttmesh")

SUFFIX = ".tensorbin"
LANES, DESCRIPTION = "lanes", "ttmesh"  # the tensor and the text in an earlier file

_kept: dict[Path, Tensor] | None = None  # what dry runs would have written, by absolute path


@contextmanager
def without_tensor_files() -> Iterator[None]:
    """In here tensors are written to no file, and read from the memory of this process: in dry runs they have no values."""
    global _kept
    before, _kept = _kept, {}
    try:
        yield
    finally:
        _kept = before


class DumpTensorMode(PrintedEnum):
    """Whether ranks gather a distributed tensor into one file or each writes its shards; no difference in one process."""

    DISTRIBUTED_GATHER = 0
    LOCAL = 1


@takes_queue
@name_wrong_types
def dump_tensor(
    file_name: str | Path, tensor: Tensor, *, mode: DumpTensorMode = DumpTensorMode.DISTRIBUTED_GATHER
) -> None:
    """Write a tensor to a .tensorbin file, which TT-NN reads as well."""
    dump_tensor_flatbuffer(_check_file_name(file_name), tensor, mode)


def dump_tensor_flatbuffer(
    filename: str | Path, tensor: Tensor, mode: DumpTensorMode = DumpTensorMode.DISTRIBUTED_GATHER
) -> None:
    """The same under TT-NN's inner name, which takes any file name."""
    path = Path(filename)
    if not isinstance(mode, DumpTensorMode):
        raise MeshError(f"mode {mode!r}", expected="a DumpTensorMode", fix="Leave it out, or pass one of its members.")
    host = tensor.cpu()
    if _kept is not None:
        _kept[path.absolute()] = host
        return
    block = host.rank_block
    if block is None or mode is DumpTensorMode.LOCAL:
        _write(path, host)
        return
    lanes = host.all_lanes()  # the first rank writes, and the others wait until it is there
    if block.is_first:
        _write(path, Tensor.on_host(host.kind, lanes, host.mesh_shape))
    block.host.barrier()


def _write(path: Path, tensor: Tensor) -> None:
    try:
        write_tensorbin(path, tensor)
    except OSError as problem:
        raise _unwritable(path, problem) from None


def _unwritable(path: Path, problem: Exception) -> MeshError:
    return MeshError(
        f'Cannot open "{path}" for writing: {problem}',
        expected="a folder that exists and may be written to, with enough space",
        fix="Choose a path in such a folder.",
    )


@takes_queue
@name_wrong_types
def load_tensor(file_name: str | Path, *, device: MeshDevice | None = None) -> Tensor:
    """Read a tensor that `dump_tensor` wrote, and move it to a device if one is given."""
    path = _check_file_name(file_name)
    for wrong, found in (("does not exist", path.exists()), ("is not a file", path.is_file())):
        if not found and not _keeps(path):
            raise MeshError(
                f"Unable to load the tensor from {path}.  The file {wrong}.",
                expected="a .tensorbin file",
                fix="Correct the path, or write the file with ttnn.dump_tensor.",
            )
    return load_tensor_flatbuffer(path, device)


def load_tensor_flatbuffer(file_name: str | Path, device: MeshDevice | None = None) -> Tensor:
    """Read what `dump_tensor_flatbuffer` wrote; the file may have any name."""
    path = Path(file_name)
    if _kept is not None and _keeps(path):
        tensor = _kept[path.absolute()]
    else:
        tensor = _read_earlier(path, device) if _is_earlier(path) else read_tensorbin(path, device)
    return tensor if device is None else tensor.onto(device)


def _keeps(path: Path) -> bool:
    return _kept is not None and path.absolute() in _kept


def _is_earlier(path: Path) -> bool:
    """Whether JSON follows the size in front, as in safetensors; a flatbuffer begins with a multiple of 4."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(9)[8:] == b"{"


def _read_earlier(path: Path, device: MeshDevice | None) -> Tensor:
    """The tensor of a file from before ttmesh wrote TT-NN's format."""
    try:
        tensors, texts = read_tensors(path)
    except TensorFileError as problem:
        raise _foreign(path, problem.reason) from None
    if DESCRIPTION not in texts or tensors.keys() != {LANES}:
        raise _foreign(path, "no ttmesh description")
    try:
        return restore(parse_json(texts[DESCRIPTION]), tensors[LANES], device)
    except DescriptionError as problem:
        raise DescriptionError(f"{path}: {problem.wrong}", expected=problem.expected, fix=problem.fix) from None


@takes_queue
@name_wrong_types
def as_tensor(
    tensor: Any,
    dtype: DataType | None = None,
    *,
    layout: Layout | None = Layout.ROW_MAJOR,
    device: MeshDevice | None = None,
    memory_config: MemoryConfig | None = None,
    cache_file_name: str | Path | None = None,
    preprocess: Callable[[Any], Any] | None = None,
    mesh_mapper: Mapper | None = None,
    cache_dump_mode: DumpTensorMode = DumpTensorMode.DISTRIBUTED_GATHER,
) -> Tensor:
    """`from_torch` with a cache file: read when it is there, else written."""
    refuse_plain_values(
        "ttnn.as_tensor", dtype=dtype, layout=layout, memory_config=memory_config, mesh_mapper=mesh_mapper
    )
    if device is not None and memory_config is None:
        raise MeshError(
            "memory_config must be specified when device is specified",
            expected="memory_config=",
            fix="Pass ttnn.DRAM_MEMORY_CONFIG, say.",
        )

    def make(on: MeshDevice | None, mapper: Mapper | None) -> Tensor:
        values = tensor if preprocess is None else preprocess(tensor)
        result = from_torch(values, dtype, layout=layout, device=on, memory_config=memory_config, mesh_mapper=mapper)
        assert result is not None, "as_tensor was given values"
        return result

    dry = device is not None and device.backend.device.type == "meta"  # without values there is nothing to keep
    if cache_file_name is None or dry or _kept is not None:
        return make(device, mesh_mapper)
    names = (dtype.name if dtype is not None else "None", layout.name if layout is not None else "None")
    path = Path(f"{cache_file_name}_dtype_{names[0]}_layout_{names[1]}{SUFFIX}")
    divided = None if device is None else device.rank_block
    if path.is_file() if divided is None else divided.is_true_everywhere(path.is_file()):
        try:
            return load_tensor(path, device=device)
        except MeshError as problem:
            log.warning("Failed to load cache for %s: %s", path, problem)
    replicates = isinstance(mesh_mapper, ReplicateTensorToMeshWrapper)  # TT-NN keeps one copy of those in the file
    host = make(None, None if replicates else mesh_mapper)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise _unwritable(path, problem) from None
    dump_tensor(path, host, mode=cache_dump_mode)
    return host if device is None else host.onto(device, memory_config)


def _check_file_name(file_name: str | Path) -> Path:
    if not str(file_name).endswith(SUFFIX):
        raise MeshError(
            f"File {file_name} must have {SUFFIX} extension", expected=f"a name ending in {SUFFIX}", fix="Rename it."
        )
    return Path(file_name)


def _foreign(path: Path, problem: str) -> MeshError:
    return MeshError(
        f"{path} is neither a file of TT-NN nor one of ttmesh ({problem})",
        expected="a whole file of ttnn.dump_tensor",
        fix="Write it again.",
    )
