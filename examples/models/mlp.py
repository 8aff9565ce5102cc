"""Two linear layers with gelu between them. python examples/models/mlp.py"""

from __future__ import annotations

import torch
from torch.nn import functional as F

import ttmesh.ttnn as ttnn
from ttmesh.showcase import model_placement

BATCH, ROWS, WIDTH, HIDDEN = 16, 32, 256, 1024
HELD: list[ttnn.Tensor] = []  # what the memory table at the end shows


def mlp(at: model_placement.Placement) -> tuple[torch.Tensor, torch.Tensor]:
    """The result on the mesh, and torch's."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(BATCH, 1, ROWS, WIDTH, generator=draw)
    up, down = (torch.randn(*s, generator=draw) * s[0] ** -0.5 for s in ((WIDTH, HIDDEN), (HIDDEN, WIDTH)))
    bias_up, bias_down = torch.randn(1, HIDDEN, generator=draw), torch.randn(1, WIDTH, generator=draw)

    w_up, b_up = at.weight(up, split=1), at.weight(bias_up, split=1)  # columns: every chip has some hidden units
    w_down, b_down = at.weight(down, split=0), at.weight(bias_down)  # rows: every chip gives a partial sum
    tensor = at.activation(x)
    hidden = ttnn.linear(tensor, w_up, bias=b_up, activation="gelu")
    result = ttnn.add(at.total(ttnn.linear(hidden, w_down)), b_down)

    HELD[:] = [tensor, w_up, b_up, w_down, b_down, hidden, result]
    return at.whole(result), F.gelu(x @ up + bias_up) @ down + bias_down


if __name__ == "__main__":
    model_placement.main("MLP", mlp)
