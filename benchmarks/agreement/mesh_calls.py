"""Draws random calls on a mesh: python mesh_calls.py OUT --seed 1 --count 300 --mesh 2 4 [--change] [--family fused].

A call is Python in the words of `mesh_session.py`. With `--change` every call is one that TT-NN should take, with one thing
changed: an argument, a format, a layout, the memory, the rank, a length, the number of links or a semaphore.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import mesh_expert_calls
import mesh_free_calls
import mesh_fused_calls
from mesh_draw import Draw, Writer, call, collective_options, optional, placed, tensor


def reduce_or_gather(name: str) -> Writer:
    """all_gather, reduce_scatter and all_reduce."""

    def write(d: Draw) -> str:
        dim = d.pick(["3", "3", "2", "1", "0", "-1", "-2"], ["4", "-5", "7"])
        local = [
            d.number([1, 2], [3]),
            d.number([1, 4, 8], [3]),
            d.number([32, 64, 256], [40, 33]),
            d.number([64, 256, 512], [48, 70]),
        ]
        index = int(dim) % 4 if -5 < int(dim) < 4 else 3
        if name != "all_gather" and name != "all_reduce":
            local[index] = max(local[index], 1) * d.rows * d.columns if index < 2 else 32 * d.rows * d.columns
        x = placed(d, local)
        arguments = ["x"] + ([] if name == "all_reduce" else [d.pick([dim, f"dim={dim}"])])
        return call(f"x={x}", f"ttnn.{name}", arguments + collective_options(d))

    return write


def broadcast(d: Draw) -> str:
    x = placed(d, [1, d.number([1, 4]), d.number([32, 64], [40]), d.number([64, 256], [48])])
    at = d.coordinate()
    return call(f"x={x}", "ttnn.broadcast", ["x", f"sender_coord={at}", *collective_options(d)])


def all_broadcast(d: Draw) -> str:
    x = placed(d, [1, d.number([1, 4]), d.number([32, 64], [40]), d.number([64, 256], [48])])
    return call(f"x={x}", "ttnn.all_broadcast", ["x", *collective_options(d)])


def mesh_partition(d: Draw) -> str:
    dim = d.pick(["3", "2", "1", "0", "-1"], ["4", "-5"])
    local = [8, d.number([8, 32]), d.number([256, 64], [40]), d.number([1024, 256], [96])]
    options = optional(d, "cluster_axis", ["0", "1", "None"], ["2", "-1"], 0.9) + optional(
        d, "memory_config", ["DRAM", "L1"], ["shard('w',(64,256))", "3"]
    )
    return call(f"x={placed(d, local)}", "ttnn.mesh_partition", ["x", f"dim={dim}", *options])


def point_to_point(d: Draw) -> str:
    x = placed(d, [1, d.number([1, 4]), d.number([32, 64], [40]), d.number([64, 256], [48])])
    setup, options = (
        f"x={x}",
        optional(d, "topology", ["ttnn.Topology.Linear", "ttnn.Topology.Ring"], ["None", "ttnn.Topology.Mesh"]),
    )
    if d.chance(0.25):
        setup += f"; y={d.pick(['ttnn.empty_like(x)'], ['mk((1,1,32,32))', 'host((1,1,32,32))'])}"
        options.append(f"output_tensor={d.pick(['y'], ['x', '3'])}")
    row, column = d.rng.randrange(d.rows), d.rng.randrange(d.columns)
    near = [f"C({row},{(column + 1) % d.columns})", f"C({(row + 1) % d.rows},{column})"]
    other = d.pick(
        near,
        [
            f"C({row},{column})",
            f"C({(row + 1) % d.rows},{(column + 1) % d.columns})",
            "C(0,9)",
            "C(0)",
            "None",
            "(0,1)",
        ],
    )
    return call(setup, "ttnn.point_to_point", ["x", f"C({row},{column})", other, *options])


def gather_async(name: str) -> Writer:
    """all_gather_async and its reversed form, in three overloads."""

    def write(d: Draw) -> str:
        dim = d.pick(["3", "3", "2", "1", "0"], ["4", "-1", "-5"])
        x = placed(d, [1, d.number([1, 4], [3]), d.number([32, 64], [40]), d.number([128, 256], [48, 70])])
        semaphores = d.semaphores(2)
        setup = f"x={x}; s={semaphores}"
        form = d.choice(["keyword", "axis", "plain"])
        shared = [
            *optional(d, "num_links", ["1"], ["0", "2", "5", "-1"], 0.3), *optional(d, "memory_config", ["DRAM", "L1"], ["3", "shard('w',(64,256))"]),
            *optional(d, "barrier_semaphore", ["sem()"], ["None", "3", "[sem()]"]), *optional(d, "subdevice_id", ["ttnn.SubDeviceId(0)"], ["ttnn.SubDeviceId(2)", "None"], 0.1),
        ]  # fmt: skip
        if form == "axis":
            topology = d.pick(["ttnn.Topology.Linear", "ttnn.Topology.Ring"], ["None", "ttnn.Topology.Mesh"])
            arguments = [
                "x",
                f"dim={dim}",
                f"cluster_axis={d.axis()}",
                f"mesh_device={d.pick(['dev'], ['None'])}",
                f"topology={topology}",
                "multi_device_global_semaphore=s",
            ]
            return call(setup, name, [*arguments, *shared])
        shared += optional(
            d, "topology", ["ttnn.Topology.Linear", "ttnn.Topology.Ring"], ["None", "ttnn.Topology.Mesh"], 0.7
        )
        if form == "plain":
            return call(setup, name, ["x", f"dim={dim}", "multi_device_global_semaphore=s", *shared])
        buffer = d.pick(["None"], ["x", "mk((1,1,32,32))", "3"])
        return call(
            setup,
            name,
            [
                "x",
                f"persistent_output_buffer={buffer}",
                f"dim={dim}",
                "multi_device_global_semaphore=s",
                *optional(d, "cluster_axis", ["0", "1"], ["None", "2"], 0.9),
                *shared,
            ],
        )

    return write


def scatter_async(d: Draw) -> str:
    n = d.rows * d.columns
    dim = d.pick(["3", "3", "2", "1", "0"], ["4", "-1"])
    local = [d.number([1, n]), n, 32 * n, d.number([32 * n, 64 * n], [48 * n, 40])]
    options = [
        *optional(d, "num_links", ["1"], ["0", "2", "5"], 0.3), *optional(d, "memory_config", ["DRAM", "L1"], ["3"]), *optional(d, "topology", ["ttnn.Topology.Linear", "ttnn.Topology.Ring"], ["None", "ttnn.Topology.Mesh"], 0.7),
        *optional(d, "barrier_semaphore", ["sem()"], ["None", "3"], 0.6), *optional(d, "cluster_axis", ["0", "1"], ["None", "2", "-1"], 0.9),
        *optional(d, "intermediate_memory_config", ["DRAM", "L1"], ["3"], 0.2), *optional(d, "persistent_output_buffers", ["None"], ["[]", "[x]", "[x,x]"], 0.2),
    ]  # fmt: skip
    return call(
        f"x={placed(d, local)}; s={d.semaphores(3)}",
        "ttnn.experimental.reduce_scatter_minimal_async",
        ["x", f"dim={dim}", "multi_device_global_semaphore=s", *options],
    )


def reduce_async(d: Draw) -> str:
    x = placed(d, [1, d.number([1, 4]), d.number([32, 64], [40]), d.number([128, 512], [48])])
    n = d.rows * d.columns
    op = f"math_op={d.pick(['ttnn.ReduceType.Sum'], ['None', 'ttnn.ReduceType.Max', '1'])}"
    setup = f"x={x}; b={d.semaphores(2)}; r={d.semaphores(3)}; g={d.semaphores(2)}"
    options = [
        *optional(d, "num_links", ["1"], ["0", "3"], 0.4),
        *optional(d, "memory_config", ["DRAM", "L1"], ["3"]),
        *optional(d, "topology", ["ttnn.Topology.Linear", "ttnn.Topology.Ring"], ["None", "ttnn.Topology.Mesh"]),
    ]
    if d.chance(0.3):
        return call(
            setup,
            "ttnn.experimental.all_reduce_async",
            [
                "x",
                f"num_devices={d.pick([str(n)], ['2', '0'])}",
                "barrier_semaphores=b",
                "rs_global_semaphores=r",
                "ag_global_semaphores=g",
                op,
                *options,
            ],
        )
    given = d.choice([["barrier_semaphores=b", "rs_global_semaphores=r", "ag_global_semaphores=g"], []])
    return call(
        setup,
        "ttnn.experimental.all_reduce_async",
        ["x", f"cluster_axis={d.axis()}", f"mesh_device={d.pick(['dev'], ['None'])}", *given, op, *options],
    )


def all_to_all_generic(d: Draw) -> str:
    n = d.rows * d.columns
    dims = [d.pick(["3", "2", "1", "0"], ["4", "-5"]), d.pick(["2", "3", "1", "0"], ["4", "-1"])]
    local = [d.number([1, n]), d.number([1, n]), 32 * n, d.number([32 * n], [48 * n])]
    options = [
        *optional(d, "cluster_axis", ["0", "1", "None"], ["2"], 0.8),
        *optional(d, "num_links", ["1"], ["0", "3"]),
        *optional(d, "topology", ["ttnn.Topology.Linear", "ttnn.Topology.Ring"], ["ttnn.Topology.Mesh"]),
        *optional(d, "memory_config", ["DRAM", "L1"], ["3"]),
    ]
    return call(
        f"x={placed(d, local)}",
        "ttnn.experimental.all_to_all_async_generic",
        ["x", f"in_dim={dims[0]}", f"out_dim={dims[1]}", *options],
    )


def all_to_all_async(d: Draw) -> str:
    n = d.rows * d.columns
    i, o = d.rng.sample([1, 2, 3], 2)
    whole = [1, n, 32 * n, 32 * n]
    result = list(whole)
    result[i], result[o] = whole[i], whole[o] // n
    kind = ["'bf16'", "TILE", "DRAM"]
    x = tensor(whole, *kind, f"S({i})")
    buffers = [d.pick([tensor(result, *kind)], [tensor([1, 1, 32, 32]), "None"]) for _ in range(2)]
    setup = f"x={x}; a={buffers[0]}; b={buffers[1]}; s={d.pick(['sem()'], ['[sem()]', 'None'])}"
    dims = [
        d.pick([f"in_dim={i}"], ["in_dim=0", f"in_dim={o}", "in_dim=5"]),
        d.pick([f"out_dim={o}"], ["out_dim=0", f"out_dim={i}"]),
    ]
    options = [
        *optional(d, "num_links", ["1"], ["0", "2"]),
        *optional(d, "topology", ["ttnn.Topology.Ring", "ttnn.Topology.Linear"], ["None"]),
        *optional(d, "memory_config", ["DRAM"], ["L1", "3"]),
    ]
    return call(
        setup,
        "ttnn.experimental.all_to_all_async",
        [
            "x",
            "persistent_intermediate_buffer=a",
            "persistent_output_buffer=b",
            *dims,
            "multi_device_global_semaphore=s",
            *options,
        ],
    )


def ring_gather(d: Draw) -> str:
    axis, n = d.axis_and_size()
    dim = d.pick(["2", "3"], ["1", "4", "-1"])
    local = [1, d.number([1, 2]), 64, 128]
    mapper = "D((None,2))" if n == d.columns else "D((2,None))"
    x = tensor([1, local[1], 64 * n, 128], d.dtype(), d.layout(), "DRAM", mapper if dim != "3" else "R")
    buffer = list(local)
    buffer[int(dim) % 4 if dim in ("2", "3") else 2] *= n
    setup = f"x={x}; y={d.pick([tensor(buffer)], [tensor(local), tensor([1, 1, 32, 32]), 'None'])}; s={d.semaphores(2)}"
    options = [*optional(d, "num_links", ["1"], ["0", "3"], 0.7), *optional(d, "memory_config", ["DRAM"], ["L1", "3"])]
    lists = d.pick(["[x],[y]"], ["[x],[]", "[],[]", "x,y", "[x,x],[y]"])
    topology = d.pick(["ttnn.Topology.Linear", "ttnn.Topology.Ring"], ["None", "ttnn.Topology.Mesh"])
    return call(
        setup,
        "ttnn.experimental.ring_attention_all_gather_async",
        [
            lists,
            f"dim={dim}",
            "multi_device_global_semaphore=s",
            f"cluster_axis={d.pick([axis], ['None', '2'])}",
            "mesh_device=dev",
            f"topology={topology}",
            *options,
        ],
    )


def high_bandwidth(d: Draw) -> str:
    axis, n = d.axis_and_size()
    dim = d.pick([2, 1, 3], [0])
    local = [1, d.number([1, 2]), d.number([64, 128], [40]), d.number([128, 256], [48])]
    result = list(local)
    result[dim] *= n
    dtype, layout = d.dtype(), d.layout()
    x = placed(d, local, dtype, layout)
    setup = f"x={x}; y={d.pick([tensor(result, dtype, layout)], [tensor(local, dtype, layout), tensor(result, quote('u16'), layout), 'host((1,1,32,32))'])}"
    return call(
        setup,
        "ttnn.experimental.high_bw_all_gather",
        [
            "x",
            f"dim={dim}",
            "output_tensor=y",
            f"cluster_axis={d.pick([axis], ['None', '2'])}",
            *optional(d, "num_links", ["1"], ["0", "3"]),
        ],
    )


def quote(text: str) -> str:
    return repr(text)


def scatter_direct(d: Draw) -> str:
    n = d.rows * d.columns
    dim = d.pick(["3", "2", "1"], ["0", "4", "-1"])
    x = placed(d, [1, n, 32 * n, d.number([32 * n, 64 * n], [40])])
    name = d.choice(["", "", "_create_staging_buffer", "_create_persistent_buffers"])
    options = optional(d, "cluster_axis", ["0", "1"], ["None", "2"], 0.9)
    if not name:
        options += [*optional(d, "num_links", ["1"], ["0", "3"]), *optional(d, "memory_config", ["DRAM", "L1"], ["3"])]
    return call(f"x={x}", f"ttnn.experimental.reduce_scatter_minimal_direct{name}", ["x", f"dim={dim}", *options])


def scatter_buffer(d: Draw) -> str:
    n = d.rows * d.columns
    x = placed(d, [1, n, 32 * n, d.number([32 * n, 64 * n], [40])])
    dim = d.pick(["3", "2", "1"], ["0", "4", "-1"])
    options = [
        *optional(d, "cluster_axis", ["0", "1"], ["None", "2"], 0.9),
        *optional(d, "topology", ["ttnn.Topology.Ring"], ["ttnn.Topology.Linear", "None"]),
    ]
    return call(
        f"x={x}",
        "ttnn.experimental.reduce_scatter_minimal_async_create_intermediate_buffer",
        ["x", f"dim={dim}", *options],
    )


def neighbor_pad(d: Draw) -> str:
    axis, n = d.axis_and_size()
    x = tensor(
        [d.number([1, 2]), 4, 8 * n, 8, d.number([32, 64], [16])],
        d.dtype(["bf16", "f32"]),
        d.pick(["RM"], ["TILE"]),
        d.pick(["DRAM", "L1"]),
        "D((None,2))" if axis == "1" else "D((2,None))",
    )
    setup = (
        f"x={x}; s={d.pick(['[sem()]'], ['sem()', '[]', '[sem(),sem()]'])}; b={d.pick(['[sem()]'], ['None', 'sem()'])}"
    )
    arguments = [
        "x",
        f"dim={d.pick(['[2]'], ['[3]', '2', '[0]'])}",
        f"padding_left={d.pick(['[1]', '[2]'], ['[0]', '1', '[9]'])}",
        f"padding_right={d.pick(['[1]', '[2]'], ['[0]', '[]'])}",
    ]
    arguments += [
        f"padding_mode={d.pick([quote('zeros'), quote('replicate')], [quote('reflect'), 'None'])}",
        f"cluster_axis={d.pick([f'[{axis}]'], [axis, '[5]'])}",
        "neighbor_semaphore=s",
        "barrier_semaphore=b",
    ]
    options = [
        *optional(d, "num_links", ["[1]"], ["1", "[0]", "[3]"], 0.7),
        *optional(d, "topology", ["ttnn.Topology.Linear"], ["None", "ttnn.Topology.Ring"]),
        *optional(d, "memory_config", ["DRAM"], ["L1", "3"]),
    ]
    return call(setup, "ttnn.experimental.neighbor_pad_async", arguments + options)


def slice_reshard(d: Draw) -> str:
    axis, n = d.axis_and_size()
    x = tensor(
        [d.number([16, 32], [10]) * n, 8, 8, d.number([32, 64], [16])],
        d.dtype(["bf16", "f32"]),
        d.pick(["RM"], ["TILE"]),
        d.pick(["DRAM", "L1"]),
        "D((None,0))" if axis == "1" else "D((0,None))",
    )
    arguments = [
        "x",
        f"dim={d.pick(['0'], ['1', '2'])}",
        f"output_dim_offset={d.pick(['0', '2'], ['-1', '100'])}",
        f"output_dim_shape={d.pick([str(8 * n)], ['7', '1000'])}",
        f"cluster_axis={d.pick([axis], ['5', 'None'])}",
        "final_semaphore=sem()",
        "barrier_semaphore=sem()",
    ]
    options = [
        *optional(d, "num_links", ["1"], ["0", "3"], 0.7),
        *optional(d, "topology", ["ttnn.Topology.Linear"], ["None", "ttnn.Topology.Ring"]),
        *optional(d, "memory_config", ["DRAM"], ["L1", "3"]),
    ]
    return call(f"x={x}", "ttnn.experimental.slice_reshard_async", arguments + options)


def mapper(d: Draw) -> str:
    n = d.rows * d.columns
    shape = [
        d.number([n, 2 * n], [3, n + 1]),
        d.number([4, n]),
        d.number([32, 32 * n], [40]),
        d.number([32 * n, 64 * n], [70, 5]),
    ][-d.pick([4, 3, 2], [1]) :]
    dims = range(-len(shape), len(shape))
    one = [f"S({i})" for i in dims]
    two = [f"D(({a},{b}))" for a in [None, *range(len(shape))] for b in [None, *range(len(shape))]]
    placements = [
        f"ttnn.create_mesh_mapper(dev,ttnn.MeshMapperConfig([{a},{b}]))"
        for a, b in (
            ("ttnn.PlacementReplicate()", "ttnn.PlacementShard(0)"),
            ("ttnn.PlacementShard(1)", "ttnn.PlacementReplicate()"),
        )
    ]
    odd = ["S(7)", "D((0,9))", "D((0,))", "D((1,1))", "ttnn.ShardTensor2dMesh(dev,mesh_shape=(4,4),dims=(0,1))", "3"]
    return f"=> {tensor(shape, d.dtype(), d.layout(), d.memory(), d.pick(one + two + placements + ['R'], odd))}"


def composer(d: Draw) -> str:
    n = d.rows * d.columns
    x = placed(d, [d.number([1, 2]), d.number([1, 4]), d.number([32, 40]), d.number([32, 70])])
    flat = [f"ttnn.ConcatMeshToTensor(dev,dim={i})" for i in (0, 1, 3, -1)]
    two = [
        f"ttnn.ConcatMesh2dToTensor(dev,mesh_shape=({d.rows},{d.columns}),dims={dims})"
        for dims in ((0, 1), (2, 3), (1, 3), (0, -1))
    ]
    odd = [
        "ttnn.ConcatMeshToTensor(dev,dim=9)",
        "ttnn.ConcatMesh2dToTensor(dev,mesh_shape=(4,8),dims=(0,1))",
        "ttnn.ConcatMesh2dToTensor(dev,mesh_shape=(1,2),dims=(0,1))",
        f"ttnn.ConcatMesh2dToTensor(dev,mesh_shape=({d.rows},{d.columns}),dims=(1,1))",
        "None",
        "3",
    ]
    return call(
        f"x={x}",
        f"{'tuple' if n else ''}(ttnn.to_torch",
        [f"x,mesh_composer={d.pick(flat + two, odd)}).shape"],
        close="",
    )


def device_tensors(d: Draw) -> str:
    x = placed(d, [1, d.number([1, 4]), d.number([32, 64]), d.number([64, 128])])
    n = d.rows * d.columns
    asked = d.pick(
        [
            "ttnn.get_device_tensors(x)",
            "ttnn.combine_device_tensors(tensors=ttnn.get_device_tensors(x))",
            f"ttnn.get_device_tensors(x)[{n - 1}]",
        ],
        [
            "ttnn.combine_device_tensors(tensors=ttnn.get_device_tensors(x)[:2])",
            "ttnn.combine_device_tensors(tensors=[x,x])",
            "ttnn.combine_device_tensors(tensors=[])",
            "ttnn.get_device_tensors(3)",
            "ttnn.combine_device_tensors(x)",
        ],
    )
    return f"x={x} => {asked}"


def submesh(d: Draw) -> str:
    shape = d.pick(
        [f"({d.rows},1)", "(1,2)", f"(1,{d.columns})", f"({d.rows},{d.columns})", "(1,1)"],
        ["(3,3)", "(0,1)", "(1,9)", "(16,1)"],
    )
    offset = d.pick(
        ["", "", ",ttnn.MeshCoordinate(0,1)", f",ttnn.MeshCoordinate({d.rows - 1},0)"],
        [",ttnn.MeshCoordinate(9,9)", ",ttnn.MeshCoordinate(0)"],
    )
    make = d.choice(
        [f"dev.create_submesh(ttnn.MeshShape{shape}{offset})", f"dev.create_submeshes(ttnn.MeshShape{shape})"]
    )
    if d.chance(0.5):
        return f"=> {make}"
    return f"m=dev.create_submesh(ttnn.MeshShape{shape}) => ttnn.from_torch(torch.zeros(1,8,32,64),dtype=ttnn.bfloat16,layout=TILE,device=m,mesh_mapper={d.choice(['ttnn.ReplicateTensorToMesh(m)', 'ttnn.ShardTensorToMesh(m,dim=1)'])})"


def on_placed(d: Draw) -> str:
    """Operations of one chip on tensors that are sharded or replicated over the mesh."""
    local = [1, d.number([1, 4]), d.number([32, 64], [40]), d.number([64, 128], [70])]
    x, y = placed(d, local), placed(d, local)
    asked = d.choice(
        ["ttnn.add(x,y)", "ttnn.multiply(x,y)", "ttnn.add(x,1.5)", "ttnn.relu(x)", "ttnn.exp(x)", "ttnn.softmax(x,dim=-1)", "ttnn.sum(x,dim=-1)", "ttnn.mean(x,dim=-2,keepdim=True)", "ttnn.max(x,dim=-1)",
         "ttnn.matmul(x,ttnn.transpose(y,-2,-1))", "ttnn.permute(x,(0,2,1,3))", "ttnn.concat([x,y],dim=-1)", "ttnn.concat([x,y],dim=1)", "ttnn.slice(x,[0,0,0,0],[1,1,32,32])", "ttnn.typecast(x,ttnn.bfloat8_b)",
         "ttnn.to_layout(x,RM)", "ttnn.to_memory_config(x,L1)", "ttnn.reshape(x,(1,1,-1,32))", "ttnn.rms_norm(x)", "ttnn.layer_norm(x)", "ttnn.clone(x)", "ttnn.pad(x,[(0,0),(0,0),(0,32),(0,32)],0.0)", "ttnn.where(x,y,x)",
         "ttnn.zeros_like(x)", "ttnn.full_like(x,2.0)", "ttnn.argmax(x,dim=-1)", "ttnn.to_torch(ttnn.get_device_tensors(x)[0]).shape", "ttnn.from_device(x)", "ttnn.split(x,32,-1)", "ttnn.repeat(x,(1,2,1,1))", "ttnn.squeeze(x,0)", "ttnn.unsqueeze(x,0)",
         "ttnn.gt(x,y)", "ttnn.pow(x,2)", "ttnn.silu(x)", "ttnn.transpose(x,1,2)", "ttnn.topk(x,32,-1)", "ttnn.cumsum(x,dim=0)"]
    )  # fmt: skip
    return f"x={x}; y={y} => {asked}"


COLLECTIVES: dict[str, Writer] = {
    "all_gather": reduce_or_gather("all_gather"), "reduce_scatter": reduce_or_gather("reduce_scatter"),
    "all_reduce": reduce_or_gather("all_reduce"), "broadcast": broadcast, "all_broadcast": all_broadcast,
    "mesh_partition": mesh_partition, "point_to_point": point_to_point,
    "all_gather_async": gather_async("ttnn.experimental.all_gather_async"),
    "all_gather_async_reversed": gather_async("ttnn.experimental.all_gather_async_reversed"),
    "reduce_scatter_minimal_async": scatter_async, "all_reduce_async": reduce_async,
    "all_to_all_async_generic": all_to_all_generic, "all_to_all_async": all_to_all_async,
    "ring_attention_all_gather_async": ring_gather, "high_bw_all_gather": high_bandwidth,
    "reduce_scatter_minimal_direct": scatter_direct, "intermediate_buffer": scatter_buffer,
    "neighbor_pad_async": neighbor_pad, "slice_reshard_async": slice_reshard,
}  # fmt: skip
MESH_FUNCTIONS: dict[str, Writer] = {
    "mapper": mapper, "composer": composer, "device_tensors": device_tensors, "submesh": submesh
}  # fmt: skip
FAMILIES: dict[str, dict[str, Writer]] = {
    "collectives": COLLECTIVES, "functions": MESH_FUNCTIONS, "placed": {"placed": on_placed},
    "fused": mesh_fused_calls.WRITERS, "experts": mesh_expert_calls.WRITERS,
    "free": mesh_free_calls.COLLECTIVES, "transfers": mesh_free_calls.TRANSFERS, "programs": mesh_free_calls.PROGRAMS,
}  # fmt: skip
WEIGHTS = {
    "collectives": 9,
    "functions": 3,
    "placed": 4,
    "fused": 5,
    "experts": 3,
    "free": 6,
    "transfers": 4,
    "programs": 3,
}
KNOWING = ("collectives", "functions", "placed", "fused", "experts")


def draw(rng: random.Random, mesh: Sequence[int], *, changed: bool, families: Sequence[str], only: str) -> str:
    """One call."""
    family = rng.choices(families, [WEIGHTS[name] for name in families])[0]
    writers: list[Callable[[Draw], str]] = [w for name, w in FAMILIES[family].items() if only in ("", name)]
    writer, seed = rng.choice(writers), rng.random()
    if not changed:
        return writer(Draw(seed, mesh))
    counted = Draw(seed, mesh)
    writer(counted)
    return writer(Draw(seed, mesh, change=rng.randrange(counted.changeable)))


def main() -> None:
    """Write the calls of one seed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--mesh", type=int, nargs=2, default=[2, 4])
    parser.add_argument("--fabric", default="FABRIC_1D")
    parser.add_argument("--change", action="store_true")
    parser.add_argument("--family", nargs="*", default=list(KNOWING))
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    rng = random.Random(options.seed)
    with options.out.open("w") as file:
        for _ in range(options.count):
            text = draw(rng, options.mesh, changed=options.change, families=options.family, only=options.only)
            file.write(json.dumps({"mesh": options.mesh, "fabric": options.fabric, "call": text}) + "\n")


if __name__ == "__main__":
    main()
