"""DeepSeek's matmuls with weights in the order of DRAM banks."""

import pytest
import torch

import ttmesh.ttnn as ttnn
from ttmesh.ops.models.deepseek_bank_matmuls import WO_BANK_TILES

TILE, BANKS = 32, 12


@pytest.fixture
def device():
    device = ttnn.open_device(device_id=0)
    yield device
    ttnn.close_device(device)


def on(device, values, dtype=ttnn.bfloat16):
    return ttnn.from_torch(values, dtype=dtype, layout=ttnn.TILE_LAYOUT, device=device)


def test_the_output_projection_reads_every_banks_rows(device):
    torch.manual_seed(0)
    rows, columns = sum(WO_BANK_TILES) * TILE, 448
    weights = torch.randn(rows, columns) / 16
    x = torch.randn(32, rows).bfloat16()
    most, start, banks = max(WO_BANK_TILES), 0, []
    for tiles in WO_BANK_TILES:
        own = weights[start : start + tiles * TILE].reshape(tiles * TILE, 2, 224).transpose(0, 1).reshape(-1, 224)
        banks.append(torch.nn.functional.pad(own, (0, 0, 0, 2 * (most - tiles) * TILE)))
        start += tiles * TILE
    output = on(device, torch.zeros(32, columns))

    ttnn.experimental.deepseek.mla.matmul_wo(
        on(device, x.expand(BANKS, -1, -1)),
        w_tensor=on(device, torch.stack(banks)[None]),
        output_tensor=output,
        layer_id=0,
    )

    tiles = ttnn.to_torch(output).float().reshape(32, 7, 2, TILE).transpose(1, 2).reshape(32, columns)  # core, block
    expected = x.float() @ weights
    assert torch.corrcoef(torch.stack([tiles.flatten(), expected.flatten()]))[0, 1] > 0.999


def test_the_gate_leaves_the_best_experts_in_the_last_cores_tile(device):
    torch.manual_seed(0)
    weights, bias = torch.randn(7168, 256) / 64, torch.rand(256)
    x = torch.randn(32, 7168).bfloat16()
    tiles, cores, column = weights.reshape(224, TILE, 8, TILE), [], 0
    for core in range(BANKS):
        if core % 3 == 0:
            pair = tiles[152:, :, column : column + 2].reshape(72, TILE, 64)
            cores.append(torch.nn.functional.pad(pair, (0, 0, 0, 0, 0, 5)))
            continue
        own = torch.cat([tiles[:152:2, :, column], tiles[1:152:2, :, column]], -1)
        row = torch.zeros(1, TILE, 64)
        row[0, 0, :TILE] = bias[column * TILE : (column + 1) * TILE]
        cores.append(torch.cat([own, row]))
        column += 1
    output = on(device, torch.zeros(32, BANKS * TILE))

    ttnn.experimental.deepseek.moe.moe_gate_mm(
        on(device, x.expand(BANKS, -1, -1)), w_tensor=on(device, torch.stack(cores)[:, None]), output_tensor=output,
        layer_id=0, column_id=0,
    )  # fmt: skip

    scores = torch.sigmoid(x.float() @ weights) + bias
    groups = scores.reshape(32, 8, 32)
    best = groups.topk(2, -1).values.sum(-1).topk(4, -1).indices
    mask = torch.zeros(32, 8, dtype=torch.bool).scatter(1, best, True)[..., None]
    wanted = (groups * mask).flatten(1).topk(8, -1).values
    last = ttnn.to_torch(output)[:, -TILE:]
    indices = (last[8:16].view(torch.uint16).int() >> 7).T
    assert torch.allclose(last[:8].T.float(), wanted, atol=0.02)
    assert torch.allclose(scores.gather(1, indices.long()), wanted, atol=0.02)


def test_a_layer_that_the_weights_do_not_have_is_refused(device):
    x, w = on(device, torch.zeros(1, 32, 64)), on(device, torch.zeros(1, 1, 32, 224))

    with pytest.raises(RuntimeError, match="layer_id 3 is not one of the 1 layers"):
        ttnn.experimental.deepseek.mla.matmul_wo(x, w_tensor=w, output_tensor=x, layer_id=3)
