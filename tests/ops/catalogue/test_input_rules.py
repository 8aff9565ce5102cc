"""What an operation takes as its first tensor, and where its result is stored, as TT-NN 0.81.1 answers."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

import ttmesh.ttnn as ttnn
from ttmesh.base.dtypes import DataType, Layout
from ttmesh.ops.catalogue.definition import catalogue
from ttmesh.ops.catalogue.input_rules import EVERY, RULES, InputRule

ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "ttnn.threshold": (1.0, 2.0),
    "ttnn.topk": (32,),
    **dict.fromkeys(("ttnn.polygamma", "ttnn.moreh_softmax", "ttnn.moreh_logsoftmax", "ttnn.moreh_softmin"), (1,)),
    **dict.fromkeys(
        ("ttnn.cumsum", "ttnn.cumprod", "ttnn.moreh_cumsum", "ttnn.moreh_cumsum_backward", "ttnn.moreh_sum"), (0,)
    ),
    **dict.fromkeys(
        ("ttnn.softcap", "ttnn.rpow", "ttnn.leaky_relu", "ttnn.heaviside", "ttnn.fill", "ttnn.rdiv"), (2.0,)
    ),
    "ttnn.moreh_norm": (2.0,),
    "ttnn.argmax": (-1,),
    **dict.fromkeys(("ttnn.sum", "ttnn.mean", "ttnn.max", "ttnn.min", "ttnn.std", "ttnn.var"), (-1,)),
}
T = object()  # stands for the tensor itself
ARGUMENTS |= {
    "ttnn.moreh_abs_pow": (2.0,),
    "ttnn.moreh_sum_backward": (),
    "ttnn.moreh_norm_backward": (T, T, 2.0),
    "ttnn.moreh_group_norm": (1,),
    "ttnn.moreh_group_norm_backward": (T, T, T, 1),
    "ttnn.moreh_layer_norm": (1,),
    **dict.fromkeys(("ttnn.moreh_adam", "ttnn.moreh_adamw"), (T, T, T)),
    "ttnn.moreh_sgd": (T,),
    **dict.fromkeys(("ttnn.moreh_matmul", "ttnn.moreh_bmm", "ttnn.moreh_linear", "ttnn.moreh_dot"), (T,)),
    **dict.fromkeys(
        ("ttnn.moreh_softmax_backward", "ttnn.moreh_softmin_backward", "ttnn.moreh_logsoftmax_backward"), (T, 1)
    ),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "ttnn.moreh_sum_backward": {"input": T},
    "ttnn.moreh_mean_backward": {"input_grad_shape": (64, 64), "keepdim": True},
    **{key: {"step": 1} for key in ("ttnn.moreh_adam", "ttnn.moreh_adamw")},
    "ttnn.moreh_sgd": {"momentum_initialized": False},
    "ttnn.moreh_fold": {"output_size": (8, 8), "kernel_size": (1, 1)},
}
SEVERAL_SHAPES = ("moreh_sum_backward", "moreh_norm_backward", "moreh_group_norm_backward")
ELSEWHERE = (  # need another chip, a mask, tensors of several shapes, or are parts of other operations
    "ttnn.softcap", "ttnn.scale_causal_mask_hw_dims_softmax_in_place", "ttnn.moreh_clip_grad_norm", "ttnn.moreh_times",
    "ttnn.moreh_norm_backward input", "ttnn.moreh_mean_backward", *(f"ttnn.{name}" for name in SEVERAL_SHAPES),
)  # fmt: skip


@pytest.fixture(scope="module")
def mesh():
    opened = ttnn.open_mesh_device(ttnn.MeshShape(1, 1))
    yield opened
    ttnn.close_mesh_device(opened)


def on(mesh, dtype=DataType.BFLOAT16, layout=Layout.TILE, memory=None, shape=(64, 64)):
    values = torch.ones(shape) if dtype.name.startswith(("B", "F")) else torch.ones(shape, dtype=torch.int32)
    return ttnn.from_torch(values, dtype=dtype, layout=layout, device=mesh, memory_config=memory)


def shards(kind: str, columns: int, rows: int, shape: list[int]):
    cores = ttnn.CoreRangeSet({ttnn.CoreRange(ttnn.CoreCoord(0, 0), ttnn.CoreCoord(columns - 1, rows - 1))})
    spec = ttnn.ShardSpec(cores, shape, ttnn.ShardOrientation.ROW_MAJOR)
    return ttnn.MemoryConfig(getattr(ttnn.TensorMemoryLayout, f"{kind}_SHARDED"), ttnn.BufferType.L1, spec)


@pytest.mark.parametrize("name", SEVERAL_SHAPES)
def test_gradients_of_moreh_refuse_float32_in_ttnns_words(mesh, name: str) -> None:
    with pytest.raises(RuntimeError, match=r"only supports specific data types. \[BFLOAT16\]"):
        call(f"ttnn.{name}", on(mesh, DataType.FLOAT32))


HEIGHT, WIDTH, BLOCK = (
    shards("HEIGHT", 2, 1, [32, 64]),
    shards("WIDTH", 2, 1, [64, 32]),
    shards("BLOCK", 2, 2, [32, 32]),
)


def call(name: str, tensor):
    if name == "ttnn.softmax_in_place":
        tensor = ttnn.unsqueeze_to_4D(tensor)
    values = [tensor if value is T else value for value in ARGUMENTS.get(name, ())]
    options = {key: tensor if value is T else value for key, value in OPTIONS.get(name, {}).items()}
    return catalogue[name].function(tensor, *values, **options)


def text_of(template: str, value: str) -> str:
    return re.escape(template.format(value))


@pytest.mark.parametrize("name", [name for name in RULES if name not in ELSEWHERE])
def test_formats_layouts_and_memory_outside_the_rule_are_refused_in_ttnns_words(mesh, name: str) -> None:
    rule: InputRule = RULES[name]

    for dtype in sorted(EVERY, key=lambda dtype: dtype.name):
        if rule.wrong_dtype and dtype not in rule.dtypes:
            with pytest.raises(RuntimeError, match=text_of(rule.wrong_dtype, f"DataType::{dtype.name}")):
                call(name, on(mesh, dtype, rule.layout))
    if rule.wrong_layout:
        other = Layout.ROW_MAJOR if rule.layout is Layout.TILE else Layout.TILE
        with pytest.raises(RuntimeError, match=re.escape(rule.wrong_layout)):
            call(name, on(mesh, layout=other))
    if rule.wrong_sharding:
        with pytest.raises(RuntimeError, match=text_of(rule.wrong_sharding, "TensorMemoryLayout::HEIGHT_SHARDED")):
            call(name, on(mesh, memory=HEIGHT))
    call(name, on(mesh, DataType.INT32 if name == "ttnn.bitwise_not" else DataType.BFLOAT16, rule.layout))


@pytest.mark.parametrize("operation", [ttnn.matmul, ttnn.linear])
def test_matrix_products_take_floats(mesh, operation: Callable[..., Any]) -> None:
    floats, integers = on(mesh), on(mesh, DataType.INT32)

    with pytest.raises(RuntimeError, match="Unsupported data format for input A: DataType::INT32"):
        operation(integers, floats)
    with pytest.raises(RuntimeError, match="Unsupported data format for input B: DataType::INT32"):
        operation(floats, integers)


def test_concat_puts_its_result_in_dram(mesh) -> None:
    in_l1 = on(mesh, memory=ttnn.L1_MEMORY_CONFIG)
    sharded = on(mesh, memory=HEIGHT)

    for tensors in ([in_l1, in_l1], [in_l1], [sharded, sharded], [in_l1, on(mesh)]):
        assert ttnn.concat(tensors, 0).memory_config() == ttnn.DRAM_MEMORY_CONFIG
    assert ttnn.concat([in_l1, in_l1], 0, memory_config=ttnn.L1_MEMORY_CONFIG).memory_config() == ttnn.L1_MEMORY_CONFIG
    with pytest.raises(RuntimeError, match="All tensors must be sharded or all must be interleaved"):
        ttnn.concat([sharded, in_l1], 0)


def test_where_with_a_number_lies_where_the_other_value_does(mesh) -> None:
    dram, l1, height = on(mesh), on(mesh, memory=ttnn.L1_MEMORY_CONFIG), on(mesh, memory=HEIGHT)

    for predicate, value in ((l1, dram), (dram, l1), (height, dram), (dram, height)):
        assert ttnn.where(predicate, 1.0, value).memory_config() == value.memory_config()
        assert ttnn.where(predicate, value, 1.0).memory_config() == value.memory_config()
    assert ttnn.where(l1, 1.0, 2.0).memory_config() == l1.memory_config()
    assert ttnn.where(l1, dram, dram).memory_config() == l1.memory_config()


@pytest.mark.parametrize("memory", [HEIGHT, WIDTH, BLOCK], ids=["height", "width", "block"])
def test_sort_keeps_shards(mesh, memory) -> None:
    values, indices = ttnn.sort(on(mesh, memory=memory))

    assert values.memory_config() == indices.memory_config() == memory
    assert ttnn.sort(on(mesh, memory=memory), memory_config=ttnn.DRAM_MEMORY_CONFIG)[0].memory_config().is_dram()


@pytest.mark.parametrize(
    ("memory", "layout", "ends", "shard"),
    [
        (HEIGHT, Layout.TILE, [64, 32], [32, 32]),
        (HEIGHT, Layout.TILE, [32, 64], [32, 64]),
        (HEIGHT, Layout.TILE, [40, 64], [32, 64]),
        (WIDTH, Layout.TILE, [64, 32], [64, 32]),
        (WIDTH, Layout.TILE, [32, 64], [32, 32]),
        (BLOCK, Layout.TILE, [32, 32], [32, 32]),
        (HEIGHT, Layout.ROW_MAJOR, [32, 64], [16, 64]),
        (HEIGHT, Layout.ROW_MAJOR, [40, 64], [20, 64]),
        (WIDTH, Layout.ROW_MAJOR, [64, 32], [64, 16]),
    ],
)
def test_slices_of_shards_stay_on_their_cores(mesh, memory, layout, ends: list[int], shard: list[int]) -> None:
    source = on(mesh, layout=layout, memory=memory)

    made = ttnn.slice(source, [0, 0], ends)

    config = made.memory_config()
    assert config.memory_layout == memory.memory_layout
    assert (list(config.shard_spec.shape), config.shard_spec.grid) == (shard, memory.shard_spec.grid)
    assert torch.equal(ttnn.to_torch(made), torch.ones(ends, dtype=torch.bfloat16))


def test_slices_that_are_cut_in_rows_need_shards_of_whole_tiles(mesh) -> None:
    source = on(mesh, memory=HEIGHT)

    for starts, ends, steps in (([0, 0], [64, 64], [2, 1]), ([8, 0], [40, 64], [1, 1])):
        with pytest.raises(RuntimeError, match=r"Physical shard shape .16, 64. must be tile \{32, 32\} sized!"):
            ttnn.slice(source, starts, ends, steps)


def test_products_keep_shards_that_fit(mesh) -> None:
    column = shards("HEIGHT", 1, 2, [32, 64])

    assert ttnn.prod(on(mesh, memory=column, shape=(1, 64, 64)), 0).memory_config() == column
    with pytest.raises(RuntimeError, match=r"Prod_nc output shard grid .* must be contained in program core grid"):
        ttnn.prod(on(mesh, memory=HEIGHT, shape=(1, 64, 64)), 0)
    with pytest.raises(RuntimeError, match="Number of shards along height 64 must not exceed number of cores 2"):
        ttnn.prod(on(mesh, memory=column), 1)
    with pytest.raises(RuntimeError, match="expected BFLOAT16, FLOAT32 or BFLOAT8_B but got DataType::INT32"):
        ttnn.prod(on(mesh, DataType.INT32), 0)


def test_moreh_reductions_keep_shards_that_fit(mesh) -> None:
    source = on(mesh, memory=HEIGHT)

    for reduce in (ttnn.moreh_sum, ttnn.moreh_mean):
        assert reduce(source, dim=0).memory_config() == HEIGHT
        with pytest.raises(RuntimeError, match="Shard width 64 must match physical width 32 for height sharded"):
            reduce(source, dim=1)
    with pytest.raises(RuntimeError, match=r"Invalid dimension value: -1. Expected a value between 0 and 7."):
        ttnn.moreh_mean(on(mesh, DataType.FLOAT32), dim=-1)
