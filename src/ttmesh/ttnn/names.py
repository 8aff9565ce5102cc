"""Where each public name of TT-NN lives here: a table, no logic. Operations are not listed; they register themselves."""

from __future__ import annotations

from ttmesh.ttnn.tool_names import TOOL_MODULES, TOOL_NAMES, TOOL_ROOT_NAMES

_MODULES = {
    "ttmesh.base.geometry": "MeshShape MeshCoordinate MeshCoordinateRange MeshCoordinateRangeSet",
    "ttmesh.base.cores": "CoreCoord CoreRange CoreRangeSet CoreGrid NOC",
    "ttmesh.base.core_work": (
        "num_cores_to_corerangeset num_cores_to_corerangeset_in_subcoregrids grid_to_cores corerange_to_cores "
        "split_work_to_cores"
    ),
    "ttmesh.base.dtypes": (
        "DataType bfloat16 float32 uint32 bfloat8_b bfloat4_b uint8 uint16 int32 int8 fp8_e4m3 Layout ROW_MAJOR_LAYOUT "
        "TILE_LAYOUT BufferType TensorMemoryLayout ShardOrientation ShardStrategy StorageType "
        "DEVICE_STORAGE_TYPE MathFidelity Arch"
    ),
    "ttmesh.base.placement": "PlacementShard PlacementReplicate",
    "ttmesh.base.ttnn_config": (
        "Config CONFIG CONFIG_PATH CONFIG_OVERRIDES load_config_from_dictionary load_config_from_json_file "
        "save_config_to_json_file manage_config"
    ),
    "ttmesh.chip.formats.tiles": "Tile",
    "ttmesh.chip.memory": "MemoryView",
    "ttmesh.fabric.fabric_config": (
        "FabricConfig FabricReliabilityMode FabricTensixConfig FabricUDMMode FabricManagerMode FabricRouterConfig "
        "FabricType Topology"
    ),
    "ttmesh.fabric.nodes": "MeshId FabricNodeId",
    "ttmesh.mesh.device.opening": (
        "open_mesh_device close_mesh_device create_mesh_device open_device close_device manage_device get_device_ids "
        "get_num_devices get_num_pcie_devices"
    ),
    "ttmesh.mesh.device.mesh_device": "MeshDevice",
    "ttmesh.mesh.device.mesh_view": "MeshDeviceView",
    "ttmesh.mesh.ranks.system_descriptor": "SystemMeshDescriptor",
    "ttmesh.mesh.system.coordinator": "MeshType",
    "ttmesh.mesh.device.dispatch_cores": "DispatchCoreType DispatchCoreAxis DispatchCoreConfig",
    "ttmesh.mesh.queue.events": "MeshEvent",
    "ttmesh.mesh.queue.trace": "MeshTraceId",
    "ttmesh.mesh.functions.queue_functions": (
        "QueueId get_current_command_queue_id_for_thread is_trace_capture_active get_latest_programs_perf_data "
        "get_all_programs_perf_data command_queue record_event wait_for_event event_synchronize synchronize_device "
        "synchronize_mesh_device synchronize_devices"
    ),
    "ttmesh.mesh.functions.trace_capture": "begin_trace_capture end_trace_capture execute_trace release_trace",
    "ttmesh.mesh.allocation.trace_allocations": "TRACE_ALLOC_TRACKING",
    "ttmesh.mesh.functions.trace_safety": "mark_corruptible corruptible_allocation_scope",
    "ttmesh.mesh.functions.global_semaphores": (
        "create_global_semaphore get_global_semaphore_address reset_global_semaphore_value GlobalSemaphore"
    ),
    "ttmesh.mesh.functions.global_circular_buffers": "create_global_circular_buffer GlobalCircularBuffer",
    "ttmesh.mesh.ranks.counter_channel": "InterProcessCounterChannel",
    "ttmesh.mesh.allocation.sub_devices": "SubDevice SubDeviceId SubDeviceManagerId",
    "ttmesh.mesh.functions.memory_reports": "get_memory_view dump_device_memory_state get_buffers get_buffer_pages",
    "ttmesh.mesh.functions.cluster": (
        "ClusterType get_cluster_type get_arch_name is_wormhole_b0 is_blackhole get_pcie_device_ids get_dram_alignment "
        "get_l1_alignment get_max_worker_l1_unreserved_size get_allocator_base_address "
        "get_optimal_dram_bank_to_logical_worker_assignment"
    ),
    "ttmesh.mesh.functions.process_fabric": "set_fabric_config get_fabric_config get_tt_fabric_max_payload_size_bytes",
    "ttmesh.mesh.functions.fabric_queries": "get_all_mgd_fabric_types get_forwarding_link_indices",
    "ttmesh.mesh.functions.distributed_context": (
        "Rank Size using_distributed_env init_distributed_context distributed_context_is_initialized "
        "distributed_context_get_rank distributed_context_get_size distributed_context_barrier "
        "distributed_context_allgather_int distributed_context_send_bytes distributed_context_recv_bytes "
        "distributed_context_world_rank distributed_context_world_size distributed_context_local_to_world_rank "
        "distributed_context_subcontext_id distributed_context_subcontext_count distributed_context_subcontext_size "
        "distributed_context_subcontext_sizes"
    ),
    "ttmesh.tensor.spec.shape": "Shape",
    "ttmesh.tensor.spec.memory_config": (
        "MemoryConfig ShardSpec NdShardSpec ShardDistributionStrategy ShardShapeAlignment DRAM_MEMORY_CONFIG "
        "L1_MEMORY_CONFIG L1_BLOCK_SHARDED_MEMORY_CONFIG L1_HEIGHT_SHARDED_MEMORY_CONFIG L1_WIDTH_SHARDED_MEMORY_CONFIG"
    ),
    "ttmesh.tensor.spec.shard_config": "create_sharded_memory_config create_sharded_memory_config_",
    "ttmesh.tensor.spec.tensor_spec": "TensorSpec",
    "ttmesh.tensor.tensor": "Tensor",
    "ttmesh.tensor.spec.tensor_topology": "TensorTopology",
    "ttmesh.ccl.planning.reduction_terms": "ReduceType",
    "ttmesh.ccl.fused.fused_minimal_matmul": "MMSignalAggregatorMode",
    "ttmesh.ccl.collectives.point_to_point": "p2p_compute_intermediate_tensor_spec",
    "ttmesh.ccl.experts.expert_modes": "DispatchAlgorithm WorkerMode MoEActivationFunction",
    "ttmesh.ccl.collectives.usable_topology": "get_usable_topology",
    "ttmesh.ccl.planning.link_limits": "get_num_links",
    "ttmesh.ccl.sockets.mesh_sockets": "MeshSocket create_socket_pair",
    "ttmesh.ccl.sockets.host_sockets": "H2DMode H2DSocket D2HSocket",
    "ttmesh.ccl.sockets.socket_config": "SocketConfig SocketMemoryConfig SocketConnection SocketEndpoint MeshCoreCoord",
    "ttmesh.tensor.distribution.mappers": (
        "MeshMapperConfig TensorToMesh ReplicateTensorToMesh ReplicateTensorToMeshWrapper ShardTensorToMesh "
        "ShardTensor2dMesh create_mesh_mapper replicate_tensor_to_mesh_mapper shard_tensor_to_mesh_mapper"
    ),
    "ttmesh.tensor.distribution.composers": (
        "MeshComposerConfig MeshToTensor ListMeshToTensor ConcatMeshToTensor ConcatMesh2dToTensor create_mesh_composer "
        "concat_mesh_to_tensor_composer"
    ),
    "ttmesh.tensor.spec.distribution_shape": "compute_distribution_to_mesh_mapping",
    "ttmesh.tensor.transfer.transfers": (
        "from_torch to_torch to_device from_device copy_host_to_device_tensor copy_device_to_host_tensor "
        "allocate_tensor_on_device allocate_tensor_on_host deallocate reallocate get_memory_config "
        "is_tensor_storage_on_device has_storage_type_of is_sharded has_tile_padding tile_size element_size"
    ),
    "ttmesh.tensor.transfer.partial_copy": "copy_host_to_device_tensor_partial",
    "ttmesh.tensor.calls.conversions": "to_layout to_dtype to_memory_config",
    "ttmesh.tensor.transfer.serialization": "dump_tensor load_tensor as_tensor DumpTensorMode",
    "ttmesh.tensor.transfer.device_tensors": (
        "distribute distribute_tensor aggregate_tensor get_device_tensors from_host_shards combine_device_tensors"
    ),
    "ttmesh.tensor.transfer.batch_padding": "pad_batch",  # ours: TT-NN leaves batches that do not divide to the program
    "ttmesh.tensor.visualize": "visualize_mesh_device visualize_tensor visualize_system_mesh",
    "ttmesh.tensor.spec.tensor_text": "set_printoptions",
    "ttmesh.tensor.transfer.stream_services": "H2DStreamService D2HStreamService",
    "ttmesh.tensor.transfer.worker_cores": "get_optimal_worker_cores_for_sharded_tensor",
    "ttmesh.ops.configs.activations": "UnaryOpType UnaryWithParam GeluVariant SigmoidMode string_to_unary_with_param",
    "ttmesh.ops.complex.complex_tensors": "ComplexTensor",
    "ttmesh.ops.reduction.mse_l1_loss": "LossReductionMode",
    "ttmesh.ops.configs.compute_config": (
        "WormholeComputeKernelConfig BlackholeComputeKernelConfig DeviceComputeKernelConfig ThrottleLevel "
        "init_device_compute_kernel_config layernorm_default_compute_config rmsnorm_default_compute_config"
    ),
    "ttmesh.ops.configs.conv_config": (
        "Conv1dConfig Conv2dConfig Conv3dConfig Conv2dSliceConfig Op2DSliceConfig Conv2dL1Full Conv2dDRAMSliceHeight "
        "Conv2dDRAMSliceWidth Op2DL1Full Op2DDRAMSliceHeight Op2DDRAMSliceWidth Conv2dL1FullSliceConfig "
        "Op2DL1FullSliceConfig PaddingMode get_conv_output_dim"
    ),
    "ttmesh.ops.catalogue.definition": "get_golden_function",
    "ttmesh.ops.catalogue.fallback": "get_fallback_function",
    "ttmesh.tensor.transfer.overlapped_tensors": "OverlappedTensor",
    "ttmesh.ops.norm.group_norm_grids": (
        "find_closest_largest_divisor find_max_tile_span dram_group_norm_virtual_columns create_group_norm_input_mask "
        "create_group_norm_input_negative_mask create_group_norm_weight_bias_rm create_group_norm_reciprocals "
        "create_layer_norm_reciprocals get_group_norm_cores_across_channel dram_group_norm_params_from_torch "
        "determine_expected_group_norm_sharded_config_and_grid_size determine_expected_group_norm_dram_grid_size"
    ),
    "ttmesh.ops.attention.sparse_attention": "SparseKVFormat",
    "ttmesh.ops.models.kimi": "QkvCausalConv1dSiluProgramConfig",
    "ttmesh.ops.attention.indexer": "IndexerScoreProgramConfig",
    "ttmesh.ops.models.deepseek_experts": "RoutedExpertActivation",
    "ttmesh.ops.configs.program_configs": (
        "LayerNormDefaultProgramConfig LayerNormShardedMultiCoreProgramConfig LayerNormProgramConfig LayerNormType "
        "DistributedLayerNormStage create_layernorm_program_config SoftmaxDefaultProgramConfig "
        "SoftmaxShardedMultiCoreProgramConfig SoftmaxProgramConfig SDPAProgramConfig PagedCacheGeometryOverride"
    ),
    "ttmesh.ops.movement.embedding": "EmbeddingsType",
    "ttmesh.ops.elementwise.bcast": "BcastOpMath BcastOpDim",
    "ttmesh.ops.movement.reshape": "TileReshapeMapMode",
    "ttmesh.ops.configs.matmul_program_configs": (
        "MatmulMultiCoreProgramConfig MatmulMultiCoreReuseProgramConfig MatmulMultiCoreReuseMultiCastProgramConfig "
        "MatmulMultiCoreReuseMultiCast1DProgramConfig MatmulMultiCoreReuseMultiCastDRAMShardedProgramConfig "
        "MatmulMultiCoreReuseMultiCastBatchedDRAMShardedProgramConfig MinimalMatmulConfig"
    ),
    "ttmesh.ops.generic_op": ("TensorAccessorArgs cb_descriptor_from_sharded_tensor"),
    "ttmesh.programs.program": "DataMovementProcessor",
    "ttmesh.programs.runtime_args": "RuntimeArgs",
    "ttmesh.programs.descriptor_hash": "compute_program_descriptor_hash",
    "ttmesh.programs.descriptors": (
        "UnpackToDestMode "
        "NOC_MODE CoreType TileDescriptor FaceGeometry CBFormatDescriptor CBDescriptor ReaderConfigDescriptor "
        "WriterConfigDescriptor DataMovementConfigDescriptor ComputeConfigDescriptor KernelDescriptor SemaphoreDescriptor "
        "ProgramDescriptor MeshProgramDescriptor get_cb_address merge_program_descriptors"
    ),
    "ttmesh.ops.catalogue.hooks": "register_pre_operation_hook register_post_operation_hook",
}

_RENAMED = {
    "_ttnn_execute_trace": "ttmesh.mesh.functions.trace_capture:execute_trace",
    "ReadDeviceProfiler": "ttmesh.mesh.functions.queue_functions:read_device_profiler",
    "divup": "ttmesh.tensor.spec.shard_config:div_up",
    "roundup": "ttmesh.tensor.spec.shard_config:round_up",
    "EltwiseUnaryWithParam": "ttmesh.ops.configs.activations:UnaryWithParam",
    "Device": "ttmesh.mesh.device.mesh_device:MeshDevice",
    "CreateDevice": "ttmesh.mesh.device.opening:create_device",
    "CreateDevices": "ttmesh.mesh.device.opening:create_devices",
    "CloseDevice": "ttmesh.mesh.device.opening:close_device",
    "CloseDevices": "ttmesh.mesh.device.opening:close_devices",
    "SetDefaultDevice": "ttmesh.mesh.device.opening:set_default_device",
    "GetDefaultDevice": "ttmesh.mesh.device.opening:get_default_device",
    "GetNumAvailableDevices": "ttmesh.mesh.device.opening:get_num_devices",
    "GetNumPCIeDevices": "ttmesh.mesh.device.opening:get_num_pcie_devices",
    "GetPCIeDeviceID": "ttmesh.mesh.functions.cluster:get_pcie_device_id",
    "CppTensorToMesh": "ttmesh.tensor.distribution.mappers:TensorToMesh",
    "CppMeshToTensor": "ttmesh.tensor.distribution.composers:MeshToTensor",
}

# Names by the root's own spelling; every submodule without a table of its own looks names up here.
NAMES: dict[str, str] = {
    **{name: f"{module}:{name}" for module, names in _MODULES.items() for name in names.split()},
    **_RENAMED,
    **TOOL_ROOT_NAMES,
}

# Submodules that only give the root's names again.
_SUBMODULES = (
    "types device core distributed distributed.distributed distributed.ttrun "
    "operations operations.core operations.ccl operations.conv2d "
    "operations.pool operations.activations operations.unary operations.binary operations.ternary operations.reduction "
    "operations.matmul operations.normalization operations.data_movement operations.embedding operations.transformer "
    "operations.trace operations.moreh cluster fabric decorators tools model_preprocessing dot_access "
    "tools.trace_allocation_tracker trace_allocation_config unsafe_allocation_tracker "
    "graph graph_tracer_utils tracer torch_tracer events reports profiler "
    "_ttnn _ttnn.tensor _ttnn.types _ttnn.device _ttnn.multi_device _ttnn.operations _ttnn.operations.core "
    "_ttnn.operations.point_to_point "
    "_ttnn.operations.ccl _ttnn.operations.trace _ttnn.fabric _ttnn.cluster _ttnn.events _ttnn.reports _ttnn.graph "
    "_ttnn.global_circular_buffer "
    "_ttnn.global_semaphore _ttnn.mesh_socket _ttnn.core _ttnn.profiler _ttnn.deprecated _ttnn.deprecated.operations "
    "_ttnn.operations.data_movement _ttnn.operations.experimental _ttnn.operations.experimental.quasar"
)
SUBMODULES = (*_SUBMODULES.split(), *TOOL_MODULES)

# Submodules that hold operations of their own; a name they lack is not looked up in the root.
OPERATION_MODULES = [
    "experimental", "transformer", "kv_cache", "experimental.moe", "experimental.ccl_experimental",
    "experimental.deepseek_prefill", "experimental.kda", "experimental.quasar", "experimental.deepseek",
    "experimental.deepseek.moe", "experimental.deepseek.mla",
]  # fmt: skip

# TT-NN's kernels for the Quasar chip, under TT-NN's own names and with its signatures: the same operations here.
_QUASAR = (
    "add add_ addalpha atan2 bias_gelu bias_gelu_ bitwise_and bitwise_left_shift bitwise_or bitwise_right_shift "
    "bitwise_xor div div_no_nan divide divide_ eq eq_ floor_div fmod gcd ge ge_ gt gt_ hypot isclose lcm ldexp ldexp_ le "
    "le_ logaddexp logaddexp2 logaddexp2_ logaddexp_ logical_and logical_and_ logical_left_shift logical_or logical_or_ "
    "logical_right_shift logical_xor logical_xor_ lt lt_ maximum minimum multiply multiply_ ne ne_ nextafter outer "
    "polyval pow prelu remainder rsub rsub_ squared_difference squared_difference_ subalpha subtract subtract_ xlogy "
    "to_memory_config sharded_to_interleaved tilize pad interleaved_to_sharded tilize_with_val_padding "
    "tilize_with_zero_padding untilize_with_unpadding reallocate reshard untilize typecast move transpose fold to_device "
    "matmul linear matmul_batched_weights addmm sparse_matmul slice max_pool2d avg_pool2d conv2d reshape to_layout "
    "TileReshapeMapMode MatmulMultiCoreReuseProgramConfig MatmulMultiCoreReuseMultiCastProgramConfig "
    "MatmulMultiCoreReuseMultiCast1DProgramConfig MatmulMultiCoreReuseMultiCastDRAMShardedProgramConfig "
    "MatmulMultiCoreReuseMultiCastBatchedDRAMShardedProgramConfig"
)
_QUASAR_NAMES = {
    **{name: f"ttmesh.ttnn:{name}" for name in _QUASAR.split()},
    **{name: f"ttmesh.ttnn.experimental:{name}" for name in ("padded_slice", "slice_write")},
}

# Names that only a submodule has.
_PREPROCESSING = {
    "ttmesh.nn.preprocessing": (
        "preprocess_model preprocess_model_parameters preprocess_linear_weight preprocess_linear_bias "
        "preprocess_layernorm_parameter preprocess_embedding_weight fold_batch_norm2d_into_conv2d default_preprocessor "
        "convert_torch_model_to_ttnn_model preprocess_remaining_children_and_parameters"
    ),
    "ttmesh.nn.weights.module_args": "infer_ttnn_module_args",
    "ttmesh.nn.weights.parameter_tree": (
        "ParameterDict ParameterList make_parameter_dict move_to_device ModuleArgs Conv2dArgs ConvTranspose2dArgs "
        "MaxPool2dArgs GroupNormArgs"
    ),
}

# ttnn.operations.moreh.sum is ttnn.moreh_sum, and so on.
_MOREH = (
    "adam adamw arange bmm bmm_backward clip_grad_norm cumsum cumsum_backward dot dot_backward fold getitem group_norm "
    "group_norm_backward layer_norm layer_norm_backward linear linear_backward logsoftmax logsoftmax_backward matmul "
    "matmul_backward mean mean_backward nll_loss nll_loss_backward nll_loss_unreduced_backward norm norm_backward sgd "
    "softmax softmax_backward softmin softmin_backward sum sum_backward full full_like"
)

_GRAPH = {
    "ttmesh.ops.graph.graph_recorder": "RunMode",
    "ttmesh.ops.graph.graph_capture": (
        "REPORT_VERSION begin_graph_capture end_graph_capture end_graph_capture_to_file is_graph_capture_active "
        "track_function_start track_function_end"
    ),
    "ttmesh.ops.graph.full_capture": "full_graph_capture",
    "ttmesh.ops.graph.python_io": (
        "enable_python_io_recording disable_python_io_recording is_python_io_recording_enabled enable_python_stack_traces "
        "disable_python_stack_traces is_python_stack_trace_enabled record_python_operation store_output_tensor_ids "
        "store_captured_graph _safe_arg_str _python_io_data _configure_python_stack_traces_for_outer_graph_capture"
    ),
    "ttmesh.ops.graph.graph_report": (
        "enable_detailed_buffer_tracing disable_detailed_buffer_tracing is_detailed_buffer_tracing_enabled"
    ),
    "ttmesh.ops.graph.graph_queries": (
        "TensorInfo PeakMemoryUsagePerCore extract_calltrace extract_peak_L1_memory_usage extract_output_tensors "
        "extract_resource_usage_per_core extract_output_info count_intermediate_and_output_tensors "
        "extract_levelized_graph pretty_format pretty_print visualize"
    ),
}
_TRACED_NODES = (
    "TorchTensor TorchParameter TorchFunction TorchModule TorchModuleInput ModuleIOTensor InputTensorIndex "
    "PositionalArgumentName TTNNTensor TTNNOperation"
)
_TRACER = {
    **{name: f"ttmesh.ops.graph.traced_nodes:{name}" for name in _TRACED_NODES.split()},
    **{
        name: f"ttmesh.ops.graph.graph_tracing:{name}"
        for name in ("enable_tracing", "disable_tracing", "is_tracing_enabled", "trace", "get_graph", "flatten_graph")
    },
    **{name: f"ttmesh.ops.graph.graph_dot:{name}" for name in ("visualize", "LEVEL_COLORS")},
    "Node": "ttmesh.ops.graph.traced_nodes:TracedNode",
    "codegen": "ttmesh.ops.graph.graph_source:codegen",
}
_TORCH_TRACER = {
    **_TRACER,
    "enable_tracing": "ttmesh.ops.graph.graph_tracing:enable_torch_tracing",
    "trace": "ttmesh.ops.graph.graph_tracing:trace_torch",
}

_POOL_GOLDENS = (
    "maxpool2d avg_pool2d global_avg_pool2d adaptive_avg_pool2d adaptive_max_pool2d upsample grid_sample rotate"
)

_TRACE_ALLOC = {
    name: f"ttmesh.mesh.allocation.trace_allocations:{name}"
    for name in ("TRACE_ALLOC_TRACKING", "TRACE_ALLOC_DIAGNOSTICS", "TRACE_ALLOC_REFERRER_DEPTH")
}
_TRACE_SAFETY = (
    "get_unsafe_tracked_ids remove_unsafe_tracked_id push_corruptible_allocation_scope pop_corruptible_allocation_scope "
    "trace_allocation_tracking_enabled trace_allocation_diagnostics_enabled acknowledge_corruptible "
    "corruptible_allocation_scope TraceAllocationTracker UnsafeAllocationTracker"
)
_TRACE_SAFETY_NAMES = {
    **_TRACE_ALLOC,
    **{name: f"ttmesh.mesh.functions.trace_safety:{name}" for name in _TRACE_SAFETY.split()},
}

_COLOURS = "YUVColorSpace RGBRange YUVRange YUVFormat YUVCoefficients yuv_bt601_coefficients yuv_bt709_coefficients"
NAMES |= {name: f"ttmesh.ops.pool.color_conversion:{name}" for name in _COLOURS.split()}
NAMES["rgb_to_yuv"] = "ttmesh.ttnn.experimental:rgb_to_yuv"

_CONTEXT = (
    "allgather_int barrier get_rank get_size is_initialized local_to_world_rank recv_bytes send_bytes subcontext_count "
    "subcontext_id subcontext_size subcontext_sizes world_rank world_size"
)

_PROFILER = (
    "IsProgramRealtimeProfilerActive RegisterProgramRealtimeProfilerCallback UnregisterProgramRealtimeProfilerCallback"
)
_DEVICE = {
    "DEFAULT_WORKER_L1_SIZE": "ttmesh.mesh.device.opening:DEFAULT_WORKER_L1_SIZE",
    **{name: f"ttmesh.mesh.device.realtime_profiler:{name}" for name in _PROFILER.split()},
}

OWN_NAMES: dict[str, dict[str, str]] = {
    "trace_allocation_config": _TRACE_ALLOC,
    "unsafe_allocation_tracker": _TRACE_SAFETY_NAMES,
    "tools.trace_allocation_tracker": _TRACE_SAFETY_NAMES,
    "_ttnn.operations.trace": _TRACE_SAFETY_NAMES,
    "distributed.ttrun": {"main": "ttmesh.cli.launch:main"},
    # Two kernels of TT-NN for one operation, which its tests force.
    "_ttnn.operations.data_movement": {
        f"{name}_force_{kernel}": f"ttmesh.ttnn:{name}"
        for name in ("untilize", "gather", "repeat", "repeat_interleave")
        for kernel in ("native", "codegen")
    },
    "_ttnn.multi_device": {
        name: f"ttmesh.mesh.functions.distributed_context:distributed_context_{name}" for name in _CONTEXT.split()
    },
    "_ttnn.types": {"HOST_STORAGE_TYPE": "ttmesh.base.dtypes:HOST_STORAGE_TYPE"},
    "operations.activations": {
        "get_golden_function_for_activation": "ttmesh.ops.configs.activations:get_golden_function_for_activation"
    },
    "experimental": {
        "is_tensor_prefetcher_supported": "ttmesh.mesh.functions.cluster:is_tensor_prefetcher_supported",
        **{
            name: f"ttmesh.ccl.experts.moe_cores:{name}"
            for name in ("get_moe_combine_cores", "get_moe_tilize_drain_core", "get_moe_worker_mcast_bounding_box")
        },
        **{name: f"ttmesh.ops.pool.color_conversion:{name}" for name in _COLOURS.split()},
    },
    "_ttnn.core": {
        name: f"ttmesh.chip.formats.tile_packing:{name}"
        for name in ("tilize_and_pack_bfp8_b", "tilize_and_pack_bfp4_b")
    },
    "_ttnn.tensor": {
        **{
            name: f"ttmesh.tensor.transfer.serialization:{name}"
            for name in ("dump_tensor_flatbuffer", "load_tensor_flatbuffer")
        },
        **{
            name: f"ttmesh.tensor.transfer.overlapped_tensors:{name}"
            for name in ("dump_overlapped_tensors", "load_overlapped_tensors")
        },
    },
    "experimental.quasar": _QUASAR_NAMES,
    "_ttnn.operations.experimental.quasar": _QUASAR_NAMES,
    "transformer": {"SparseKVFormat": "ttmesh.ops.attention.sparse_attention:SparseKVFormat"},
    # Names that models write in annotations.
    "experimental.ccl_experimental": {"GlobalSemaphoreArg": "ttmesh.mesh.functions.global_semaphores:GlobalSemaphore"},
    "_ttnn.global_semaphore": {"global_semaphore": "ttmesh.mesh.functions.global_semaphores:GlobalSemaphore"},
    "_ttnn.global_circular_buffer": {
        "global_circular_buffer": "ttmesh.mesh.functions.global_circular_buffers:GlobalCircularBuffer"
    },
    "device": {**_DEVICE, "DeallocateBuffers": "ttmesh.mesh.functions.memory_reports:deallocate_buffers"},
    "_ttnn.device": {
        **_DEVICE,
        "deallocate_buffers": "ttmesh.mesh.functions.memory_reports:deallocate_buffers",
        "GetMemoryView": "ttmesh.mesh.functions.memory_reports:get_memory_view",
        "DumpDeviceMemoryState": "ttmesh.mesh.functions.memory_reports:dump_device_memory_state",
        "GetAllocatorBaseAddress": "ttmesh.mesh.functions.cluster:get_allocator_base_address",
    },
    "operations.pool": {
        f"golden_{name}": f"ttmesh.ops.pool.pool_goldens:golden_{name}" for name in _POOL_GOLDENS.split()
    },
    "operations.moreh": {
        "abs": "ttmesh.ttnn:moreh_abs_pow",
        **dict.fromkeys(
            ("SoftmaxOpParallelizationStrategy", "SoftmaxBackwardOpParallelizationStrategy"),
            "ttmesh.ops.moreh.moreh_softmax:MorehSoftmaxOpParallelizationStrategy",
        ),
        **{name: f"ttmesh.ttnn:moreh_{name}" for name in _MOREH.split()},
    },
    "model_preprocessing": {n: f"{module}:{n}" for module, names in _PREPROCESSING.items() for n in names.split()},
    "dot_access": {
        name: f"ttmesh.nn.weights.parameter_tree:{name}" for name in ("DotAccessDict", "make_dot_access_dict")
    },
    "tracer": _TRACER,
    "torch_tracer": _TORCH_TRACER,
    "graph_tracer_utils": {"GraphTracerUtils": "ttmesh.ops.graph.graph_json:GraphTracerUtils"},
    "graph": {n: f"{module}:{n}" for module, names in _GRAPH.items() for n in names.split()},
}
for _name, _places in (*TOOL_MODULES.items(), *TOOL_NAMES.items()):
    OWN_NAMES[_name] = OWN_NAMES.get(_name, {}) | _places

# Modules whose attributes programs also assign.
FORWARDED = {"operation_tracer": "ttmesh.ops.graph.operation_tracer:tracer"}

_EXTRA_MODULES = {
    "ttmesh.dryrun.dry_context": "dry_run is_dry_run",
    "ttmesh.base.numerics_mode": "numerics",
    "ttmesh.ccl.collectives.all_to_all": "all_to_all",
    "ttmesh.ccl.collectives.host_forms": "all_gather",
    "ttmesh.tensor.distribution.composers": "on_first_rank",
    "ttmesh.mesh.functions.queue_functions": "event_query",
    "ttmesh.programs.buffers.addresses": "TensorAccessorArgs",
    "ttmesh.programs.circular_buffers": "CircularBufferConfig CircularBufferError",
    "ttmesh.programs.host_api": (
        "CreateProgram CreateKernel CreateCircularBuffer CreateSemaphore SetRuntimeArgs SetCommonRuntimeArgs "
        "GetRuntimeArgs"
    ),
    "ttmesh.programs.execution.kernel_memory": "NocError",
    "ttmesh.programs.buffers.buffer_configs": (
        "MeshBufferLayout DeviceLocalBufferConfig ReplicatedBufferConfig ShardedBufferConfig"
    ),
    "ttmesh.programs.buffers.mesh_buffer": "MeshBuffer create_mesh_buffer",
    "ttmesh.programs.buffers.page_layout": "BufferShardingArgs",
    "ttmesh.programs.program": (
        "Program DataMovementProcessor DataMovementConfig ReaderDataMovementConfig WriterDataMovementConfig ComputeConfig"
    ),
    "ttmesh.programs.execution.scheduler": "DeadlockError",
    "ttmesh.programs.buffers.buffer_transfers": (
        "BufferRegion enqueue_write_mesh_buffer enqueue_read_mesh_buffer enqueue_write_shards enqueue_read_shards "
        "enqueue_write_shard_to_sub_grid write_shard read_shard"
    ),
    "ttmesh.programs.execution.workload": "MeshWorkload enqueue_mesh_workload",
}

# TT-Metal's free functions (tt-metal e4f9f0b, distributed.hpp); here they take the mesh and cq_id= for a queue.
_EXTRA_RENAMED = {
    "EnqueueMeshWorkload": "ttmesh.programs.execution.workload:enqueue_mesh_workload",
    "EnqueueWriteMeshBuffer": "ttmesh.programs.buffers.buffer_transfers:enqueue_write_mesh_buffer",
    "EnqueueReadMeshBuffer": "ttmesh.programs.buffers.buffer_transfers:enqueue_read_mesh_buffer",
    "WriteShard": "ttmesh.programs.buffers.buffer_transfers:write_shard",
    "ReadShard": "ttmesh.programs.buffers.buffer_transfers:read_shard",
    "EventSynchronize": "ttmesh.mesh.functions.queue_functions:event_synchronize",
    "EventQuery": "ttmesh.mesh.functions.queue_functions:event_query",
    "Synchronize": "ttmesh.mesh.functions.queue_functions:synchronize_device",
}

# Names of `ttmesh` that TT-NN does not have: TT-Metal's low level.
EXTRA: dict[str, str] = {
    **{name: f"{module}:{name}" for module, names in _EXTRA_MODULES.items() for name in names.split()},
    **_EXTRA_RENAMED,
}
