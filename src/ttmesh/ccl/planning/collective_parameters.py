"""Parameters of TT-NN's collectives that have no effect in ttmesh, each with the reason."""

from __future__ import annotations

from ttmesh.ops.catalogue.parameter_tags import CORES, Tag

SEMAPHORES = Tag("no effect", "Semaphores order the kernels of a collective; in ttmesh the queue orders its command.")
STAGING = Tag("no effect", "ttmesh keeps no data in flight in the chip's memory; the buffer is not written.")
TUNING = Tag(
    "no effect", "How a transfer is split into packets and over workers changes neither values nor bytes per link."
)
SAME_MESH = Tag("no effect", "The mesh is the one that holds the tensor.")
BLOCKS = Tag("no effect", "The order in which blocks of a matmul arrive; the result is the same.")
EXACT = Tag("no effect", "ttmesh always accumulates sums in float32.")
PREFETCH = Tag("no effect", "The buffer of prefetched weights; ttmesh reads weights from their own memory.")

TAGS: dict[str, Tag] = {
    **dict.fromkeys(
        [
            "multi_device_global_semaphore",
            "barrier_semaphore",
            "barrier_semaphores",
            "rs_global_semaphores",
            "ag_global_semaphores",
            "cross_device_semaphore",
            "optional_cross_device_semaphore",
            "neighbor_semaphore",
            "h_neighbor_semaphore",
            "w_neighbor_semaphore",
            "final_semaphore",
            "use_l1_small_for_semaphores",
        ],
        SEMAPHORES,
    ),
    **dict.fromkeys(
        [
            "buffer_tensor",
            "intermediate_tensor",
            "intermediate_packet_buffer",
            "persistent_intermediate_buffer",
            "intermediate_memory_config",
            "intermediate_memory_config_rs",
        ],
        STAGING,
    ),
    **dict.fromkeys(
        [
            "chunks_per_sync",
            "num_workers_per_link",
            "num_buffers_per_channel",
            "use_noc1_only",
            "use_optimal_ccl_for_llama",
            "use_broadcast",
        ],
        TUNING,
    ),
    **dict.fromkeys(
        [
            "sub_core_grids",
            "sub_core_grid",
            "all_gather_core_grid_offset",
            "reduce_scatter_core_grid_offset",
            "core_grid",
        ],
        Tag("no effect", CORES),
    ),
    **dict.fromkeys(
        ["mm_cores_y", "mm_block_ht", "mm_block_wt", "mm_N_full_block_wt", "chunk_width_in_mm_blocks"], BLOCKS
    ),
    **dict.fromkeys(["global_semaphore", "fsdp_multi_device_global_semaphore"], SEMAPHORES),
    **dict.fromkeys(["stats", "persistent_output_buffer"], STAGING),
    "reciprocals": Tag("no effect", "Reciprocals that the chip looks up; ttmesh divides."),
    **dict.fromkeys(["worker_mode", "dispatch_algorithm"], TUNING),
    **dict.fromkeys(["worker_core_range_set", "mux_core_range_set"], Tag("no effect", CORES)),
    **dict.fromkeys(
        ["rs_intermediate_mem_config", "using_persistent_buffers", "mm_progress_counters", "mm_credit_counters"],
        STAGING,
    ),
    **dict.fromkeys(
        ["force_transpose", "mm_window_blocks", "read_local_slice_from_input", "mm_signal_aggregator_mode"], BLOCKS
    ),
    "strided_all_gather_core_grid_offset": Tag("no effect", CORES),
    "ccl_core_grid_offset": Tag("no effect", CORES),
    "use_column_major_ccl": Tag("no effect", CORES),
    **dict.fromkeys(["persistent_output_buffer_joint_k", "persistent_output_buffer_joint_v"], STAGING),
    "fsdp_topology": Tag("no effect", "ttmesh does not gather weights."),
    "persistent_weight_buffer": STAGING,
    "program_config": Tag("no effect", CORES),
    "config": Tag("no effect", CORES),
    "mesh_device": SAME_MESH,
    "fp32_dest_acc": EXACT,
    "compute_kernel_config": EXACT,
    "global_cb": PREFETCH,
    "topology": Tag("no effect", "Data takes the shortest route between these chips; the topology chooses nothing."),
    "num_links": Tag("no effect", "All links between two chips share the load."),
}
