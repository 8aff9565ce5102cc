"""TT-NN's tools beside its operations: registration, ids, instrumentation, comparisons, configurations as dictionaries."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ttmesh.ttnn as ttnn


@pytest.fixture
def device() -> Iterator[Any]:
    device = ttnn.open_device(device_id=0)
    yield device
    ttnn.close_device(device)


def upload(device: Any) -> Any:
    return ttnn.from_torch(torch.rand(32, 32), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=device)


def test_a_registered_function_is_an_operation(device: Any) -> None:
    @ttnn.register_python_operation(name="ttnn.my_tools.double", golden_function=lambda x: 2 * x)
    def double(x: Any) -> Any:
        """Twice x."""
        return ttnn.add(x, x)

    x, seen = upload(device), []
    with ttnn.register_pre_operation_hook(lambda operation, args, kwargs: seen.append(operation)):
        ttnn.graph.begin_graph_capture()
        result = ttnn.my_tools.double(x, queue_id=0)
        nodes = ttnn.graph.end_graph_capture()

    assert torch.equal(ttnn.to_torch(result), 2 * ttnn.to_torch(x))
    assert seen == [double, ttnn.add]
    started = [node["params"]["name"] for node in nodes if node["node_type"] == "function_start"]
    assert started[:2] == ["ttnn.my_tools.double", "ttnn.add"]
    assert ttnn.get_golden_function(double)(3) == 6
    assert double in ttnn.query_registered_operations()
    with pytest.raises(RuntimeError, match="already registered"):
        ttnn.register_python_operation(name="ttnn.my_tools.double")(double.function)


def test_an_operation_of_the_program_that_fails_is_in_the_report(device: Any, tmp_path: Path) -> None:
    @ttnn.register_python_operation(name="ttnn.my_tools.fail")
    def fail() -> None:
        raise ValueError("no")

    ttnn.graph.begin_graph_capture()
    with pytest.raises(ValueError, match="no"):
        fail()
    upload(device)
    nodes = ttnn.graph.end_graph_capture_to_file(tmp_path / "r.json")

    levels = {n["params"]["name"]: n["stacking_level"] for n in nodes if n["node_type"] == "function_start"}
    assert levels["ttnn.from_torch"] == levels["ttnn.my_tools.fail"], "what comes after it is not inside it"
    assert '"error": {"type": "ValueError", "message": "no"}' in (tmp_path / "r.python_io.json").read_text()


def test_registration_checks_names() -> None:
    with pytest.raises(RuntimeError, match="is a C\\+\\+ operation"):
        ttnn.register_python_operation(name="ttnn.other")(ttnn.add)
    with pytest.raises(RuntimeError, match="at least 2 tokens"):
        ttnn.register_python_operation(name="other")(lambda: None)
    with pytest.raises(RuntimeError, match=r'start with "ttnn\."'):
        ttnn.register_python_operation(name="other.name")(lambda: None)


def test_a_golden_can_be_attached_to_an_operation_of_ttnn() -> None:
    kept = ttnn.relu.golden_function
    try:
        ttnn.attach_golden_function(ttnn.relu, lambda x: "mine")

        assert ttnn.get_golden_function(ttnn.relu)(1) == "mine"
    finally:
        ttnn.attach_golden_function(ttnn.relu, kept)


def test_operations_are_listed_in_a_table(tmp_path: Path) -> None:
    ttnn.dump_operations(tmp_path / "plain.csv")
    ttnn.dump_operations(tmp_path / "all.csv", include_experimental=True)

    texts = ((tmp_path / name).read_text() for name in ("plain.csv", "all.csv"))
    plain, everything = (list(csv.DictReader(text.splitlines())) for text in texts)
    assert plain == everything[: len(plain)]
    assert len(everything) > len(plain)
    assert {row["is_experimental"] for row in plain} == {"False"}
    (add,) = (row for row in plain if row["python_fully_qualified_name"] == "ttnn.add")
    assert add["has_golden_function"] == add["is_cpp_operation"] == "True"


def test_ids_of_tensors_come_from_a_counter_that_programs_can_set(device: Any) -> None:
    counters = ttnn._ttnn
    before = counters.get_tensor_id()
    try:
        counters.set_tensor_id(before + 1000)

        assert upload(device).tensor_id == before + 1000
        assert counters.fetch_and_increment_tensor_id() == before + 1001
        assert counters.get_tensor_id() == before + 1002
        with pytest.raises(TypeError):
            counters.set_tensor_id(-1)
    finally:
        counters.set_tensor_id(before + 2000)  # ids are never given twice


def test_instrumentation_is_accepted(device: Any) -> None:
    assert ttnn.start_tracy_zone("file.py", "function", 3) is None
    assert ttnn.stop_tracy_zone() is True
    assert ttnn.tracy_message("message") is None
    assert ttnn.tracy_frame() is None
    assert ttnn.device.EnableMemoryReports() is ttnn.device.DisableMemoryReports() is None
    assert ttnn.device.ClearKernelCache() is None
    with ttnn.device.setup_fast_dispatch(device):
        pass
    with pytest.raises(RuntimeError, match="can only be called when Fast Dispatch is disabled"):
        ttnn.device.enable_asynchronous_slow_dispatch(device)


def test_the_default_device_can_be_cleared(device: Any) -> None:
    ttnn.SetDefaultDevice(device)

    ttnn._ttnn.device.ClearDefaultDevice()

    assert ttnn.GetDefaultDevice() is None


def test_a_device_is_described_with_the_cores_that_dispatch(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    info = ttnn._ttnn.reports.get_device_info(device)

    grid = device.compute_with_storage_grid_size()
    assert (info.num_x_compute_cores, info.num_y_compute_cores) == (grid.x, grid.y)
    assert info.num_x_cores * info.num_y_cores >= info.num_compute_cores == grid.x * grid.y == info.l1_num_banks
    assert info.cb_limit == info.worker_l1_size - info.address_at_first_l1_cb_buffer


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("row_major", [False, True])
def test_block_floats_are_packed_tile_by_tile(bits: int, row_major: bool) -> None:
    tools = ttnn._ttnn.bfp_utils
    pack, unpack = getattr(tools, f"pack_bfp{bits}"), getattr(tools, f"unpack_bfp{bits}")
    values = np.random.default_rng(0).standard_normal(2 * 1024 + 7).astype(np.float32)

    words = pack(values, row_major_input=row_major)

    assert words.dtype == np.uint32
    assert len(words) == 2 * (16 + 32 * bits)
    back = unpack(words, row_major_output=row_major)
    assert np.array_equal(pack(back, row_major_input=row_major), words)
    tensor = ttnn.from_torch(
        torch.from_numpy(values[:1024].reshape(32, 32)), dtype=getattr(ttnn, f"bfloat{bits}_b"), layout=ttnn.TILE_LAYOUT
    )
    if row_major:
        assert np.array_equal(back[:1024].reshape(32, 32), ttnn.to_torch(tensor).float().numpy())
    with pytest.raises(TypeError):
        pack(values[:1024].reshape(32, 32))


def test_correlation_of_constant_tensors_is_decided_by_closeness() -> None:
    comp_pcc = ttnn.comparison.comp_pcc
    ones = torch.ones(8)

    assert comp_pcc(ones, ones) == (True, 1.0)
    assert comp_pcc(ones, 2 * ones) == (False, 0.0)
    assert comp_pcc(torch.zeros(4), torch.full((4,), 1e-5)) == (True, 1.0)
    assert comp_pcc(ones.bfloat16(), ones.bfloat16() + 2**-7) == (True, 1.0)
    x = torch.rand(64, generator=torch.Generator().manual_seed(0))
    matches, found = comp_pcc(x, -x)
    assert not matches
    assert found == pytest.approx(-1.0)


def test_distances_are_counted_in_units_of_the_last_place() -> None:
    one = torch.ones(2, 2, dtype=torch.bfloat16)

    assert torch.equal(ttnn.comparison.ulp(one), torch.full_like(one, 2**-7))
    assert ttnn.comparison.comp_ulp(one, one + 2**-7, 1)[0]
    within, text = ttnn.comparison.comp_ulp(one, one + 2**-6, 1)
    assert not within
    assert text.startswith("Max ULP Delta: 2.0 @ [0, 0] = |calculated 1.015625 - golden 1.0|")


def test_configurations_become_dictionaries() -> None:
    tools = ttnn.config_serialization
    program = ttnn.MatmulMultiCoreReuseProgramConfig(
        compute_with_storage_grid_size=(8, 8),
        in0_block_w=1,
        out_subblock_h=1,
        out_subblock_w=1,
        per_core_M=1,
        per_core_N=1,
    )

    memory = tools.memory_config_to_dict(ttnn.DRAM_MEMORY_CONFIG)
    assert memory.pop("hash") == hash(ttnn.DRAM_MEMORY_CONFIG)
    assert memory == {
        "memory_layout": "TensorMemoryLayout.INTERLEAVED", "buffer_type": "BufferType.DRAM", "shard_spec": "None",
        "is_sharded": False, "interleaved": True,
    }  # fmt: skip
    assert tools.program_config_to_dict(program)["type"] == "MatmulMultiCoreReuseProgramConfig"
    config = ttnn.WormholeComputeKernelConfig(math_fidelity=ttnn.MathFidelity.HiFi2, fp32_dest_acc_en=True)
    assert tools.compute_kernel_config_to_dict(config) == {
        "math_fidelity": "MathFidelity.HiFi2", "math_approx_mode": "True", "fp32_dest_acc_en": True,
        "packer_l1_acc": False, "dst_full_sync_en": False, "throttle_level": "ThrottleLevel.NO_THROTTLE",
    }  # fmt: skip


def test_the_folder_of_a_report_has_its_name() -> None:
    with ttnn.manage_config("report_name", "my report/name: [x-1]"):
        assert ttnn.CONFIG.report_path.parent == ttnn.CONFIG.root_report_path
        assert ttnn.CONFIG.report_path.name.startswith("my_report_name_x_1_")
