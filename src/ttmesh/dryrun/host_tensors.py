"""The host's side of a dry run: large float tensors have no values, and nor has what is computed from them."""

from __future__ import annotations

import math
import os
import sys
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

from ttmesh.base.errors import MeshError
from ttmesh.chip.backends.plain_dispatch_mode import PlainDispatchMode
from ttmesh.tensor.calls.meta_functions import defer_compiler

aten = torch.ops.aten
LARGE_BYTES = 1 << 20  # floats from here on have no values; integers keep theirs, programs index and count with them
# What needs the values themselves.
READERS = {
    aten._local_scalar_dense: "Tensor.item() or bool()",
    aten.equal: "torch.equal",
    aten.is_nonzero: "bool()",
    aten.nonzero: "torch.nonzero",
    aten.masked_select: "selecting by a mask",
    aten._unique2: "torch.unique",
    aten.unique_consecutive: "torch.unique_consecutive",
    aten.bincount: "torch.bincount",
    aten.repeat_interleave: "torch.repeat_interleave",
}
# The same above the dispatcher: torch refuses these for tensors without values before it dispatches.
METHODS = {
    torch.Tensor.tolist: "Tensor.tolist()",
    torch.Tensor.numpy: "Tensor.numpy()",
    torch.Tensor.__array__: "numpy's array",
    torch.allclose: "torch.allclose",
    torch.Tensor.allclose: "Tensor.allclose()",
}
META = torch.device("meta")
UNKNOWN = "?"
MASKS = (torch.bool, torch.uint8)
MAKERS = (torch.tensor, torch.as_tensor)  # of the numbers given
# Functions that compare the devices of their tensors before they dispatch.
COMPARING_DEVICES = (torch.stft, torch.istft, torch.Tensor.stft, torch.Tensor.istft)
INNER = (
    os.path.dirname(torch.__file__),
    os.path.dirname(os.path.dirname(__file__)),
    "<frozen",
)  # torch, ttmesh, Python


class MissingValueError(MeshError):
    """A program asked for a value that a dry run does not compute."""


def find_reader() -> str:
    """The line of the program that asks for a value, however many functions of torch are in between."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(INNER):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}" if frame is not None else ""


def missing_value(what: str) -> MissingValueError:
    """The error for a value that does not exist, naming the line that asked for it."""
    site = find_reader()
    return MissingValueError(
        f"{what} needs a value that a dry run does not compute" + (f", at {site}" if site else ""),
        expected="a program whose control flow does not depend on computed values",
        fix="Use a fixed number there in dry runs, for example `if ttmesh.is_dry_run(): ...`, or let every such value be "
        "one number: `ttmesh dry-run --assume 0`, `ttmesh.dry_run(assume=0)`.",
    )


class HostTensors(PlainDispatchMode):  # type: ignore[no-untyped-call]
    """Makes large tensors without values; what is computed from one has no values either."""

    def __init__(self, assume: float | None, lines: Counter[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._assume, self._lines = assume, lines
        self._overwritten = weakref.WeakSet[torch.UntypedStorage]()  # memory into which missing values were written

    def __torch_dispatch__(
        self, func: Any, types: Sequence[Any], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        options = dict(kwargs or {})
        tensors = [leaf for leaf in tree_leaves((args, options)) if isinstance(leaf, torch.Tensor)]
        if not tensors:
            if "device" in {argument.name for argument in func._schema.arguments} and _is_large(args, options):
                options["device"] = "meta"
                options.pop("pin_memory", None)
                if "generator" in options:  # a CPU's; overloads with a generator take None, not a missing argument
                    options["generator"] = None
            return func(*args, **options)
        if not any(self.lacks_values(tensor) for tensor in tensors):
            if (
                func.overloadpacket is aten._to_copy
                and options.get("device") == META
                and not _is_large_copy(tensors[0])
            ):
                options["device"] = None  # a program puts it where its input is; small tensors keep their values
            return func(*args, **options)
        what = "indexing by a mask" if self._is_masked(func, args) else READERS.get(func.overloadpacket)
        if what is not None:
            args, options = self.assume_values(what, args, options)
            return func(*args, **options)
        target = args[0] if args and isinstance(args[0], torch.Tensor) else None
        if func._schema.is_mutable and target is not None and not target.is_meta:
            self._overwritten.add(target.untyped_storage())
            return target
        if options.get("device") is not None:
            options["device"] = "meta"
        args, options = tree_map_only(torch.Tensor, _drop_values, (args, options))
        return func(*args, **options)

    def _is_masked(self, func: Any, args: tuple[Any, ...]) -> bool:
        """Whether the shape of a result depends on a mask without values."""
        return func.overloadpacket is aten.index and any(
            isinstance(each, torch.Tensor) and each.dtype in MASKS and self.lacks_values(each) for each in args[1]
        )

    def assume_values(self, what: str, *arguments: Any) -> Any:
        """The arguments with the assumed number for values that do not exist; an error where none is assumed."""
        number = self._assume
        if number is None:
            raise missing_value(what)
        self._lines[find_reader()] += 1

        def fill(tensor: torch.Tensor) -> torch.Tensor:
            return (
                torch.full(tensor.shape, number, dtype=tensor.dtype, device="cpu")
                if self.lacks_values(tensor)
                else tensor
            )

        with _disable_current_modes():
            return tree_map_only(torch.Tensor, fill, arguments)

    def lacks_values(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor's values do not exist."""
        if tensor.is_meta or (tensor.is_floating_point() and tensor.nbytes >= LARGE_BYTES):
            return True
        return bool(self._overwritten) and tensor.untyped_storage() in self._overwritten


class ReadMethods(TorchFunctionMode):
    """Catches the methods that read values and that torch refuses for meta tensors on its own."""

    def __init__(self, tensors: HostTensors) -> None:
        super().__init__()
        self._tensors = tensors

    def __torch_function__(
        self, func: Any, types: Sequence[Any], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        options = dict(kwargs or {})
        if func in MAKERS and isinstance(args[0], (list, tuple)) and self._lack_values(args[0]):
            args, options = self._tensors.assume_values(f"torch.{func.__name__} of numbers", args, options)
        if func in MAKERS and torch.device(options.get("device") or "cpu") == META:
            options["device"] = None  # a program puts it where its input is; what is given as numbers keeps them
        if func is torch.Tensor.__format__ and args[0].dim() == 0 and self._tensors.lacks_values(args[0]):
            return UNKNOWN  # in a message: nothing is decided by it
        if func in COMPARING_DEVICES and self._lack_values((args, options)):
            args, options = tree_map_only(torch.Tensor, _drop_values, (args, options))
        if func in METHODS and self._lack_values((args, options)):
            args, options = self._tensors.assume_values(METHODS[func], args, options)
            with _disable_current_modes():  # large tensors would lose the values again
                return func(*args, **options)
        return func(*args, **options)

    def _lack_values(self, values: Any) -> bool:
        """Whether there is a tensor without values among these."""
        return any(isinstance(leaf, torch.Tensor) and self._tensors.lacks_values(leaf) for leaf in tree_leaves(values))


def _drop_values(tensor: torch.Tensor) -> torch.Tensor:
    return (
        tensor
        if tensor.is_meta
        else torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
    )


def _is_large_copy(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() and tensor.nbytes >= LARGE_BYTES


def _is_large(args: tuple[Any, ...], options: Mapping[str, Any]) -> bool:
    """Whether a function that makes a tensor is asked for a large one of floats."""
    shape = args[0] if args and isinstance(args[0], (list, tuple)) else None
    if shape is None or not all(isinstance(size, int) for size in shape):
        return False
    dtype = options.get("dtype") or torch.get_default_dtype()
    return dtype.is_floating_point and math.prod(shape) * dtype.itemsize >= LARGE_BYTES


@contextmanager
def without_values(assume: float | None = None, lines: Counter[str] | None = None) -> Iterator[None]:
    """Large tensors made or read from files in here have no values; where one is read it is `assume`, counted in `lines`."""
    load, start = torch.load, torch.autocast.__init__

    def load_mapped(*args: Any, **kwargs: Any) -> Any:
        """torch.load that maps the file instead of reading it, where it can."""
        try:
            return load(*args, **{"mmap": True, **kwargs})
        except (RuntimeError, ValueError):
            return load(*args, **kwargs)

    def start_autocast(autocast: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        """torch.autocast for the kind of device that tensors have: torch knows none for those without values."""
        start(autocast, "cpu" if device_type == META.type else device_type, *args, **kwargs)

    defer_compiler()
    torch.load, torch.autocast.__init__ = load_mapped, start_autocast  # type: ignore[method-assign, assignment]
    try:
        with HostTensors(assume, Counter() if lines is None else lines) as tensors, ReadMethods(tensors):
            yield
    finally:
        torch.load, torch.autocast.__init__ = load, start  # type: ignore[method-assign]
