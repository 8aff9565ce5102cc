"""Runs a TT-NN program and records every call it makes; a file of its own, for it runs in environments without ttmesh.

    python twin_recorder.py RECORDING OPTIONS_AS_JSON script.py [ARGUMENTS]

The program sees a stand-in of the module `ttnn` that hands out recorded functions; the library itself stays as it is. Every
call is two lines of JSON, one before it and one after, so that a call that ends the process is on record too.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import runpy
import sys
import threading
import traceback
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

NO_TTNN = 97  # the status of an environment in which ttnn cannot be imported
SAMPLES = 512  # values that are kept of a tensor
METHODS = [
    "__add__", "__radd__", "__sub__", "__rsub__", "__mul__", "__rmul__", "__truediv__", "__rtruediv__", "__matmul__",
    "__neg__", "__getitem__", "__pow__", "__lt__", "__le__", "__gt__", "__ge__", "__eq__", "__ne__", "to", "cpu", "reshape",
    "to_torch", "to_numpy", "to_list", "item", "deallocate", "pad", "unpad", "pad_to_tile", "unpad_from_tile",
]  # fmt: skip
DTYPES = {
    "DataType.BFLOAT16": "bf16",
    "DataType.FLOAT32": "f32",
    "DataType.BFLOAT8_B": "bf8",
    "DataType.BFLOAT4_B": "bf4",
}


class Recorder:
    """Writes calls to a file; a call made while another one runs belongs to that one."""

    def __init__(self, path: str, options: dict[str, Any], script: str, ttnn: Any) -> None:
        self.file = open(path, "w", buffering=1, encoding="utf-8")  # noqa: SIM115
        self.options, self.ttnn, self.folder = options, ttnn, os.path.dirname(os.path.abspath(script))
        self.library = os.path.dirname(os.path.abspath(getattr(ttnn, "__file__", None) or __file__))
        self.count, self.inside = 0, threading.local()
        self.mock = bool(os.environ.get("TT_METAL_MOCK_CLUSTER_DESC_PATH"))
        self.graph: Any = getattr(ttnn, "graph", None) if options.get("graph") else None
        if self.graph is not None and importlib.util.find_spec("loguru"):
            importlib.import_module("loguru").logger.disable("ttnn.graph")  # TT-NN warns at every capture
        is_ttmesh = getattr(ttnn, "__name__", "") == "ttmesh.ttnn"
        self.write(
            twin=1,
            library="ttmesh" if is_ttmesh else "TT-NN",
            version=find_version("ttmesh" if is_ttmesh else "ttnn"),
            script=os.path.basename(script),
            values=is_ttmesh or not self.mock,
            python=".".join(map(str, sys.version_info[:3])),
        )

    def write(self, **record: Any) -> None:
        """One line."""
        self.file.write(json.dumps(record, default=str) + "\n")

    def call(self, name: str, function: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Call a function on record, unless it is called by one that is, or by a helper of the library."""
        arguments = tuple(unwrap(argument) for argument in arguments)
        options = {key: unwrap(value) for key, value in options.items()}
        if getattr(self.inside, "call", False) or self.is_called_by_library():
            return function(*arguments, **options)
        self.inside.call = True
        try:
            return self._record(name, function, arguments, options)
        finally:
            self.inside.call = False

    def _record(self, name: str, function: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        number, self.count = self.count, self.count + 1
        file, line = self.find_line()
        text = ", ".join([brief(a) for a in arguments] + [f"{key}={brief(value)}" for key, value in options.items()])
        self.write(start=number, name=name, file=file, line=line, arguments=text[:300])
        devices = find_devices([*arguments, *options.values()])
        before = [count_programs(device) for device in devices]
        captures = bool(devices) and self.graph is not None and not name.startswith("ttnn.graph.")
        if captures:
            self.graph.begin_graph_capture(self.graph.RunMode.NORMAL)
        captured = None
        try:
            result = function(*arguments, **options)
        except BaseException as error:  # recorded and raised again
            if captures:
                self.graph.end_graph_capture()
            self.write(end=number, error=[type(error).__name__, first_line(str(error))])
            raise
        if captures:
            captured = self.graph.end_graph_capture()
        after = [count_programs(device) for device in devices]
        record: dict[str, Any] = {"result": [self.describe(item) for item in flatten(result)]}
        programs = [b - a for a, b in zip(before, after, strict=True) if a is not None and b is not None and b >= a]
        if devices and len(programs) == len(devices):
            record["programs"] = sum(programs)
        if captured is not None:
            record.update(read_graph(self.graph, captured))
        self.write(end=number, **record)
        return result

    def describe(self, value: Any) -> dict[str, Any]:
        """What can be compared of a result."""
        if is_tensor(value):
            return self.describe_tensor(value)
        if type(value).__module__ == "torch" and hasattr(value, "dtype"):
            return {"torch": [list(value.shape), str(value.dtype)], "values": sample(value)}
        if value is None or isinstance(value, (bool, int, float, str)):
            return {"value": value if not isinstance(value, str) else value[:300]}
        return {"object": type(value).__name__}

    def describe_tensor(self, tensor: Any) -> dict[str, Any]:
        """Spec, topology and address of a tensor, and its values where they were asked for."""
        described = {
            "shape": attempt(lambda: list(tensor.shape)),
            "padded shape": attempt(lambda: list(tensor.padded_shape)),
            "dtype": attempt(lambda: str(tensor.dtype)),
            "layout": attempt(lambda: str(tensor.layout)),
            "memory config": attempt(lambda: describe_memory(tensor.memory_config())),
            "topology": attempt(lambda: describe_topology(tensor.tensor_topology())),
            "storage": attempt(lambda: str(tensor.storage_type())),
        }
        if str(described["storage"]).endswith("DEVICE"):
            described["address"] = attempt(tensor.buffer_address)
        if self.options.get("values") and not self.mock:
            described["values"] = attempt(
                lambda: sample(self.ttnn.to_torch(self.ttnn.get_device_tensors(tensor.cpu())[0]))
            )
        return described

    def is_called_by_library(self) -> bool:
        """Whether the library's own Python code makes the call, such as ttnn.model_preprocessing."""
        frame: Any = sys._getframe(1)
        while frame is not None and os.path.abspath(frame.f_code.co_filename) == os.path.abspath(__file__):
            frame = frame.f_back
        return frame is not None and os.path.abspath(frame.f_code.co_filename).startswith(self.library + os.sep)

    def find_line(self) -> tuple[str, int]:
        """Where the program is: the innermost frame in the script's folder."""
        frame: Any = sys._getframe(1)
        while frame is not None:
            name = os.path.abspath(frame.f_code.co_filename)
            own = os.path.abspath(__file__)
            if name != own and name.startswith(self.folder + os.sep) and "site-packages" not in name:
                return os.path.relpath(name, self.folder), frame.f_lineno
            frame = frame.f_back
        return "", 0


class Recorded:
    """A function of the library, on record."""

    def __init__(self, recorder: Recorder, name: str, function: Any) -> None:
        self.__dict__.update(_recorder=recorder, _name=name, _function=function)
        for field in ("__name__", "__qualname__", "__doc__"):
            if hasattr(function, field):
                self.__dict__[field] = getattr(function, field)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """The function's result, on record."""
        return self._recorder.call(self._name, self._function, arguments, options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_function"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._function, name, value)

    def __repr__(self) -> str:
        return repr(self._function)

    def __eq__(self, other: object) -> bool:
        return bool(self._function == unwrap(other))

    def __hash__(self) -> int:
        return hash(self._function)


class RecordedModule(ModuleType):
    """The library's module as the program sees it: functions are on record, all else is the library's."""

    def __init__(self, recorder: Recorder, name: str, module: ModuleType) -> None:
        super().__init__(name)
        kept = {
            key: getattr(module, key) for key in ("__doc__", "__file__", "__path__", "__spec__") if hasattr(module, key)
        }
        self.__dict__.update(kept, _recorder=recorder, _name=name, _module=module)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.__dict__["_module"], name)
        path = "{}.{}".format(self.__dict__["_name"], name)
        if name.startswith("__"):
            return value
        if isinstance(value, ModuleType):
            inner = value.__name__.replace("ttmesh.ttnn", "ttnn")
            wrapped: Any = RecordedModule(self._recorder, path, value) if inner.startswith("ttnn") else value
        elif callable(value) and not isinstance(value, type):
            wrapped = Recorded(self._recorder, path, value)
        else:
            return value  # it may be assigned to later: look it up every time
        self.__dict__[name] = wrapped
        return wrapped

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._module, name, unwrap(value))
        self.__dict__.pop(name, None)

    def __dir__(self) -> list[str]:
        return dir(self._module)


def record_methods(recorder: Recorder, tensor_class: Any) -> None:
    """Put a tensor's operators and methods on record."""

    def make(name: str, function: Any) -> Any:
        def method(self: Any, *arguments: Any, **options: Any) -> Any:
            return recorder.call("Tensor." + name, function, (self, *arguments), options)

        method.__name__ = name
        return method

    for name in METHODS:
        function = getattr(tensor_class, name, None)
        if function is not None and function is not getattr(object, name, None):
            setattr(tensor_class, name, make(name, function))


def unwrap(value: Any) -> Any:
    """The library's own function of a recorded one."""
    if isinstance(value, Recorded):
        return value._function
    return value._module if isinstance(value, RecordedModule) else value


def is_tensor(value: Any) -> bool:
    """Whether it is a tensor of the library."""
    return type(value).__name__ == "Tensor" and hasattr(value, "padded_shape")


def flatten(result: Any) -> list[Any]:
    """The results of a call in one list."""
    if isinstance(result, (list, tuple)):
        return [item for part in result for item in flatten(part)][:64]
    return [result]


def find_devices(values: Iterable[Any]) -> list[Any]:
    """The meshes among the arguments and under the tensors among them."""
    found: list[Any] = []
    for value in flatten(values):
        device = value if hasattr(value, "num_program_cache_entries") else None
        if device is None and is_tensor(value):
            device = attempt(value.device, None)
        if hasattr(device, "num_program_cache_entries") and all(device is not other for other in found):
            found.append(device)
    return found


def count_programs(device: Any) -> int | None:
    """How many programs the cache of a mesh holds."""
    return attempt(device.num_program_cache_entries, None)  # type: ignore[no-any-return]


def read_graph(graph: Any, captured: Any) -> dict[str, Any]:
    """Circular buffers, in the order in which they were made, and the peak of L1."""
    sizes = [
        int(node.get("params", {}).get("size", 0))
        for node in captured
        if node.get("node_type") in ("circular_buffer_allocate", "dataflow_buffer_allocate")
    ]
    peak = getattr(graph, "extract_peak_L1_memory_usage", None)
    return {"circular buffers": sizes, "L1 peak": None if peak is None else attempt(lambda: int(peak(captured)), None)}


def describe_memory(config: Any) -> list[Any]:
    """A memory configuration as plain data."""
    described: list[Any] = [str(config.memory_layout).split(".")[-1], str(config.buffer_type).split(".")[-1]]
    for spec in (config.shard_spec, config.nd_shard_spec):
        if spec is not None:
            shape: Any = getattr(spec, "shape", None) or getattr(spec, "shard_shape", ())
            boxes = [[box.start.x, box.start.y, box.end.x, box.end.y] for box in spec.grid.ranges()]
            described.append([list(shape), sorted(boxes), str(spec.orientation).split(".")[-1]])
    return described


def describe_topology(topology: Any) -> list[Any]:
    """A topology as plain data."""
    placements = [re.sub(r"\W+", " ", str(placement)).strip() for placement in topology.placements()]
    return [list(topology.distribution_shape()), placements, [list(coord) for coord in topology.mesh_coords()]]


def sample(values: Any) -> list[float]:
    """Evenly spaced values of a torch tensor, as floats."""
    flat = values.detach().reshape(-1)
    step = max(1, -(-flat.numel() // SAMPLES))
    return [float(value) for value in flat[::step].double().tolist()]


def brief(value: Any) -> str:
    """An argument in a few words."""
    if is_tensor(value):
        dtype = attempt(lambda: str(value.dtype), "")
        shape = "x".join(str(n) for n in attempt(lambda: list(value.shape), []))
        return f"Tensor[{shape} {DTYPES.get(dtype, dtype[9:].lower())} {str(attempt(lambda: value.layout))[7:]}]"
    if type(value).__module__ == "torch" and hasattr(value, "dtype"):
        return "torch[{}]".format("x".join(map(str, value.shape)))
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(brief(item) for item in value[:8]) + "]"
    return re.sub(r"\s+", " ", re.sub(r" at 0x[0-9a-f]+", "", attempt(lambda: repr(value), "?")))[:60]


def first_line(text: str) -> str:
    """What an error says: TT-NN's sentence, without its place in the sources and its backtrace."""
    found = re.search(r"\ninfo:\s*\n(.*)", text)
    lines = (found.group(1) if found else text).strip().splitlines()
    return lines[0][:500] if lines else ""


def attempt(function: Callable[[], Any], otherwise: Any = "?") -> Any:
    """What a function returns, or something else where it raises."""
    try:
        return function()
    except Exception:  # the program's objects may raise anything; recording must not change what it does
        return otherwise


def find_version(name: str) -> str | None:
    """The installed version of a package."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(name)
    except PackageNotFoundError:
        return None


def main() -> int:
    """Record a program; its status is the program's."""
    path, options, script = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
    try:
        import ttnn
    except ImportError as error:
        print(f"{sys.executable} cannot import ttnn: {error}", file=sys.stderr)
        return NO_TTNN
    recorder = Recorder(path, options, script, ttnn)
    record_methods(recorder, ttnn.Tensor)
    sys.modules["ttnn"] = RecordedModule(recorder, "ttnn", ttnn)
    sys.argv = sys.argv[3:]
    sys.path[0] = recorder.folder
    status, problem = 0, None
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as done:
        status = done.code if isinstance(done.code, int) else int(done.code is not None)
    except KeyboardInterrupt:
        status, problem = 130, "KeyboardInterrupt"
    except BaseException as error:  # the program's own end, whatever it is, goes into the record
        traceback.print_exc()
        status, problem = 1, f"{type(error).__name__}: {first_line(str(error))}"
    recorder.write(status=status, problem=problem, calls=recorder.count)
    return status


if __name__ == "__main__":
    sys.exit(main())
