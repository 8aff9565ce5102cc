"""Circular buffers of the programs of a call: rules by the name of the program, and the most that one program takes.

A rule gives the bytes that the fullest core holds of buffers that are not laid over a tensor's own shards. Rules take
every call that their operation takes: they are asked after it was checked, and raise nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from math import prod

from ttmesh.base.dtypes import BufferType, DataType, Layout
from ttmesh.mesh.device.mesh_device import LOCAL_L1_LABEL, MeshDevice
from ttmesh.tensor.calls.dispatch_factories import ProgramCall
from ttmesh.tensor.spec.memory_config import MemoryConfig
from ttmesh.tensor.spec.tensor_spec import TensorSpec

BufferRule = Callable[[ProgramCall], int]
KeyRule = Callable[[tuple[Hashable, ...]], int | None]

_rules: dict[str, BufferRule] = {}
_fused: set[str] = set()
_key_rules: list[KeyRule] = []


def buffer_rule(*names: str, fused: bool = False) -> Callable[[BufferRule], BufferRule]:
    """Make a function the rule of programs, by the last part of an operation's name or by the name of a stage.

    Args:
        fused: what ttmesh counts as stages is one program of TT-NN's.
    """

    def decorate(rule: BufferRule) -> BufferRule:
        for name in names:
            assert name not in _rules, f"{name} has two rules"
            _rules[name] = rule
        _fused.update(names if fused else ())
        return rule

    return decorate


def list_buffer_rules() -> dict[str, BufferRule]:
    """All rules, by name."""
    return dict(_rules)


def key_rule(rule: KeyRule) -> KeyRule:
    """Make a function the rule of the keys of some programs; it gives None for keys of others."""
    _key_rules.append(rule)
    return rule


def _find_key_size(key: tuple[Hashable, ...]) -> int | None:
    return next((size for rule in _key_rules if (size := rule(key)) is not None), None)


def find_free_l1(mesh: MeshDevice) -> int:
    """Bytes between the bottom of L1 and the lowest buffer in it: what factories that choose their blocks divide up."""
    live = mesh.heap.live[BufferType.L1].values()
    lowest = min((cell.address for cell in live if cell.label != LOCAL_L1_LABEL), default=mesh.heap.map.l1_bytes)
    return lowest - mesh.heap.map.banks[BufferType.L1].start


def compute_buffer_bytes(
    name: str, program: ProgramCall, programs: Sequence[Hashable], own: int | None, *, composed: bool
) -> int:
    """The most that one of the programs of a call takes per core.

    Args:
        own: what the operation's own rule says of a program that is no stage; None: it has none.
        composed: whether the programs are stages of a composite, which say what each of them is.
    """
    if name.rpartition(".")[2] in _fused:
        return _size(name, program)
    sizes = [0]
    for key in dict.fromkeys(programs):
        match key:
            case (str() as stage, *_) if composed and own is not None and stage not in _rules and stage.islower():
                sizes.append(own)
            case (str() as stage, tuple() as given, TensorSpec() as made, options) if composed:
                specs = tuple(spec for spec in given if isinstance(spec, TensorSpec))
                sizes.append(_size(stage, program._replace(inputs=specs, results=(made,), options={"stage": options})))
            case (str() as stage, TensorSpec() as given, *rest) if composed:
                results = tuple(spec for spec in rest if isinstance(spec, TensorSpec)) or (given,)
                call = program._replace(inputs=(given,), results=results, options={"stage": tuple(rest)})
                sizes.append(_size(stage, call))
            case (str() as stage, tuple() as shape, DataType() as dtype, MemoryConfig() as memory, *_) if composed:
                spec = TensorSpec(shape, dtype, Layout.TILE, memory_config=memory)
                sizes.append(_size(stage, program._replace(inputs=(spec,), results=(spec,), options={})))
            case tuple() if composed and (found := _find_key_size(key)) is not None:
                sizes.append(found)
            case _ if own is not None:
                sizes.append(own)
            case _:
                sizes.append(_size(name, program))
    return max(sizes)


def _size(name: str, program: ProgramCall) -> int:
    rule = _rules.get(name.rpartition(".")[2].rstrip("_"))
    known = program.inputs or program.results
    made = program.results or known
    if (
        rule is None or not made or not all(prod(spec.shape) for spec in made)
    ):  # without elements there is no page to hold
        return 0
    return rule(program._replace(inputs=known, results=made))
