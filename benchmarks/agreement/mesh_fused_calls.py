"""Calls of collectives that are fused with a matmul, a norm, heads or attention, and of sockets."""

from __future__ import annotations

from mesh_draw import Draw, Writer, call, optional, tensor

LINEAR_OR_RING = ["ttnn.Topology.Linear", "ttnn.Topology.Ring"]
OTHER_TOPOLOGIES = ["None", "ttnn.Topology.Mesh"]
KERNEL = (
    "ttnn.init_device_compute_kernel_config(dev.arch(),math_fidelity=ttnn.MathFidelity.HiFi2,fp32_dest_acc_en=True)"
)


def matmul_config(grid: tuple[int, int], block: int, m: int, n: int) -> str:
    """The program config of a matmul that multicasts in both directions."""
    return f"ttnn.MatmulMultiCoreReuseMultiCastProgramConfig(compute_with_storage_grid_size={grid},in0_block_w={block},out_subblock_h=1,out_subblock_w=1,per_core_M={m},per_core_N={n},transpose_mcast=False,fused_activation=None,fuse_batch=False)"


def minimal_config(x: int, y: int, m: int, k: int, n: int) -> str:
    """The config of a minimal matmul."""
    return f"ttnn.MinimalMatmulConfig(M_block_size={m},K_block_size={k},N_block_size={n},subblock_h=1,subblock_w=1,compute_with_storage_grid_size=ttnn.CoreCoord({x},{y}))"


def odd_tensor(d: Draw, text: str, shape: list[int]) -> str:
    """The tensor, or one that is wrong in format, layout, rank, length or place."""
    longer = [*shape[:-1], shape[-1] + 32]
    odd = [tensor(shape, repr(kind)) for kind in ("f32", "bf8", "u32")] + [
        tensor(shape, layout="RM"), tensor(shape, memory="L1"), tensor(longer), tensor(shape[1:]), f"host(({','.join(map(str, shape))},))", "None",
    ]  # fmt: skip
    return d.pick([text], odd)


def gather_matmul(d: Draw) -> str:
    n = d.rows * d.columns
    m, k, width = d.choice([64, 256]), 64 * n, d.choice([256, 512])
    x = odd_tensor(
        d,
        tensor([1, 1, m, k], d.pick(["'bf16'", "'bf8'"]), memory=d.pick(["DRAM", "L1"]), mapper="S(3)"),
        [1, 1, m, k // n],
    )
    w = odd_tensor(d, tensor([1, 1, k, width]), [1, 1, k, width])
    buffer = d.pick(["None", tensor([1, 1, m, k])], [tensor([1, 1, m, 2 * k]), tensor([1, 1, m, k], "'f32'"), "x"])
    config = d.pick(
        [matmul_config((8, 4), 1, max(1, m // 128), max(1, width // 256))],
        ["None", matmul_config((8, 8), 1, 1, 1), matmul_config((2, 2), 3, 1, 1)],
    )
    options = [
        *optional(d, "num_links", ["1"], ["0", "3"], 0.6), *optional(d, "memory_config_ag", ["DRAM"], ["L1", "3"]), *optional(d, "memory_config_mm", ["DRAM", "L1"], ["3"]),
        *optional(d, "barrier_semaphore", ["sem()"], ["None", "3"], 0.7), *optional(d, "topology", LINEAR_OR_RING, OTHER_TOPOLOGIES, 0.6), *optional(d, "bias", [tensor([1, 1, 32, width])], ["3"], 0.2), *optional(d, "dtype", ["ttnn.bfloat16", "ttnn.bfloat8_b"], ["3"], 0.2),
    ]  # fmt: skip
    offset = d.pick(["(0,4)", "(0,6)"], ["(0,0)", "(0,20)", "None", "3"])
    arguments = [
        "x",
        "w",
        f"persistent_output_buffer={buffer}",
        f"dim={d.pick(['3'], ['2', '0', '5'])}",
        "multi_device_global_semaphore=s",
        f"all_gather_core_grid_offset={offset}",
        f"program_config={config}",
    ]
    return call(f"x={x}; w={w}; s={d.semaphores(2)}", "ttnn.experimental.all_gather_matmul_async", arguments + options)


def matmul_scatter(d: Draw) -> str:
    n = d.rows * d.columns
    m, k, width = 256, 64 * n, 256 * d.choice([1, 2])
    x = odd_tensor(d, tensor([1, 1, m, k], mapper="S(3)"), [1, 1, m, k // n])
    w = odd_tensor(d, tensor([1, 1, k, width], mapper="S(2)"), [1, 1, k // n, width])
    buffers = [
        d.pick([tensor([1, 1, m, width])], [tensor([1, 1, m, 2 * width]), "None"]),
        d.pick([tensor([1, 1, m, width // n])], [tensor([1, 1, m, width]), "None"]),
    ]
    config = d.pick([matmul_config((8, 4), 1, 2, width // 256)], ["None", matmul_config((8, 8), 1, 1, 1)])
    options = [
        *optional(d, "num_links", ["1"], ["0", "3"], 0.6), *optional(d, "memory_config_rs", ["DRAM"], ["L1", "3"], 0.6), *optional(d, "intermediate_memory_config_rs", ["DRAM"], ["3"], 0.4), *optional(d, "memory_config_mm", ["DRAM", "L1"], ["3"]),
        *optional(d, "barrier_semaphore", ["sem()"], ["None", "3"], 0.4), *optional(d, "topology", LINEAR_OR_RING, OTHER_TOPOLOGIES, 0.6), *optional(d, "bias", [tensor([1, 1, 32, width])], ["3"], 0.2),
    ]  # fmt: skip
    arguments = [
        "x",
        "w",
        f"persistent_intermediate_buffer={buffers[0]}",
        f"persistent_output_buffer={buffers[1]}",
        f"dim={d.pick(['3'], ['2', '5'])}",
        "multi_device_global_semaphore=s",
        f"reduce_scatter_core_grid_offset={d.pick(['(0,4)', '(0,6)'], ['(0,0)', '(0,20)', '3'])}",
        f"program_config={config}",
    ]
    return call(
        f"x={x}; w={w}; s={d.semaphores(3)}", "ttnn.experimental.matmul_reduce_scatter_async", arguments + options
    )


def axis_mapper(axis: str, dim: int) -> str:
    return f"D((None,{dim}))" if axis == "1" else f"D(({dim},None))"


def minimal_gather_matmul(d: Draw) -> str:
    axis, n = d.axis_and_size()
    m, k, width = d.choice([64, 128]), 128 * n, d.choice([256, 512])
    x = odd_tensor(d, tensor([1, 1, m, k], mapper=axis_mapper(axis, 3)), [1, 1, m, k // n])
    w = odd_tensor(d, tensor([1, 1, k, width]), [1, 1, k, width])
    buffer = d.pick([tensor([1, 1, m, k]), "None"], [tensor([1, 1, m, 2 * k]), tensor([1, 1, m, k], "'f32'")])
    options = [
        *optional(d, "bias_tensor", [tensor([1, 1, 1, width])], [tensor([1, 1, 1, 64]), "3"]), *optional(d, "num_links", ["1"], ["0", "3"], 0.6), *optional(d, "topology", LINEAR_OR_RING, OTHER_TOPOLOGIES, 0.6),
        *optional(d, "barrier_semaphore", ["sem()"], ["3"], 0.4), *optional(d, "config", [minimal_config(4, 4, 2, 2, 2)], [minimal_config(8, 20, 2, 2, 2), minimal_config(4, 4, 0, 2, 2)], 0.95),
        *optional(d, "memory_config", ["DRAM", "L1"], ["3"]), *optional(d, "dtype", ["ttnn.bfloat16"], ["ttnn.uint32", "3"]), *optional(d, "chunks", ["1", "2"], ["3", "0"], 0.2), *optional(d, "force_transpose", ["True", "False"], [], 0.3),
    ]  # fmt: skip
    arguments = [
        "x",
        "w",
        "multi_device_global_semaphore=s",
        f"num_workers_per_link={d.pick(['4'], ['1', '0', '3'])}",
        f"persistent_output_buffer={buffer}",
        f"cluster_axis={d.pick([axis], ['2', 'None'])}",
        f"compute_kernel_config={KERNEL}",
    ]
    return call(
        f"x={x}; w={w}; s={d.semaphores(2)}", "ttnn.experimental.all_gather_minimal_matmul_async", arguments + options
    )


def strided_gather(d: Draw) -> str:
    axis, n = d.axis_and_size()
    m, k = d.choice([64, 256]), 128 * n
    x = odd_tensor(d, tensor([1, 1, m, k], mapper=axis_mapper(axis, 3)), [1, 1, m, k // n])
    buffer = d.pick([tensor([1, 1, m, k])], [tensor([1, 1, m, 2 * k]), tensor([1, 1, m, k], "'f32'"), "None"])
    options = [
        *optional(d, "num_links", ["1"], ["0", "3"]), *optional(d, "memory_config", ["DRAM"], ["L1", "3"]), *optional(d, "topology", LINEAR_OR_RING, OTHER_TOPOLOGIES, 0.6),
        *optional(d, "mm_cores_y", ["1", "2"], ["0", "100"], 0.7), *optional(d, "mm_block_ht", ["1", "2"], ["0", "7"], 0.7), *optional(d, "mm_block_wt", ["1", "2"], ["0", "7"], 0.7),
    ]  # fmt: skip
    return call(
        f"x={x}; y={buffer}; s={d.semaphores(2)}",
        "ttnn.experimental.strided_all_gather_async",
        [
            "x",
            "persistent_output_buffer=y",
            f"dim={d.pick(['3'], ['2', '0', '5'])}",
            "multi_device_global_semaphore=s",
            f"cluster_axis={d.pick([axis], ['2', 'None'])}",
            *options,
        ],
    )


def strided_gather_matmul(d: Draw) -> str:
    axis, n = d.axis_and_size()
    m, k, width = d.choice([64, 256]), 128 * n, d.choice([256, 512])
    x = odd_tensor(d, tensor([1, 1, m, k], mapper=axis_mapper(axis, 3)), [1, 1, m, k // n])
    w = odd_tensor(d, tensor([1, 1, k, width]), [1, 1, k, width])
    buffer = d.pick([tensor([1, 1, m, k])], [tensor([1, 1, m, 2 * k]), "None"])
    options = [
        *optional(d, "num_links", ["1"], ["0", "3"]), *optional(d, "memory_config_ag", ["DRAM"], ["L1", "3"]), *optional(d, "memory_config_mm", ["DRAM"], ["L1", "3"]), *optional(d, "topology", LINEAR_OR_RING, OTHER_TOPOLOGIES, 0.6),
        *optional(d, "bias", [tensor([1, 1, 1, width])], [tensor([1, 1, 1, 64]), "3"]), *optional(d, "num_workers_per_link", ["1"], ["0"], 0.4), *optional(d, "read_local_slice_from_input", ["True", "False"], [], 0.3),
    ]  # fmt: skip
    config = d.pick([minimal_config(4, 4, 2, 2, 2)], [minimal_config(8, 20, 2, 2, 2), "None"])
    arguments = [
        "x",
        "w",
        "persistent_output_buffer=y",
        f"dim={d.pick(['3'], ['2', '5'])}",
        "multi_device_global_semaphore=s",
        f"strided_all_gather_core_grid_offset={d.pick(['(0,6)', '(0,5)'], ['(0,0)', '(0,20)', '3'])}",
        f"config={config}",
        f"cluster_axis={d.pick([axis], ['2', 'None'])}",
        f"compute_kernel_config={KERNEL}",
    ]
    return call(
        f"x={x}; w={w}; y={buffer}; s={d.semaphores(3)}",
        "ttnn.experimental.strided_all_gather_minimal_matmul_async",
        arguments + options,
    )


def strided_scatter(d: Draw) -> str:
    axis, n = d.axis_and_size()
    m, width = d.choice([64, 256]), 128 * n
    x = odd_tensor(d, tensor([1, 1, m, width]), [1, 1, m, width])
    options = [
        *optional(d, "barrier_semaphore", ["sem()"], ["3", "None"], 0.7), *optional(d, "num_links", ["1"], ["0", "3"]), *optional(d, "memory_config", ["DRAM"], ["L1", "3"]), *optional(d, "topology", LINEAR_OR_RING, OTHER_TOPOLOGIES, 0.6),
        *optional(d, "mm_cores_y", ["1", "2"], ["0", "100"], 0.7), *optional(d, "mm_N_full_block_wt", [str(width // 32)], ["0", "7"], 0.7), *optional(d, "chunk_width_in_mm_blocks", ["1", "2"], ["0"], 0.7), *optional(d, "persistent_output_buffers", ["None"], ["[x]", "[x,x]"], 0.2),
    ]  # fmt: skip
    return call(
        f"x={x}; s={d.semaphores(3)}",
        "ttnn.experimental.strided_reduce_scatter_async",
        [
            "x",
            f"dim={d.pick(['3'], ['2', '5'])}",
            "multi_device_global_semaphore=s",
            f"mm_block_ht={d.pick(['1', '2'], ['0'])}",
            f"mm_block_wt={d.pick(['1', '2'], ['0'])}",
            f"cluster_axis={d.pick([axis], ['2', 'None'])}",
            *options,
        ],
    )


def minimal_matmul_scatter(d: Draw) -> str:
    axis, n = d.axis_and_size()
    m, k, width = d.choice([64, 256]), 128, 128 * n
    x = odd_tensor(d, tensor([1, 1, m, k]), [1, 1, m, k])
    w = odd_tensor(d, tensor([1, 1, k, width]), [1, 1, k, width])
    options = [
        *optional(d, "num_links", ["1"], ["0", "3"]), *optional(d, "memory_config_mm", ["DRAM"], ["L1", "3"]), *optional(d, "rs_output_mem_config", ["DRAM"], ["L1", "3"]), *optional(d, "topology", LINEAR_OR_RING, OTHER_TOPOLOGIES, 0.6),
        *optional(d, "barrier_semaphore", ["sem()"], ["3", "None"], 0.7), *optional(d, "bias", [tensor([1, 1, 1, width])], [tensor([1, 1, 1, 64]), "3"]), *optional(d, "chunk_width_in_mm_blocks", ["1"], ["0"], 0.5),
    ]  # fmt: skip
    config = d.pick([minimal_config(4, 4, 2, 2, 2)], [minimal_config(8, 20, 2, 2, 2), "None"])
    offset = d.pick(
        ["ttnn.CoreCoord(0,6)", "ttnn.CoreCoord(0,5)"], ["ttnn.CoreCoord(0,0)", "(0,6)", "ttnn.CoreCoord(0,20)"]
    )
    arguments = [
        "x",
        "w",
        d.pick(["3"], ["2", "5"]),
        "s",
        offset,
        f"compute_kernel_config={KERNEL}",
        f"config={config}",
        f"cluster_axis={d.pick([axis], ['2', 'None'])}",
    ]
    return call(
        f"x={x}; w={w}; s={d.semaphores(3)}",
        "ttnn.experimental.minimal_matmul_strided_reduce_scatter_async",
        arguments + options,
    )


def buffered_reduce(d: Draw) -> str:
    axis, n = d.axis_and_size()
    cores, width = d.choice([4, 8]), d.choice([32, 64])
    whole = cores * width
    given = f"on('w',cores(0,0,{cores - 1},0),(32,{width}))"
    x = odd_tensor(d, tensor([1, 1, 32, whole], d.pick(["'bf16'", "'bf8'"]), memory=given), [1, 1, 32, whole])
    y = odd_tensor(
        d, tensor([1, 1, 32, whole * n], memory=f"on('w',cores(0,0,{cores - 1},0),(32,{width * n}))"), [1, 1, 32, whole]
    )
    options = [
        *optional(d, "dtype", ["ttnn.bfloat16"], ["ttnn.uint32", "3"]),
        *optional(d, "memory_config", [given], ["DRAM", "L1", "3"], 0.8),
        *optional(d, "topology", LINEAR_OR_RING, OTHER_TOPOLOGIES, 0.6),
        *optional(d, "num_links", ["1"], ["0", "3"], 0.6),
    ]
    semaphore = d.pick(["sem()"], ["[sem()]", "None"])
    return call(
        f"x={x}; y={y}; s={semaphore}",
        "ttnn.experimental.all_reduce_async",
        [
            "x",
            "y",
            f"cluster_axis={d.pick([axis], ['2', '-1'])}",
            "mesh_device=dev",
            "multi_device_global_semaphore=s",
            *options,
        ],
    )


def reduce_heads(d: Draw) -> str:
    axis, n = d.axis_and_size()
    heads, dim, cores = 8, d.choice([64, 128]), 10
    width = dim * (heads + 2)
    shard = width // cores
    given = f"on('w',cores(0,0,4,1),(32,{shard}))"
    x = odd_tensor(d, tensor([1, 1, 32, width], d.pick(["'bf16'", "'bf8'"]), memory=given), [1, 1, 32, width])
    y = odd_tensor(
        d, tensor([1, 1, 32, width * n], memory=f"on('w',cores(0,0,4,1),(32,{shard * n}))"), [1, 1, 32, width]
    )
    offsets = odd_tensor(d, tensor([n, 1], "'i32'", mapper=axis_mapper(axis, 0)), [1, 1])
    final = f"on('h',cores(0,0,7,3),(32,{dim}))"
    options = [
        *optional(d, "dtype", ["ttnn.bfloat16"], ["ttnn.uint32", "3"], 0.6),
        *optional(d, "topology", LINEAR_OR_RING, OTHER_TOPOLOGIES, 0.6),
        *optional(d, "num_links", ["1"], ["0", "3"], 0.6),
        *optional(d, "slice_size", ["8"], ["0", "64"], 0.8),
        *optional(d, "num_kv_heads", ["1"], ["3", "0"], 0.9),
    ]
    arguments = [
        "x",
        "y",
        "batch_offset=b",
        f"cluster_axis={d.pick([axis], ['2', 'None'])}",
        "mesh_device=dev",
        "multi_device_global_semaphore=s",
        f"num_heads={d.pick([str(heads)], ['7', '0'])}",
        f"memory_config={d.pick([given], ['DRAM', 'None'])}",
        f"final_memory_config={d.pick([final], ['DRAM', 'None'])}",
    ]
    return call(
        f"x={x}; y={y}; b={offsets}; s={d.pick(['sem()'], ['[sem()]', 'None'])}",
        "ttnn.experimental.all_reduce_create_qkv_heads",
        arguments + options,
    )


def llama_scatter(d: Draw) -> str:
    n = d.columns
    cores, shard = d.choice([8, 16]), 32 * d.choice([1, 2])
    width = cores * shard * n // 4 if d.chance(0.2) else cores * shard
    grid = f"cores(0,0,{min(cores, 8) - 1},{cores // 8 - 1})"
    given = f"on('w',{grid},(32,{shard}))"
    x = odd_tensor(d, tensor([1, 1, 32, width], d.pick(["'bf16'", "'bf8'"]), memory=given), [1, 1, 32, width])
    packets = odd_tensor(
        d,
        tensor(
            [1, 1, 32, n * 4 * 32 * 16], d.pick(["'bf16'", "'bf8'"]), memory=f"on('w',cores(0,0,7,1),(32,{n * 4 * 32}))"
        ),
        [1, 1, 32, n * 128 * 16],
    )
    out = width // n // 32
    memory = f"on('w',cores(0,0,{out - 1},0),(32,32))" if out <= 8 else f"on('w',cores(0,0,7,{out // 8 - 1}),(32,32))"
    options = [
        *optional(d, "num_links", ["1"], ["0", "3"], 0.6),
        *optional(d, "memory_config", [memory], ["DRAM", "3"], 0.9),
        *optional(d, "topology", LINEAR_OR_RING, OTHER_TOPOLOGIES, 0.6),
        *optional(d, "use_noc1_only", ["False"], ["True"], 0.2),
    ]
    arguments = [
        "x",
        "p",
        d.pick(["3"], ["2", "5"]),
        "s",
        d.pick(["ttnn.SubDeviceId(0)"], ["None", "ttnn.SubDeviceId(3)", "0"]),
        f"cluster_axis={d.pick(['1'], ['0', '2'])}",
        f"mesh_device={d.pick(['dev'], ['None'])}",
    ]
    return call(
        f"x={x}; p={packets}; s={d.pick(['sem()'], ['[sem()]', 'None'])}",
        "ttnn.experimental.llama_reduce_scatter",
        arguments + options,
    )


def llama_heads(d: Draw) -> str:
    n, cores, shard = d.columns, 16, 80 * 2
    x = odd_tensor(
        d,
        tensor([1, 1, 32, cores * shard * n // 4], "'bf16'", memory=f"on('w',cores(0,0,7,1),(32,{shard * n // 4}))"),
        [1, 1, 32, cores * shard],
    )
    packets = tensor([1, 1, 32, n * 4 * 32 * 16], memory=f"on('w',cores(0,0,7,1),(32,{n * 4 * 32}))")
    arguments = [
        "x",
        "p",
        d.pick(["3"], ["2"]),
        "s",
        "ttnn.SubDeviceId(0)",
        f"cluster_axis={d.pick(['1'], ['0', '2'])}",
        "mesh_device=dev",
        f"topology={d.pick(LINEAR_OR_RING, OTHER_TOPOLOGIES)}",
        f"num_heads={d.pick(['8'], ['0', '3'])}",
        f"num_kv_heads={d.pick(['1'], ['0', '3'])}",
    ]
    options = [
        *optional(d, "num_links", ["1"], ["0", "3"], 0.6),
        *optional(d, "memory_config", ["on('w',cores(0,0,4,0),(32,128))"], ["DRAM", "3"], 0.5),
        *optional(d, "qkv_memory_config", ["on('h',cores(0,0,7,3),(32,64))"], ["DRAM", "3"], 0.8),
    ]
    return call(
        f"x={x}; p={packets}; s={d.pick(['sem()'], ['[sem()]', 'None'])}",
        "ttnn.experimental.llama_rs_create_heads",
        arguments + options,
    )


def llama_scatter_matmul(d: Draw) -> str:
    n = d.columns
    x = tensor([1, 1, 32, 512], memory="on('w',cores(0,0,7,0),(32,64))")
    w = tensor([1, 1, 512, 256])
    packets = tensor([1, 1, 32, n * 4 * 32 * 16], memory=f"on('w',cores(0,0,7,1),(32,{n * 4 * 32}))")
    r = tensor([1, 1, 32, 512], "'bf16'", memory="on('w',cores(0,0,7,1),(32,32))")
    arguments = [
        odd_tensor(d, "x", [1, 1, 32, 512]),
        odd_tensor(d, "w", [1, 1, 512, 256]),
        "p",
        d.pick(["3"], ["2"]),
        d.pick(["sem()"], ["None"]),
        d.pick(["1"], ["0"]),
        "dev",
        d.pick(["1"], ["0", "3"]),
        d.pick(["ttnn.SubDeviceId(0)"], ["None"]),
    ]
    options = [
        *optional(d, "rs_tensor", ["r"], ["3"], 0.8),
        *optional(d, "topology", LINEAR_OR_RING, OTHER_TOPOLOGIES),
        *optional(d, "memory_config_mm", ["DRAM"], ["3"]),
        *optional(d, "memory_config_rs", ["on('w',cores(0,0,3,0),(32,32))"], ["DRAM", "3"]),
    ]
    return call(f"x={x}; w={w}; p={packets}; r={r}", "ttnn.experimental.llama_rs_matmul", arguments + options)


def llama_gather_matmul(d: Draw) -> str:
    axis, n = d.axis_and_size()
    x = odd_tensor(d, tensor([1, 1, 32, 256], memory="on('w',cores(0,0,7,0),(32,32))"), [1, 1, 32, 256])
    w = odd_tensor(d, tensor([1, 1, 256 * n, 512]), [1, 1, 256, 512])
    y = odd_tensor(d, tensor([1, 1, 32, 256 * n], memory=f"on('w',cores(0,0,7,0),(32,{32 * n}))"), [1, 1, 32, 256])
    options = [
        *optional(d, "num_links", ["1"], ["0", "3"], 0.6),
        *optional(d, "ag_memory_config", [f"on('w',cores(0,0,7,0),(32,{32 * n}))"], ["DRAM", "3"], 0.7),
        *optional(d, "mm_memory_config", ["on('w',cores(0,0,7,0),(32,64))"], ["DRAM", "3"], 0.7),
        *optional(d, "subdevice_id", ["ttnn.SubDeviceId(0)"], ["3"], 0.5),
    ]
    config = f"ttnn.MatmulMultiCoreReuseMultiCast1DProgramConfig(compute_with_storage_grid_size=(8,1),in0_block_w={n},out_subblock_h=1,out_subblock_w=2,per_core_M=1,per_core_N=2,fuse_batch=True,mcast_in0=False,gather_in0=True)"
    arguments = [
        "x",
        "w",
        "y",
        f"dim={d.pick(['3'], ['2'])}",
        f"cluster_axis={d.pick([axis], ['2', 'None'])}",
        "mesh_device=dev",
        f"topology={d.pick(LINEAR_OR_RING, OTHER_TOPOLOGIES)}",
        f"multi_device_global_semaphore={d.pick(['sem()'], ['[sem()]', 'None'])}",
        f"program_config={d.pick([config], ['None'])}",
    ]
    return call(f"x={x}; w={w}; y={y}", "ttnn.experimental.llama_all_gather_matmul_async", arguments + options)


def gather_concat(d: Draw) -> str:
    n = d.columns
    grid = "ttnn.CoreRangeSet([ttnn.CoreRange((1,0),(3,1)),ttnn.CoreRange((1,2),(2,2))])"
    x = odd_tensor(d, tensor([1, 8, 32, 128], memory=f"on('h',{grid},(32,128))"), [1, 8, 32, 128])
    y = odd_tensor(d, tensor([1, 8 * n, 32, 128], memory="L1"), [1, 32, 32, 128])
    memory = d.pick(["on('w',cores(0,0,7,3),(32,32))"], ["DRAM", "L1", "None"])
    arguments = [
        "x",
        "y",
        f"dim={d.pick(['1'], ['3', '5'])}",
        f"cluster_axis={d.pick(['1'], ['0', '2'])}",
        "mesh_device=dev",
        f"multi_device_global_semaphore={d.pick(['sem()'], ['[sem()]', 'None'])}",
        f"num_heads={d.pick(['8'], ['0', '7'])}",
        f"memory_config={memory}",
    ]
    options = [
        *optional(d, "num_links", ["1"], ["0", "3"], 0.6),
        *optional(d, "topology", LINEAR_OR_RING, OTHER_TOPOLOGIES, 0.6),
        *optional(d, "subdevice_id", ["ttnn.SubDeviceId(0)"], ["3"], 0.4),
    ]
    return call(f"x={x}; y={y}", "ttnn.experimental.all_gather_concat", arguments + options)


def fused_rms(d: Draw) -> str:
    axis, n = d.axis_and_size()
    cores = d.choice([4, 8])
    given = f"on('w',cores(0,0,{cores - 1},0),(32,64))"
    x = odd_tensor(d, tensor([1, 1, 32, cores * 64], d.pick(["'bf16'", "'bf8'"]), memory=given), [1, 1, 32, cores * 64])
    stats = odd_tensor(d, tensor([1, 1, 32, 32 * n], memory=f"on('w',cores(0,0,0,0),(32,{32 * n}))"), [1, 1, 32, 32])
    gamma = odd_tensor(d, tensor([1, 1, cores * 2, 32], layout="RM"), [1, 1, cores * 2, 32])
    config = f"ttnn.LayerNormShardedMultiCoreProgramConfig(compute_with_storage_grid_size=({cores},1),subblock_w=1,block_h=1,block_w=2,inplace=False)"
    wide = config.replace(f"({cores},1)", "(8,8)")
    options = [
        *optional(d, "topology", LINEAR_OR_RING, OTHER_TOPOLOGIES, 0.6),
        *optional(d, "memory_config", [given], ["DRAM", "3"], 0.6),
        *optional(d, "weight", ["g"], ["3"], 0.9),
        *optional(d, "stats", ["t"], ["3"], 0.95),
        *optional(d, "residual_input_tensor", [tensor([1, 1, 32, cores * 64], memory=given)], ["3"], 0.3),
        *optional(d, "num_links", ["1"], ["0", "3"], 0.4),
        *optional(d, "dtype", ["ttnn.bfloat16"], ["3"], 0.2),
    ]
    arguments = [
        "x",
        d.pick([config], [wide, "ttnn.LayerNormDefaultProgramConfig()", "None"]),
        d.pick([axis], ["2"]),
        "dev",
        d.pick(["sem()"], ["[sem()]", "None"]),
    ]
    return call(f"x={x}; t={stats}; g={gamma}", "ttnn.fused_rms_minimal", arguments + options)


def dit_norm(kind: str) -> Writer:
    """The distributed norms of diffusion transformers, and their buffers of statistics."""

    def write(d: Draw) -> str:
        axis, n = d.axis_and_size()
        m, width = d.choice([64, 256]), 256
        x = odd_tensor(d, tensor([1, 1, m, width * n], mapper=axis_mapper(axis, 3)), [1, 1, m, width])
        weight = optional(d, "weight", [tensor([1, 1, 1, width])], [tensor([1, 1, 1, 64]), "3"], 0.6)
        name = f"ttnn.experimental.dit_fused_distributed_{kind}"
        arguments = ["x", f"cluster_axis={d.pick([axis], ['2', 'None'])}", f"mesh_device={d.pick(['dev'], ['None'])}"]
        if d.chance(0.3):
            return call(
                f"x={x}",
                f"{name}_create_stats_buffer",
                [
                    *arguments,
                    *weight,
                    *optional(d, "num_links", ["1"], ["0", "3"]),
                    *optional(d, "num_heads_per_device", ["1", "4"], ["0", "3"]),
                ],
            )
        options = [
            *optional(d, "topology", LINEAR_OR_RING, OTHER_TOPOLOGIES, 0.6),
            *optional(d, "epsilon", ["1e-6"], ["None"]),
            *optional(d, "num_heads_per_device", ["1", "4"], ["0", "3"]),
            *optional(d, "dtype", ["ttnn.bfloat16"], ["ttnn.uint32", "3"]),
            *optional(d, "num_preferred_links", ["1"], ["0", "5"]),
            *optional(d, "memory_config", ["DRAM"], ["L1", "3"]),
        ]
        return call(
            f"x={x}; s={d.semaphores(2)}",
            name,
            [*arguments, "multi_device_global_semaphore=s", *weight, *options],
        )

    return write


def ring_attention(d: Draw) -> str:
    axis, n = d.axis_and_size()
    heads, local, width = d.choice([1, 4]), d.choice([64, 128]), 64
    q, k, v = (
        odd_tensor(d, tensor([1, heads, local * n, width], mapper=axis_mapper(axis, 2)), [1, heads, local, width])
        for _ in range(3)
    )
    joint = [odd_tensor(d, tensor([1, heads, 32, width]), [1, heads, 32, width]) for _ in range(3)]
    buffers = [odd_tensor(d, tensor([1, heads, local * n, width]), [1, heads, local, width]) for _ in range(2)]
    config = "ttnn.SDPAProgramConfig(compute_with_storage_grid_size=(4,4),q_chunk_size=32,k_chunk_size=32,exp_approx_mode=False)"
    setup = f"q={q}; k={k}; v={v}; a={joint[0]}; b={joint[1]}; c={joint[2]}; y={buffers[0]}; z={buffers[1]}; s={d.semaphores(2)}"
    arguments = [
        "q,k,v",
        *d.choice([["a,b,c"], ["a,b,c"], []]),
        "persistent_output_buffer_k=y",
        "persistent_output_buffer_v=z",
        f"joint_strategy={d.pick([repr('rear')], [repr('front'), 'None'])}",
        f"logical_n={d.pick([str(local * n), str(local * n - 5)], ['0', '100000'])}",
        f"program_config={d.pick([config], ['None'])}",
        f"dim={d.pick(['2'], ['3', '1'])}",
        "multi_device_global_semaphore=s",
        f"num_links={d.pick(['1'], ['0', '3'])}",
        f"cluster_axis={d.pick([axis], ['2', 'None'])}",
        "mesh_device=dev",
        f"topology={d.pick(LINEAR_OR_RING, OTHER_TOPOLOGIES)}",
        f"ccl_core_grid_offset={d.pick(['(0,6)', '(0,5)'], ['(0,0)', '3', '(0,20)'])}",
    ]
    options = [
        *optional(d, "scale", ["0.125"], []),
        *optional(d, "is_causal", ["False"], ["True"], 0.2),
        *optional(d, "compute_kernel_config", [KERNEL], ["3"], 0.4),
    ]
    return call(setup, "ttnn.transformer.ring_joint_scaled_dot_product_attention", arguments + options)


def distributed_attention(d: Draw) -> str:
    size = d.choice([2, 4])
    q = odd_tensor(d, tensor([1, 4, 256, 64]), [1, 4, 256, 64])
    k, v = (odd_tensor(d, tensor([1, d.pick([4, 2, 1]), 256, 64]), [1, 4, 256, 64]) for _ in range(2))
    ring = d.pick([str(size)], ["0", "3", "64"])
    options = [
        *optional(d, "ring_id", ["0", "1"], ["9", "-1"], 0.8),
        *optional(d, "scale", ["0.1"], []),
        *optional(d, "memory_config", ["DRAM", "L1"], ["3"]),
    ]
    return call(
        f"q={q}; k={k}; v={v}",
        "ttnn.transformer.ring_distributed_scaled_dot_product_attention",
        ["q,k,v", f"ring_size={ring}", *options],
    )


def halo(d: Draw) -> str:
    outer, height, width, channels = d.choice([1, 2]), 8, 8, 32
    ph, pw = d.choice([1, 2]), d.choice([0, 1, 2])
    x = odd_tensor(
        d,
        tensor([1, outer, height * d.rows, width * d.columns, channels], layout="RM", mapper="D((2,3))"),
        [1, outer, height, width, channels],
    )
    sticks = outer * (2 * ph * width + 2 * pw * (height + 2 * ph))
    y = odd_tensor(d, tensor([1, 1, sticks, channels], layout="RM"), [1, 1, sticks, channels])
    links = d.pick(["1"], ["0", "3"])
    arguments = [
        "x",
        "y",
        f"np_padding_h={d.pick([str(ph)], ['0', '20'])}",
        f"np_padding_w={d.pick([str(pw)], ['20'])}",
        f"np_cluster_axis={d.pick(['0'], ['1', '2'])}",
        f"np_num_links={links}",
        f"np_topology={d.pick(LINEAR_OR_RING[:1], OTHER_TOPOLOGIES)}",
        "h_neighbor_semaphore=sem()",
        f"barrier_semaphore={d.pick(['sem()'], ['None'])}",
        "w_neighbor_semaphore=sem()",
    ]
    second = (
        [
            f"np_pad_dim2={d.pick(['3'], ['1', '0'])}",
            f"np_pad2_left={pw}",
            f"np_pad2_right={pw}",
            f"np_pad2_cluster_axis={d.pick(['1'], ['0'])}",
            "np_pad2_num_links=1",
        ]
        if pw
        else [
            "np_pad_dim2=0",
            "np_pad2_left=0",
            "np_pad2_right=0",
            "np_pad2_cluster_axis=0",
            "np_pad2_num_links=0",
        ]
    )
    return call(
        f"x={x}; y={y}",
        "ttnn.experimental.neighbor_pad_halo",
        arguments + second + optional(d, "padding_mode", [repr("zeros"), repr("replicate")], [repr("reflect"), "3"]),
    )


def socket_call(d: Draw) -> str:
    """send_async and recv_async: both ends of one socket; an end alone would wait for ever on a chip."""
    row, column = d.rng.randrange(d.rows), d.rng.randrange(d.columns)
    other = d.pick([f"C({row},{(column + 1) % d.columns})"], [f"C({row},{column})", "C(0,9)"])
    shape = [1, d.choice([1, 2]), d.number([32, 64], [40]), d.number([64, 256], [48])]
    x = tensor(shape, d.dtype(), d.layout(), d.memory())
    y = d.pick(["ttnn.empty_like(x)"], [tensor([1, 1, 32, 32]), tensor(shape, "'u32'"), "host((1,1,32,32))"])
    fifo = d.pick(["16384", "4096"], ["100", "0", "10000000"])
    setup = f"x={x}; y={y}; a,b=socket(C({row},{column}),{other},{fifo})"
    direct = d.choice(["", "", "_direct"])
    send = f"ttnn.experimental.send{direct}_async(x,{d.pick(['a'], ['b', 'None'])})"
    receive = f"ttnn.experimental.recv{direct}_async(y,{d.pick(['b'], ['a', '3'])})"
    if d.chance(0.3):
        return f"{setup}; {send} => {receive}"
    return f"{setup}; {receive} => {send}" if not direct else f"{setup}; {send} => {receive}"


WRITERS: dict[str, Writer] = {
    "all_gather_matmul_async": gather_matmul, "matmul_reduce_scatter_async": matmul_scatter,
    "all_gather_minimal_matmul_async": minimal_gather_matmul, "strided_all_gather_async": strided_gather,
    "strided_all_gather_minimal_matmul_async": strided_gather_matmul, "strided_reduce_scatter_async": strided_scatter,
    "minimal_matmul_strided_reduce_scatter_async": minimal_matmul_scatter, "buffered_reduce": buffered_reduce,
    "all_reduce_create_qkv_heads": reduce_heads, "llama_reduce_scatter": llama_scatter, "llama_rs_create_heads": llama_heads,
    "llama_rs_matmul": llama_scatter_matmul, "llama_all_gather_matmul_async": llama_gather_matmul, "all_gather_concat": gather_concat,
    "fused_rms_minimal": fused_rms, "dit_rmsnorm": dit_norm("rmsnorm"), "dit_layernorm": dit_norm("layernorm"),
    "ring_joint": ring_attention, "ring_distributed": distributed_attention, "neighbor_pad_halo": halo,
    "sockets": socket_call, "sockets_again": socket_call,
}  # fmt: skip
