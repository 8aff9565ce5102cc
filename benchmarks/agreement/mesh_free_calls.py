"""Calls on a mesh whose arguments are drawn independently of each other, and programs of several steps.

`mesh_calls.py` starts from calls that TT-NN takes. Here nothing ties a dim to a rank, a mapper to a shape or a memory
config to a tensor, as in a program of somebody who does not know the rules.
"""

from __future__ import annotations

import re

from mesh_draw import Draw, Writer, call

DTYPES = ("bf16", "bf16", "bf16", "f32", "bf8", "bf4", "u32", "i32", "u16", "u8")
TOPOLOGIES = ("ttnn.Topology.Linear", "ttnn.Topology.Ring")
LENGTHS = (1, 2, 3, 4, 8, 16, 30, 32, 32, 64, 64, 96, 128, 256)


def any_shape(d: Draw, ranks: tuple[int, ...] = (2, 3, 4, 4, 4, 5)) -> list[int]:
    """A shape of at most a million elements."""
    while True:
        rank = d.choice(ranks)
        shape = [d.choice([1, 1, 2, 4, 8]) for _ in range(rank - 2)] + [d.choice(LENGTHS), d.choice(LENGTHS)]
        size = 1
        for length in shape:
            size *= length
        if size <= 1 << 20:
            return shape


def any_dim(d: Draw, rank: int) -> int:
    """A dim of a tensor, sometimes from the end, seldom one that it does not have."""
    return d.choice([rank, -rank - 1]) if d.chance(0.04) else d.rng.randrange(-rank, rank)


def any_mapper(d: Draw, rank: int) -> str:
    """A mapper in one of TT-NN's spellings."""
    form = d.choice(["R", "S", "S", "D", "D", "config", "whole", "None"])
    if form == "S":
        return f"S({any_dim(d, rank)})"
    if form == "D":
        dims = [d.choice([None, any_dim(d, rank)]) for _ in range(2)]
        return f"D(({dims[0]},{dims[1]}))"
    if form == "config":
        count = 1 if d.chance(0.05) else 2
        placements = [
            d.choice(["ttnn.PlacementReplicate()", f"ttnn.PlacementShard({any_dim(d, rank)})"]) for _ in range(count)
        ]
        over = d.choice([f"({d.columns},{d.rows})", "(1,2)", "(2,2)"])
        shape = f",ttnn.MeshShape{over}" if d.chance(0.15) else ""
        return f"ttnn.create_mesh_mapper(dev,ttnn.MeshMapperConfig([{','.join(placements)}]{shape}))"
    if form == "whole":
        return d.choice([f"ttnn.shard_tensor_to_mesh_mapper(dev,{any_dim(d, rank)})", "ttnn.replicate_tensor_to_mesh_mapper(dev)"])  # fmt: skip
    return form


def fit_shape(d: Draw, shape: list[int], mapper: str) -> list[int]:
    """Mostly a shape that the mapper splits evenly: this one on every chip."""
    dims = [int(text) for text in re.findall(r"(?<=[(,])-?\d+(?=[),])", mapper.partition("MeshShape")[0])]
    counts = [d.rows * d.columns] if len(dims) == 1 else [d.rows, d.columns]
    shape = list(shape)
    if d.chance(0.8):
        for dim, count in zip(dims, counts, strict=False):
            if -len(shape) <= dim < len(shape):
                shape[dim] *= count
    return shape


def any_memory(d: Draw) -> str:
    """Interleaved, or the kind of shards."""
    return d.choice(["DRAM", "DRAM", "DRAM", "L1", "L1", "'h'", "'w'", "'b'"])


def write_shape(shape: list[int]) -> str:
    return f"({','.join(map(str, shape))},)"


def any_tensor(d: Draw, shape: list[int] | None = None) -> tuple[str, int]:
    """A tensor and its rank: on the mesh, on the host, on a submesh or on one chip."""
    shape = any_shape(d) if shape is None else shape
    dtype, layout, mapper = d.choice(DTYPES), d.choice(["TILE", "TILE", "RM"]), any_mapper(d, len(shape))
    if dtype in ("bf8", "bf4"):
        layout = "TILE"
    shape = fit_shape(d, shape, mapper)
    place = d.rng.random()
    if place < 0.05:
        return f"host({write_shape(shape)},'{dtype}',{layout},{mapper})", len(shape)
    memory = any_memory(d)
    if memory.startswith("'") and d.chance(0.9):
        shape, mapper = [*shape[:-2], *(-(-length // 32) * 32 for length in shape[-2:])], "R"
    if dtype == "u16" and mapper.startswith("ttnn."):
        mapper = "None"
    text = f"mk({write_shape(shape)},'{dtype}',{layout},{memory},{mapper})"
    if place > 0.97:
        text = f"ttnn.get_device_tensors({text})[{d.choice([0, -1])}]"
    return text, len(shape)


def any_options(d: Draw, *names: str) -> list[str]:
    """Some of the keywords of collectives."""
    values = {
        "cluster_axis": (["None", "0", "1"], 0.75), "num_links": (["1", "1", "2", "4", "None"], 0.3),
        "topology": ([*TOPOLOGIES, "None"], 0.4), "memory_config": (["DRAM", "L1", "None", "shard('w',(32,256))", "shard('h',(256,32))"], 0.3),
        "subdevice_id": (["None", "ttnn.SubDeviceId(0)"], 0.1), "barrier_semaphore": (["None", "sem()"], 0.4),
        "chunks_per_sync": (["1", "10", "None"], 0.15), "num_workers_per_link": (["1", "2", "4", "None"], 0.15),
        "num_buffers_per_channel": (["1", "2", "None"], 0.15), "dtype": (["ttnn.bfloat16", "ttnn.float32", "None"], 0.1),
        "use_l1_small_for_semaphores": (["True", "False"], 0.1),
    }  # fmt: skip
    return [f"{name}={d.choice(values[name][0])}" for name in names if d.chance(values[name][1])]


def any_coordinate(d: Draw) -> str:
    """A coordinate, seldom outside the mesh or of another rank."""
    if d.chance(0.05):
        return d.choice([f"C({d.rows},0)", "C(1)", "C(0,0,0)"])
    return f"C({d.rng.randrange(d.rows)},{d.rng.randrange(d.columns)})"


COMMON = ("cluster_axis", "subdevice_id", "memory_config", "num_links", "topology")
TUNING = ("chunks_per_sync", "num_workers_per_link", "num_buffers_per_channel")


def collective(d: Draw) -> str:
    """Any collective, in any spelling."""
    x, rank = any_tensor(d)
    dim = any_dim(d, rank)
    axis_first = ["mesh_device=dev"] if d.chance(0.5) else []
    plain = {
        "all_gather": ([d.choice([f"dim={dim}", str(dim)])], (*COMMON, *TUNING)),
        "reduce_scatter": ([d.choice([f"dim={dim}", str(dim)])], (*COMMON, *TUNING)),
        "all_reduce": ([], (*COMMON, "dtype")),
        "broadcast": ([f"sender_coord={any_coordinate(d)}"], COMMON),
        "all_broadcast": ([], COMMON),
        "mesh_partition": ([d.choice([f"dim={dim}", str(dim)])], ("cluster_axis", "memory_config")),
        "point_to_point": ([any_coordinate(d), any_coordinate(d)], ("topology",)),
        "experimental.all_gather_async": (
            [f"dim={dim}", f"multi_device_global_semaphore={semaphores(d, 2)}"],
            ("cluster_axis", "num_links", "topology", "memory_config", "barrier_semaphore", *TUNING),
        ),
        "experimental.reduce_scatter_minimal_async": (
            ["persistent_output_buffers=None", f"dim={dim}", f"multi_device_global_semaphore={semaphores(d, 3)}"],
            ("cluster_axis", "num_links", "topology", "memory_config", "barrier_semaphore", *TUNING),
        ),
        "experimental.all_reduce_async": (
            [f"cluster_axis={d.choice(['0', '1', 'None'])}", *axis_first, "math_op=ttnn.ReduceType.Sum"],
            ("num_links", "topology", "memory_config"),
        ),
        "experimental.all_to_all_async_generic": (
            [f"in_dim={dim}", f"out_dim={any_dim(d, rank)}"],
            ("cluster_axis", "num_links", "topology", "memory_config"),
        ),
        "experimental.all_broadcast_async": ([], ("cluster_axis", "num_links", "topology", "memory_config")),
    }
    weights = [4, 4, 4, 3, 3, 3, 3, 2, 2, 1, 1, 0]
    name = d.rng.choices(list(plain), weights)[0]
    arguments, options = plain[name]
    return call(f"x={x}", f"ttnn.{name}", ["x", *arguments, *any_options(d, *options)])


def semaphores(d: Draw, count: int) -> str:
    """A list of semaphores, seldom one too few."""
    return "[" + ",".join(["sem()"] * (count - d.chance(0.05))) + "]"


def transfer(d: Draw) -> str:
    """Functions that bring tensors to the mesh, back, or from one distribution to another."""
    shape = any_shape(d)
    rank, n = len(shape), d.rows * d.columns
    x, _ = any_tensor(d, shape)
    values = f"torch.zeros({write_shape(shape)})"
    mapper = any_mapper(d, rank)
    composer = d.choice(
        [f"ttnn.ConcatMeshToTensor(dev,dim={any_dim(d, rank)})", f"ttnn.ConcatMesh2dToTensor(dev,mesh_shape={d.choice([(d.rows, d.columns), (d.columns, d.rows), (1, 2)])},dims=({any_dim(d, rank)},{any_dim(d, rank)}))",
         f"ttnn.concat_mesh_to_tensor_composer(dev,{any_dim(d, rank)})", f"ttnn.create_mesh_composer(dev,ttnn.MeshComposerConfig([{any_dim(d, rank)},{any_dim(d, rank)}]))",
         f"ttnn.create_mesh_composer(dev,ttnn.MeshComposerConfig([{any_dim(d, rank)}],ttnn.MeshShape({n})))"]
    )  # fmt: skip
    real_mapper = mapper if mapper.startswith("ttnn.") else f"ttnn.shard_tensor_to_mesh_mapper(dev,{any_dim(d, rank)})"
    real_composer = (
        composer if composer.startswith("ttnn.c") else f"ttnn.concat_mesh_to_tensor_composer(dev,{any_dim(d, rank)})"
    )
    config = any_memory(d)
    memory = f"shard({config},{write_shape(shape)})" if config.startswith("'") else config
    dtype = d.choice(["ttnn.bfloat16", "ttnn.float32", "ttnn.bfloat8_b", "ttnn.uint32", "ttnn.int32"])
    layout = d.choice(["TILE", "RM", "TILE"])
    return d.choice(
        [f"x={x} => tuple(ttnn.to_torch(x,mesh_composer={composer}).shape)", f"x={x} => tuple(ttnn.to_torch(x).shape)",
         f"x=host({write_shape(shape)},'bf16',{layout}) => ttnn.distribute_tensor(x,{real_mapper})", f"x=host({write_shape(shape)},'f32',{layout}) => ttnn.distribute_tensor(x,{real_mapper},dev)",
         f"x={x} => ttnn.aggregate_tensor(x,{real_composer})", f"x=ttnn.from_device({x}) => ttnn.aggregate_tensor(x,{real_composer})",
         f"=> ttnn.from_torch({values},dtype={dtype},layout={layout},device=dev,mesh_mapper={mapper},memory_config={memory})", f"=> ttnn.from_torch({values},dtype={dtype},layout={layout},mesh_mapper={mapper})",
         f"=> ttnn.as_tensor({values},dtype={dtype},layout={layout},device=dev,mesh_mapper={mapper},memory_config={d.choice(['DRAM', 'L1', 'None'])})",
         f"x=ttnn.from_torch({values},dtype={dtype},layout={layout},mesh_mapper={mapper}) => ttnn.to_device(x,dev{d.choice([f',memory_config={memory}', ''])})",
         f"x={x} => ttnn.from_device(x)", f"x={x} => ttnn.get_device_tensors(x)", f"x={x} => ttnn.combine_device_tensors(ttnn.get_device_tensors(x){d.choice(['', '[:2]', '[1:]'])})",
         f"x=host({write_shape(shape)}) => ttnn.from_host_shards([x]*{d.choice([n, n, 2, n + 1])},dev.shape)", f"x={x} => ttnn.get_device_tensors(ttnn.from_device(x))",
         f"x={x}; h=ttnn.from_device(x) => ttnn.copy_host_to_device_tensor(h,x)", f"x={x}; h=host({write_shape(shape)},'bf16',{layout},{mapper}) => ttnn.copy_host_to_device_tensor(h,x)",
         f"x={x}; h=ttnn.allocate_tensor_on_host(x.spec,dev) => ttnn.copy_device_to_host_tensor(x,h)", f"x={x} => ttnn.allocate_tensor_on_device(x.spec,dev)",
         f"x={x} => ttnn.to_layout(x,{layout})", f"x={x} => ttnn.typecast(x,{dtype})", f"x={x} => ttnn.to_memory_config(x,{memory})", f"x={x} => ttnn.clone(x)",
         f"=> ttnn.{d.choice(['zeros', 'ones', 'empty', 'rand'])}({write_shape(shape)},dtype={dtype},layout={layout},device=dev)", f"=> ttnn.full({write_shape(shape)},1.5,dtype={dtype},layout={layout},device=dev,memory_config={d.choice(['DRAM', 'L1'])})",
         f"x={x} => ttnn.{d.choice(['zeros_like', 'ones_like', 'empty_like'])}(x)", f"x={x} => str(x.tensor_topology())[:50]", f"x={x}; y={x} => ttnn.copy(x,y)"]
    )  # fmt: skip


def submesh(d: Draw) -> str:
    """Submeshes, tensors on them, and operations with tensors of two meshes."""
    shape = d.choice([(1, d.columns), (d.rows, 1), (1, 1), (1, 2), (2, 2), (d.rows, d.columns), (d.columns, d.rows), (1, d.rows * d.columns)])  # fmt: skip
    inside = [max(1, most - length + 1) for most, length in zip((d.rows, d.columns), shape, strict=True)]
    limits = (d.rows, d.columns) if d.chance(0.1) else inside
    offset = d.choice(["", f",ttnn.MeshCoordinate({d.rng.randrange(limits[0])},{d.rng.randrange(limits[1])})"])
    make = f"m=dev.create_submesh(ttnn.MeshShape{shape}{offset})"
    local = any_shape(d, (2, 3, 4))
    rank = len(local)
    over = d.rng.randrange(-rank, rank)
    mapper = d.choice(["ttnn.ReplicateTensorToMesh(m)", f"ttnn.ShardTensorToMesh(m,dim={over})", "None"])
    if "Shard" in mapper and d.chance(0.8):
        local[over] *= shape[0] * shape[1]
    x = f"ttnn.from_torch(torch.zeros({write_shape(local)}),dtype={d.choice(['ttnn.bfloat16', 'ttnn.float32'])},layout={d.choice(['TILE', 'RM'])},device=m,mesh_mapper={mapper})"
    dim = any_dim(d, rank)
    asked = d.choice(
        ["x", "ttnn.add(x,x)", f"ttnn.all_gather(x,dim={dim})", f"ttnn.all_gather(x,dim={dim},cluster_axis=1)", f"ttnn.reduce_scatter(x,dim={dim},cluster_axis=1)", "ttnn.all_reduce(x)", "ttnn.all_reduce(x,cluster_axis=1)",
         f"ttnn.mesh_partition(x,dim={dim})", "ttnn.all_broadcast(x)", "ttnn.broadcast(x,sender_coord=C(0,0),cluster_axis=1)", "ttnn.point_to_point(x,C(0,0),C(0,1))", f"ttnn.add(x,mk({write_shape(local)}))",
         "ttnn.get_device_tensors(x)", f"tuple(ttnn.to_torch(x,mesh_composer=ttnn.ConcatMeshToTensor(m,dim={dim})).shape)", f"ttnn.matmul(x,mk({write_shape(local)}))", "tuple(m.shape)", "m.get_num_devices()", "ttnn.to_layout(x,RM)",
         "ttnn.to_device(ttnn.from_device(x),dev)"]
    )  # fmt: skip
    if d.chance(0.2):
        return f"=> {d.choice(['dev.create_submeshes', 'dev.create_submesh'])}(ttnn.MeshShape{shape})"
    return f"{make}; x={x} => {asked}"


def step(d: Draw, values: list[str], ranks: dict[str, int]) -> tuple[str, int | None]:
    """One step of a program: an operation on a value that is there, and the rank of its result."""
    x, y = d.choice(values), d.choice(values)
    rank = ranks[x]
    dim = d.rng.randrange(-rank, rank)
    axis = d.choice(["", ",cluster_axis=0", ",cluster_axis=1", ",cluster_axis=1"])
    memory = d.choice(["", "", ",memory_config=L1", ",memory_config=DRAM"])
    options: list[tuple[str, int | None]] = [
        (f"ttnn.all_gather({x},dim={dim}{axis}{memory})", rank), (f"ttnn.reduce_scatter({x},dim={dim}{axis}{memory})", rank), (f"ttnn.all_reduce({x}{axis}{memory})", rank), (f"ttnn.mesh_partition({x},dim={dim}{axis})", rank),
        (f"ttnn.broadcast({x},sender_coord=C(0,0){axis or ',cluster_axis=1'})", rank), (f"ttnn.point_to_point({x},C(0,0),C(0,1))", rank), (f"ttnn.all_broadcast({x}{axis})[0]", rank),
        (f"ttnn.add({x},{y}{memory})", max(rank, ranks[y])), (f"ttnn.multiply({x},{y})", max(rank, ranks[y])), (f"ttnn.add({x},2.0)", rank), (f"ttnn.gelu({x})", rank), (f"ttnn.softmax({x},dim=-1)", rank), (f"ttnn.rms_norm({x})", rank),
        (f"ttnn.matmul({x},ttnn.transpose({y},-2,-1))", max(rank, ranks[y])), (f"ttnn.sum({x},dim={dim},keepdim=True)", rank), (f"ttnn.transpose({x},-2,-1)", rank), (f"ttnn.to_layout({x},{d.choice(['RM', 'TILE'])})", rank),
        (f"ttnn.typecast({x},{d.choice(['ttnn.bfloat16', 'ttnn.float32', 'ttnn.bfloat8_b'])})", rank), (f"ttnn.to_memory_config({x},{d.choice(['L1', 'DRAM'])})", rank), (f"ttnn.concat([{x},{y}],dim={dim})", rank),
        (f"ttnn.permute({x},{tuple(d.rng.sample(range(rank), rank))})", rank), (f"ttnn.unsqueeze_to_4D({x})", 4), (f"ttnn.clone({x})", rank), (f"ttnn.linear({x},{y},transpose_b=True)", max(rank, ranks[y])),
        (f"ttnn.repeat({x},{tuple([1] * (rank - 1) + [2])})", rank), (f"ttnn.mean({x},dim={dim},keepdim=True)", rank), (f"ttnn.combine_device_tensors(ttnn.get_device_tensors({x}))", rank), (f"ttnn.reallocate({x})", rank),
        (f"ttnn.to_device(ttnn.from_device({x}),dev)", rank), (f"ttnn.deallocate({x})", None),
    ]  # fmt: skip
    if x not in ("a", "b") or len(values) < 3:  # the results are read behind the last step
        options.pop()
    return d.choice(options)


def program(d: Draw) -> str:
    """A program of three to eight steps on placed tensors; its results are those of every step."""
    shape = any_shape(d, (2, 3, 4, 4, 4))
    setup, ranks = [], {}
    for name in ("a", "b"):
        dtype = d.choice(["bf16", "bf16", "bf16", "f32", "bf8"])
        layout = "TILE" if dtype == "bf8" else d.choice(["TILE", "TILE", "TILE", "RM"])
        mapper = d.choice(["R", "R", f"S({any_dim(d, len(shape))})", "D((None,-1))", "D((0,-1))", "D((-1,None))"])
        whole = fit_shape(d, shape, mapper)
        setup.append(f"{name}=mk({write_shape(whole)},'{dtype}',{layout},{d.choice(['DRAM', 'DRAM', 'L1'])},{mapper})")
        ranks[name] = len(shape)
    values, steps = ["a", "b"], []
    for i in range(d.rng.randrange(3, 9)):
        text, rank = step(d, values, ranks)
        if rank is None:
            freed = text[len("ttnn.deallocate(") : -1]
            values.remove(freed)
            steps.append(text)
            continue
        name = f"v{i}"
        values.append(name)
        ranks[name] = rank
        steps.append(f"({name}:={text})")
        if text.startswith("ttnn.reallocate("):
            values.remove(text[len("ttnn.reallocate(") : -1])
    return f"{'; '.join(setup)} => [{','.join(steps)}]"


COLLECTIVES: dict[str, Writer] = {"collective": collective}
TRANSFERS: dict[str, Writer] = {"transfer": transfer, "submesh": submesh}
PROGRAMS: dict[str, Writer] = {"program": program}
