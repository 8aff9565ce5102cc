"""Names of TT-NN that lead to the same thing."""

from __future__ import annotations

import pytest

import ttmesh.ttnn as ttnn


@pytest.mark.parametrize("name", ["add", "conv2d", "to_memory_config", "reallocate", "max_pool2d", "linear"])
def test_the_quasar_form_of_an_operation_is_the_operation(name: str) -> None:
    assert getattr(ttnn.experimental.quasar, name) is getattr(ttnn, name)


def test_quasar_forms_of_experimental_operations_are_those() -> None:
    assert ttnn.experimental.quasar.padded_slice is ttnn.experimental.padded_slice


def test_a_name_that_is_nowhere_says_so() -> None:
    with pytest.raises(AttributeError, match=r"'conv9d': ttnn\.experimental\.quasar\.conv9d is no name of TT-NN"):
        ttnn.experimental.quasar.conv9d  # noqa: B018


def test_compiled_modules_hold_what_the_public_ones_show() -> None:
    inner = ttnn._ttnn.operations.experimental

    assert inner.ccl_experimental.GlobalSemaphoreArg is ttnn.GlobalSemaphore
    assert inner.rotary_embedding_llama is ttnn.experimental.rotary_embedding_llama


def test_nothing_profiles_in_real_time() -> None:
    assert ttnn.device.IsProgramRealtimeProfilerActive() is False
    with pytest.raises(NotImplementedError, match="the real-time profiler is not emulated"):
        ttnn.device.RegisterProgramRealtimeProfilerCallback(print)
    with pytest.raises(NotImplementedError, match="no real-time profiler callback 3 is registered"):
        ttnn.device.UnregisterProgramRealtimeProfilerCallback(3)


def test_nodes_of_the_fabric_have_names() -> None:
    assert ttnn.FabricNodeId is not ttnn.MeshId


def test_a_packet_carries_four_tiles_of_block_floats() -> None:
    assert ttnn.get_tt_fabric_max_payload_size_bytes() == 4352


def test_norms_tell_their_usual_compute_config() -> None:
    layer = ttnn.layernorm_default_compute_config(ttnn.Arch.WORMHOLE_B0)
    rms = ttnn.rmsnorm_default_compute_config(ttnn.Arch.WORMHOLE_B0)

    assert (layer.math_fidelity, layer.fp32_dest_acc_en) == (ttnn.MathFidelity.HiFi4, True)
    assert (rms.math_approx_mode, rms.fp32_dest_acc_en) == (True, False)
