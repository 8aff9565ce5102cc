"""Calls of the operations of mixtures of experts that work over a mesh."""

from __future__ import annotations

from mesh_draw import Draw, Writer, call, optional, tensor
from mesh_fused_calls import LINEAR_OR_RING, OTHER_TOPOLOGIES, odd_tensor


def dispatch(d: Draw) -> str:
    n = d.rows * d.columns
    batch, seq, hidden, k = d.choice([1, 2]), d.choice([1, 2, 8]), d.choice([128, 512]), d.choice([2, 4, 8])
    experts = n * d.choice([1, 2])
    axis = d.pick(["0", "1", "None"], ["2", "-1"])
    count = {"0": d.rows, "1": d.columns}.get(axis, n)
    over = {"0": "D((0,None))", "1": "D((None,0))"}.get(axis, "S(0)")
    shapes = [[batch, 1, seq, hidden], [batch, 1, seq, k], [1, 1, experts, n]]
    x = odd_tensor(d, tensor([batch * count, 1, seq, hidden], layout="RM", mapper=over), shapes[0])
    indices = odd_tensor(d, tensor([batch * count, 1, seq, k], "'u16'", "RM", mapper=over), shapes[1])
    mapping = odd_tensor(d, tensor(shapes[2], "'u16'", "RM"), shapes[2])
    options = [
        *optional(d, "num_links", ["1"], ["0", "3"], 0.6), *optional(d, "topology", LINEAR_OR_RING, OTHER_TOPOLOGIES, 0.6), *optional(d, "memory_config", ["DRAM", "L1"], ["3"], 0.5),
        *optional(d, "output_concat_dim", ["1", "2"], ["0", "3"], 0.3), *optional(d, "subdevice_id", ["ttnn.SubDeviceId(0)"], ["3"], 0.2),
    ]  # fmt: skip
    return call(
        f"x={x}; i={indices}; m={mapping}", "ttnn.all_to_all_dispatch", ["x,i,m", f"cluster_axis={axis}", *options]
    )


def combine(d: Draw) -> str:
    n = d.rows * d.columns
    batch, seq, hidden, k = d.choice([1, 2]), d.choice([1, 2, 8]), d.choice([128, 512]), d.choice([2, 4, 8])
    per_chip = d.choice([1, 2])
    axis = d.pick(["0", "1", "None"], ["2", "-1"])
    count = {"0": d.rows, "1": d.columns}.get(axis, n)
    shapes = [[per_chip, batch * count, seq, hidden], [1, batch * count, seq, k], [1, 1, per_chip * n, n]]
    x = odd_tensor(d, tensor([per_chip * n, batch * count, seq, hidden], layout="RM", mapper="S(0)"), shapes[0])
    metadata = odd_tensor(d, tensor([n, batch * count, seq, k], "'u16'", "RM", mapper="S(0)"), shapes[1])
    mapping = odd_tensor(d, tensor(shapes[2], "'u16'", "RM"), shapes[2])
    options = [
        *optional(d, "num_links", ["1"], ["0", "3"], 0.6), *optional(d, "topology", LINEAR_OR_RING, OTHER_TOPOLOGIES, 0.6), *optional(d, "memory_config", ["DRAM", "L1"], ["3"], 0.5),
        *optional(d, "local_reduce", ["False", "True"], ["3"], 0.4), *optional(d, "output_shard_dim", ["1", "2"], ["0", "3"], 0.3),
    ]  # fmt: skip
    return call(
        f"x={x}; t={metadata}; m={mapping}", "ttnn.all_to_all_combine", ["x,t,m", f"cluster_axis={axis}", *options]
    )


def token_remap(d: Draw) -> str:
    n = d.rows * d.columns
    batch, seq, k, experts = d.choice([8, 16]), d.choice([1, 2]), d.choice([2, 8]), n * d.choice([1, 4])
    shapes = [[1, batch, seq, experts], [1, 1, experts, n], [1, batch, seq, k]]
    topk = odd_tensor(d, tensor([n, batch, seq, experts], layout="RM", mapper="S(0)"), shapes[0])
    mapping = odd_tensor(d, tensor(shapes[1], "'u16'", "RM"), shapes[1])
    metadata = odd_tensor(d, tensor([n, batch, seq, k], "'u16'", "RM", mapper="S(0)"), shapes[2])
    options = [
        *optional(d, "memory_config", ["DRAM", "L1"], ["3"]),
        *optional(d, "reduction_size", ["16", "8"], ["0", "7"], 0.4),
    ]
    return call(f"t={topk}; m={mapping}; e={metadata}", "ttnn.moe_expert_token_remap", ["t,m,e", *options])


def routing_remap(d: Draw) -> str:
    axis, n = d.axis_and_size()
    x = odd_tensor(d, tensor([1, 32], d.pick(["'bf16'", "'f32'"]), "RM"), [1, 32])
    arguments = ["x", d.pick(["8"], ["0", "64", "7"]), d.pick([str(n)], ["3", "0"]), d.pick([axis], ["2", "None"])]
    return call(f"x={x}", "ttnn.moe_routing_remap", arguments + optional(d, "memory_config", ["DRAM", "L1"], ["3"]))


def scatter_slices(d: Draw) -> str:
    axis, n = d.axis_and_size()
    cores = "cores(0,0,3,1)"
    given = f"on('w',{cores},(32,64))"
    parts = [odd_tensor(d, tensor([1, 1, 32, 512], memory=d.pick(["L1", given])), [1, 1, 32, 512]) for _ in range(2)]
    several = ",".join([f"a{i}" for i in range(2)] * (n // 2))
    setup = "; ".join(f"a{i}={text}" for i, text in enumerate(parts))
    memory = d.pick([f"on('w',{cores},(32,64))", "DRAM", "L1"], ["None", "3"])
    options = [
        *optional(d, "num_links", ["1"], ["0", "3"], 0.6),
        *optional(d, "topology", LINEAR_OR_RING, OTHER_TOPOLOGIES, 0.6),
    ]
    return call(
        setup,
        "ttnn.experimental.deepseek_moe_reduce_scatter",
        [
            f"[{d.pick([several], ['a0', ''])}]",
            f"output_memory_config={memory}",
            f"dim={d.pick(['3'], ['2', '0'])}",
            f"cluster_axis={d.pick([axis], ['2', 'None'])}",
            *options,
        ],
    )


def fast_reduce(d: Draw) -> str:
    width = d.choice([256, 512])
    x = odd_tensor(d, tensor([d.choice([2, 8]), 1, 32, width], memory=d.pick(["DRAM", "L1"])), [8, 1, 32, width])
    options = optional(d, "output_memory_config", ["DRAM", "L1"], ["3", "on('w',cores(0,0,3,0),(32,64))"])
    return call(
        f"x={x}",
        "ttnn.experimental.deepseek_moe_fast_reduce_nc",
        [
            "x",
            f"dim={d.pick(['0'], ['3', '1', '5'])}",
            f"split_size={d.pick([str(width // 2), '128'], ['100', '0', '7'])}",
            *options,
        ],
    )


def dispatch_metadata(d: Draw) -> str:
    n = d.rows * d.columns
    axis, count = d.axis_and_size()
    batch, hidden, k, experts = d.choice([2, 4]), d.choice([256, 512]), d.choice([2, 4]), 2 * n
    over = "D((0,None))" if axis == "0" else "D((None,0))"
    x = odd_tensor(
        d,
        tensor([batch * count, 1, 1, hidden], layout="RM", memory=d.pick(["L1", "DRAM"]), mapper=over),
        [batch, 1, 1, hidden],
    )
    indices = odd_tensor(d, tensor([batch * count, 1, 1, k], "'u16'", "RM", mapper=over), [batch, 1, 1, k])
    scores = odd_tensor(d, tensor([batch * count, 1, 1, k], layout="RM", mapper=over), [batch, 1, 1, k])
    mapping = odd_tensor(d, tensor([n, experts], "'u16'", "RM"), [n, experts])
    options = [
        *optional(d, "num_links", ["1"], ["0", "3"], 0.6),
        *optional(d, "cross_device_semaphore", ["sem()"], ["3"], 0.4),
        *optional(d, "drain_sync_tilizer_core", ["ttnn.CoreCoord(0,0)", "(0,0)"], ["3"], 0.3),
    ]
    return call(
        f"x={x}; i={indices}; c={scores}; m={mapping}",
        "ttnn.experimental.all_to_all_dispatch_metadata",
        ["x,i,c,m", f"cluster_axis={d.pick([axis], ['2', 'None'])}", *options],
    )


def selective_combine(d: Draw) -> str:
    axis, _ = d.axis_and_size()
    hidden, batch, k, experts = 512, 32, d.choice([2, 4]), 2
    tokens = batch
    x = odd_tensor(d, tensor([experts, tokens, hidden], layout="RM", memory="L1"), [experts, tokens, hidden])
    active = odd_tensor(d, tensor([tokens, 2 * experts + 4], "'u32'", "RM", "L1"), [tokens, 8])
    maps = odd_tensor(d, tensor([experts, tokens], "'u32'", "RM", "L1"), [experts, tokens])
    counts = odd_tensor(d, tensor([1, experts], "'u32'", "RM", "L1"), [1, experts])
    worker = "[ttnn.CoreCoord(x,y) for y in range(2) for x in range(2)]"
    arguments = [
        "x,a,m,c",
        f"hidden_size={d.pick([str(hidden)], ['0', '100'])}",
        f"batch_size={d.pick([str(batch)], ['7'])}",
        "seq_size=1",
        f"select_experts_k={k}",
        f"cluster_axis={d.pick([axis], ['2'])}",
        f"topology={d.pick(LINEAR_OR_RING, OTHER_TOPOLOGIES)}",
        f"num_links={d.pick(['1'], ['0', '3'])}",
        "token_parallel_core_dim=2",
        f"data_parallel_core_dim={d.pick(['2'], ['3', '0'])}",
        f"worker_cores={d.pick([worker], ['[]', 'None'])}",
        f"mux_core_range_set={d.pick(['cores(4,4,5,5)'], ['None'])}",
    ]
    return call(
        f"x={x}; a={active}; m={maps}; c={counts}",
        "ttnn.experimental.selective_reduce_combine",
        arguments + optional(d, "memory_config", ["DRAM"], ["3"]),
    )


WRITERS: dict[str, Writer] = {
    "all_to_all_dispatch": dispatch, "all_to_all_combine": combine, "moe_expert_token_remap": token_remap,
    "moe_routing_remap": routing_remap, "deepseek_moe_reduce_scatter": scatter_slices,
    "deepseek_moe_fast_reduce_nc": fast_reduce, "all_to_all_dispatch_metadata": dispatch_metadata,
    "selective_reduce_combine": selective_combine,
}  # fmt: skip
