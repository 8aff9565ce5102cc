"""The nodes of a traced graph (`ttnn.tracer`): tensors, functions and modules of torch, operations of TT-NN."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    import networkx


@dataclass(frozen=True, order=True)
class TracedNode:
    """A node's place in the graph: nodes are ordered as they were made."""

    unique_id: int
    name: str = field(compare=False)

    def __repr__(self) -> str:
        return f"Node(name={self.name!r}, unique_id={self.unique_id})"


@dataclass(frozen=True)
class PositionalArgumentName:
    """Replaces the name of an argument that was given by position."""

    index: int

    def __repr__(self) -> str:
        return str(self.index)


@dataclass(frozen=True)
class InputTensorIndex:
    """Replaces a tensor among recorded arguments: which input of the node it is."""

    index: int

    def __repr__(self) -> str:
        return f"${self.index}"


ArgumentPairs = list[tuple[PositionalArgumentName | str, Any]]


class _Operation:
    def to_string(self, verbose: bool = False) -> str:
        """The node's label, with arguments if `verbose`."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return self.to_string()


@dataclass(repr=False)
class TorchTensor(_Operation):
    """A torch tensor that came from outside the trace."""

    tensor: torch.Tensor

    def to_string(self, verbose: bool = False) -> str:
        """The node's label."""
        return "torch.Tensor"


@dataclass(repr=False)
class TTNNTensor(_Operation):
    """A tensor of TT-NN that came from outside the trace."""

    def to_string(self, verbose: bool = False) -> str:
        """The node's label."""
        return "ttnn.Tensor"


@dataclass(repr=False)
class TorchParameter(_Operation):
    """A parameter of a module."""

    parameter: torch.nn.Parameter
    name: str = ""

    def to_string(self, verbose: bool = False) -> str:
        """The node's label."""
        return f"torch.nn.Parameter\n{self.name}" if self.name else "torch.nn.Parameter"


@dataclass(repr=False)
class TorchFunction(_Operation):
    """A call of a function of torch."""

    function: Any
    arg_name_value_pairs: ArgumentPairs

    def to_string(self, verbose: bool = False) -> str:
        """The node's label."""
        name = torch.overrides.resolve_name(self.function) or self.function.__name__
        return _with_arguments(name, self.arg_name_value_pairs, verbose)


@dataclass(repr=False)
class TTNNOperation(_Operation):
    """A call of an operation of TT-NN."""

    pretty_name: str
    operation: Any
    arg_name_value_pairs: ArgumentPairs

    def to_string(self, verbose: bool = False) -> str:
        """The node's label."""
        return _with_arguments(self.pretty_name, self.arg_name_value_pairs, verbose)


@dataclass(repr=False)
class TorchModuleInput(_Operation):
    """An argument of a module, as the module's own graph sees it."""

    name: str

    def to_string(self, verbose: bool = False) -> str:
        """The node's label."""
        return self.name


@dataclass(frozen=True)
class ModuleIOTensor:
    """Where in a module's graph one of its inputs or outputs is."""

    name: str
    node: TracedNode
    output_index: int


@dataclass(repr=False)
class TorchModule(_Operation):
    """A call of a module: its graph, and where its inputs and outputs are in it."""

    module: torch.nn.Module
    graph: networkx.MultiDiGraph
    inputs: list[ModuleIOTensor]
    outputs: list[ModuleIOTensor]
    name: str = ""

    def to_string(self, verbose: bool = False) -> str:
        """The node's label."""
        kind = type(self.module)
        label = f"{kind.__module__}.{kind.__qualname__}"
        return f"{label}\n{self.name}" if self.name else label


def _with_arguments(name: str, arguments: ArgumentPairs, verbose: bool) -> str:
    if not verbose:
        return name
    given = [f"{key} = {value}" for key, value in arguments if not isinstance(value, InputTensorIndex)]
    return "\n".join([name, *given])
