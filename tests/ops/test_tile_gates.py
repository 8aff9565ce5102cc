"""Gates that route one token per core, beside plain Python."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import ttmesh.ttnn as ttnn

TOKENS = 4


@pytest.fixture
def chip() -> Any:
    device = ttnn.open_device(device_id=0)
    yield device
    ttnn.close_device(device)


def shards(device: Any, height: int = 32) -> ttnn.MemoryConfig:
    grid = device.compute_with_storage_grid_size()
    cores = ttnn.num_cores_to_corerangeset(TOKENS, ttnn.CoreCoord(grid.x, grid.y), row_wise=True)
    spec = ttnn.ShardSpec(cores, (height, 32), ttnn.ShardOrientation.ROW_MAJOR)
    return ttnn.MemoryConfig(ttnn.TensorMemoryLayout.HEIGHT_SHARDED, ttnn.BufferType.L1, spec)


def make_inputs(device: Any, blocks: int = 1) -> tuple[Any, dict[str, Any], dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(5)
    shape = (TOKENS, blocks, 16, 16) if blocks > 1 else (TOKENS, 16, 16)
    scores, bias = (torch.randn(shape, generator=generator).bfloat16() for _ in range(2))
    numbers = torch.arange(blocks * 256).reshape(shape[1:]).expand(shape)
    values = {
        "bias_tensor": bias.mT.contiguous(),
        "input_indices_tensor": numbers.mT.contiguous().int(),
        "output_tensor": torch.zeros(TOKENS, 32, 32),
        "output_indices_tensor": torch.zeros(TOKENS, 32, 32, dtype=torch.int32),
    }

    def move(tensor: torch.Tensor, dtype: Any, layout: Any, height: int) -> Any:
        return ttnn.from_torch(tensor, dtype=dtype, layout=layout, device=device, memory_config=shards(device, height))

    tensors = {
        name: move(
            tensor,
            ttnn.uint16 if "indices" in name else ttnn.bfloat16,
            ttnn.ROW_MAJOR_LAYOUT if "output" in name else ttnn.TILE_LAYOUT,
            32 if "output" in name else 32 * blocks,
        )
        for name, tensor in values.items()
    }
    return move(scores, ttnn.bfloat16, ttnn.TILE_LAYOUT, 32 * blocks), tensors, {"input_tensor": scores, **values}


@pytest.mark.parametrize(
    ("name", "blocks", "options"),
    [
        ("deepseek_moe_gate", 1, {"enable_sigmoid": True}),
        ("deepseek_moe_gate", 1, {"eps": 0.5, "scaling_factor": 1.5}),
        ("generalized_moe_gate", 1, {"enable_sigmoid": True, "grouped": True}),
        ("generalized_moe_gate", 1, {"enable_sigmoid": True, "topk": 6}),
        ("generalized_moe_gate", 2, {"output_softmax": True, "topk": 4}),
    ],
)
def test_the_best_experts_are_in_the_first_row_of_the_tile(
    chip: Any, name: str, blocks: int, options: dict[str, Any]
) -> None:
    gate = getattr(ttnn.experimental.deepseek.moe, name)
    x, tensors, values = make_inputs(chip, blocks)

    weights, experts = gate(x, **tensors, **options)

    grouped = {"grouped": name == "deepseek_moe_gate", **options}
    wanted_weights, wanted_experts = gate.golden_function(values.pop("input_tensor"), **values, **grouped)
    assert torch.equal(ttnn.to_torch(experts).int(), wanted_experts.int())
    assert torch.allclose(ttnn.to_torch(weights).float(), wanted_weights, rtol=1 / 128, atol=1e-3)  # bfloat16
    assert weights.buffer_address() == tensors["output_tensor"].buffer_address()
    assert experts.memory_config() == tensors["output_indices_tensor"].memory_config()


def test_what_ttnn_refuses_is_refused_in_its_words(chip: Any) -> None:
    x, tensors, values = make_inputs(chip)
    dram = ttnn.from_torch(values["input_tensor"], dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=chip)
    gate, general = (
        ttnn.experimental.deepseek.moe.deepseek_moe_gate,
        ttnn.experimental.deepseek.moe.generalized_moe_gate,
    )
    ids, out = tensors["input_indices_tensor"], tensors["output_tensor"]

    for call, text in (
        (lambda: gate(dram, **tensors), "input_tensor must be sharded"),
        (lambda: gate(x, **{**tensors, "bias_tensor": dram}), "bias_tensor must be sharded"),
        (lambda: gate(x, **{**tensors, "bias_tensor": ids}), "bias_tensor must be BFLOAT16"),
        (
            lambda: gate(x, **{**tensors, "output_indices_tensor": ids}),
            "Output indices and output tensors must have the",
        ),
        (lambda: gate(out, **tensors), "Bias and input tensors must have the same shape"),
        (lambda: general(x, **tensors, topk=5), r"topk must be one of \{4, 6, 8\} .*, got 5"),
        (lambda: general(x, **tensors, topk=4, grouped=True), "hardwired to top-8; got topk=4"),
        (lambda: general(x, **tensors, grouped=True, output_softmax=True), "output_softmax must be false"),
    ):
        with pytest.raises(RuntimeError, match=text):
            call()
