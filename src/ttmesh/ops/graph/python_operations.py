"""Operations that programs register themselves (`ttnn.register_python_operation`), and lists of all operations."""

from __future__ import annotations

import csv
import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from ttmesh.base.errors import MeshError
from ttmesh.mesh.functions.queue_functions import command_queue
from ttmesh.ops.catalogue.definition import OpFunction, catalogue
from ttmesh.ops.catalogue.hooks import run_hooked
from ttmesh.ops.graph.graph_capture import record_function

Function = Callable[..., Any]
ROOT = "ttmesh.ttnn"
DEFAULT_OUTPUT_TENSOR_KWARG_NAMES = (
    "output_tensor",
    "optional_tensor",
    "optional_output_tensor",
    "out",
    "output",
    "output_tensors",
    "optional_output_tensors",
)


class PythonOperation:
    """A function of the program that is an operation: hooks, graph captures and `get_golden_function` know it."""

    is_cpp_operation = False

    def __init__(self, name: str, function: Function, *, is_experimental: bool, doc: str | None) -> None:
        functools.update_wrapper(self, function)
        self.python_fully_qualified_name = self.__name__ = name
        self.function = function
        self.is_experimental = is_experimental
        self.__doc__ = doc or function.__doc__
        self.golden_function: Function | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function, on the queue that `queue_id` or `cq_id` names."""
        queue = kwargs.pop("queue_id", kwargs.pop("cq_id", None))
        if queue is None:
            return self._run(args, kwargs)
        with command_queue(queue):
            return self._run(args, kwargs)

    def __repr__(self) -> str:
        return f"PythonOperation(python_fully_qualified_name={self.python_fully_qualified_name!r})"

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with record_function(self.python_fully_qualified_name, args, kwargs) as note_result:
            result = run_hooked(self, self.function, args, kwargs)
            note_result(result)
            return result


class RegisteredOperations:
    """The operations of the catalogue and those that the program registered."""

    def __init__(self) -> None:
        self._added: dict[str, PythonOperation] = {}

    def __iter__(self) -> Iterator[Any]:
        operations = {name: entry.function for name, entry in catalogue.items()} | self._added
        return iter([operations[name] for name in sorted(operations)])

    def __contains__(self, operation: object) -> bool:
        return any(known is operation for known in self)

    def add(self, operation: PythonOperation, name: str) -> None:
        """Add an operation under a name that is free."""
        if name in catalogue or name in self._added:
            raise MeshError(
                f'Operation with name "{name}" is already registered',
                expected="a name that is not taken",
                fix="Register it once, under another name than TT-NN's operations.",
            )
        self._added[name] = operation


REGISTERED_OPERATIONS = RegisteredOperations()


def register_python_operation(
    *,
    name: str,
    is_experimental: bool = False,
    is_method: bool = False,
    golden_function: Function | None = None,
    preprocess_golden_function_inputs: Function | None = None,
    postprocess_golden_function_outputs: Function | None = None,
    output_tensor_kwarg_names: Iterable[str] = DEFAULT_OUTPUT_TENSOR_KWARG_NAMES,
    doc: str | None = None,
) -> Callable[[Function], Function]:
    """Make a function an operation: `name`, such as "ttnn.my_module.my_op", is where it can be found.

    A method (`is_method`) is an operation too, but is found nowhere else than in its class.
    """

    def decorate(function: Function) -> Function:
        if isinstance(function, OpFunction):
            raise MeshError(
                f"{function} is a C++ operation, but it is being registered as a Python operation",
                expected="a function of the program",
                fix="Call the operation from a function and register that.",
            )
        operation = PythonOperation(name, function, is_experimental=is_experimental, doc=doc)
        attach_golden_function(
            operation,
            golden_function,
            preprocess_golden_function_inputs=preprocess_golden_function_inputs,
            postprocess_golden_function_outputs=postprocess_golden_function_outputs,
            output_tensor_kwarg_names=output_tensor_kwarg_names,
        )
        if is_method:
            return functools.wraps(function)(lambda self, *args, **kwargs: operation(self, *args, **kwargs))
        module, _, last = name.rpartition(".")
        if not module:
            raise RuntimeError("Module path have to have at least 2 tokens!")
        if not module.startswith("ttnn"):
            raise RuntimeError('Module path must start with "ttnn."')
        REGISTERED_OPERATIONS.add(operation, name)
        setattr(create_module_if_not_exists(module), last, operation)
        return operation

    return decorate


def attach_golden_function(
    operation: Any,
    golden_function: Function | None,
    *,
    preprocess_golden_function_inputs: Function | None = None,
    postprocess_golden_function_outputs: Function | None = None,
    output_tensor_kwarg_names: Iterable[str] = DEFAULT_OUTPUT_TENSOR_KWARG_NAMES,
) -> None:
    """Give an operation the torch function that it is compared with: `get_golden_function` returns it from now on.

    What prepares its arguments and results is kept beside it; comparison mode here computes in float32 and calls neither.
    """
    operation.golden_function = golden_function
    operation.preprocess_golden_function_inputs = preprocess_golden_function_inputs
    operation.postprocess_golden_function_outputs = postprocess_golden_function_outputs
    operation.output_tensor_kwarg_names = tuple(output_tensor_kwarg_names)


def query_registered_operations(include_experimental: bool = False) -> list[Any]:
    """Every operation by name, those of ttnn.experimental last and only if asked for."""
    known = [o for o in REGISTERED_OPERATIONS if o.python_fully_qualified_name.startswith("ttnn.")]
    plain = [operation for operation in known if not _is_experimental(operation)]
    return plain + [o for o in known if _is_experimental(o)] if include_experimental else plain


def dump_operations(csv_file: str | Path, include_experimental: bool = False) -> None:
    """Write a table of the operations: name, whether TT-NN has it compiled, whether there is a golden."""
    rows = []
    for operation in query_registered_operations(include_experimental):
        compiled = getattr(operation, "is_cpp_operation", True)
        golden = operation.golden_function is not None
        rows.append((operation.python_fully_qualified_name, compiled, golden, _is_experimental(operation)))
    rows.sort(key=lambda row: (row[3], row[1], row[0]))
    with open(csv_file, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("python_fully_qualified_name", "is_cpp_operation", "has_golden_function", "is_experimental"))
        writer.writerows(rows)


def pop_argument(
    name: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Any, Sequence[Any], Mapping[str, Any]]:
    """The first positional argument, else the one of this name; and the arguments without it."""
    if args:
        return args[0], list(args[1:]), kwargs
    if name not in kwargs:
        raise ValueError(f"Missing argument: {name}")
    return kwargs[name], args, {key: value for key, value in kwargs.items() if key != name}


def create_module_if_not_exists(module_name: str) -> ModuleType:
    """A module of ttnn, made with those around it if there is none; `ttnn.x` and `ttmesh.ttnn.x` are the same."""
    full = module_name if module_name.startswith("ttmesh.") else f"ttmesh.{module_name}"
    found = sys.modules.get(full)
    if found is None:
        parent, _, child = full.rpartition(".")
        found = sys.modules[full] = module_from_spec(ModuleSpec(full, None, is_package=True))
        setattr(create_module_if_not_exists(parent), child, found)
    return found


def _is_experimental(operation: Any) -> bool:
    return bool(operation.python_fully_qualified_name.startswith("ttnn.experimental."))
