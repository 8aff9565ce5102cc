"""Calls of operations inside the plan of another: checked and inferred as if users made them, over specs alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ttmesh.ops.catalogue.op_function import OpFunction
from ttmesh.tensor.calls.argument_errors import shapes_misfit
from ttmesh.tensor.calls.call_temporaries import Composition, PlannedTensor
from ttmesh.tensor.calls.lane_calls import infer, positions_of, static_arguments
from ttmesh.tensor.calls.launch_op import tensors_in
from ttmesh.tensor.calls.make_plan import META
from ttmesh.tensor.calls.operation import Call, Operation
from ttmesh.tensor.calls.plan import OUTPUTS
from ttmesh.tensor.calls.plan_keys import key_of
from ttmesh.tensor.spec.kind import kind_of
from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.tensor import Tensor


class PlannedFunction(NamedTuple):
    """An operation of the catalogue and the function that binds its arguments."""

    function: OpFunction
    operation: Operation


functions: dict[str, PlannedFunction] = {}  # filled by the catalogue


class PlannedCalls:
    """The calls that one call consists of, one after the other; their programs and memory are written into a composition."""

    def __init__(self, call: Call) -> None:
        self.mesh, self.c = call.mesh, Composition()
        self._topology, self._presence = call.tensors[0].kind.topology, call.tensors[0].kind.presence
        self._tensors: dict[int, tuple[PlannedTensor, Tensor]] = {}

    def run(
        self, name: str, arguments: Sequence[Any], options: Mapping[str, Any], target: PlannedTensor | None = None
    ) -> PlannedTensor:
        """Call an operation; planned tensors stand for tensors. With a target the result is written into it."""
        function, operation = functions[name]
        given = {**options, **({} if target is None else {"output_tensor": target})}
        stubs = [self._stub(value) for value in arguments]
        bound = function.bind(stubs, {key: self._stub(value) for key, value in given.items()})
        inputs = {key: value for key, value in bound.items() if key not in OUTPUTS}
        outputs = () if target is None else (self._stub(target),)
        call = Call(name, self.mesh, bound, tensors_in(inputs), outputs)
        final = self._infer(operation, call, inputs)
        composed = operation.stages(call, [final]) if operation.stages else None
        if composed is not None:
            made = self.c.include(composed[0], composed[1][0])
            return made if target is None else self._write(made, target)
        key = (operation.name, *(key_of(value, key in operation.runtime) for key, value in bound.items()))
        for program in operation.programs(call) if operation.programs else (key,):
            self.c.launch(program)
        return self.c.allocate(final) if target is None else target

    def _write(self, made: PlannedTensor, target: PlannedTensor) -> PlannedTensor:
        self.c.drop(made)
        return target

    def _infer(self, operation: Operation, call: Call, inputs: Mapping[str, Any]) -> TensorSpec:
        if operation.check is not None:
            operation.check(call)
        axes = self.mesh.shape.dims()
        static = static_arguments(operation.lane_arguments, dict(inputs), call.specs, axes, META)
        try:
            inferred, _ = infer(operation.lane, positions_of(dict(inputs)), static, call.specs, axes)
        except (RuntimeError, IndexError) as problem:
            raise shapes_misfit(operation.name, dict(inputs), problem) from None
        return operation.out(call, inferred)[0]

    def _stub(self, value: Any) -> Any:
        """A tensor without memory for a planned one, always the same; other values as they are."""
        if not isinstance(value, PlannedTensor):
            return value
        known = self._tensors.get(id(value))
        if known is None:
            kind = kind_of(value.spec, self._topology, self._presence)
            known = self._tensors[id(value)] = value, Tensor(kind, None, self.mesh, None)
        return known[1]
