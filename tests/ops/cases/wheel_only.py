"""Operations that only the wheel of TT-NN 0.81.1 has."""

from __future__ import annotations

import torch
from harness import Case, On

from ttmesh.base.dtypes import ROW_MAJOR_LAYOUT, TILE_LAYOUT, bfloat16, float32, int32

ROWS = (ROW_MAJOR_LAYOUT,)
SIZES = [[4, 6], [3, 2]]


def normal(g: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=g)


def uniform(g: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.rand(*shape, generator=g)


def recurrent(g: torch.Generator, **options: object) -> tuple[list[torch.Tensor], dict[str, object]]:
    keys = torch.nn.functional.normalize(normal(g, 2, 1, 3, 2, 32), dim=-1)
    gates = -uniform(g, 1, 3, 4), uniform(g, 1, 3, 4)
    return [keys[0], keys[1], normal(g, 1, 3, 4, 64), *gates], options


def caches(g: torch.Generator) -> tuple[list[object], dict[str, object]]:
    rows = On(torch.tensor([[3, 70, -1, 3, 500]], dtype=torch.int32), int32, ROW_MAJOR_LAYOUT)
    return [normal(g, 3, 2, 32, 64), normal(g, 1, 2, 5, 64), normal(g, 3, 2, 32, 64), normal(g, 1, 2, 5, 64), rows], {}


E = "ttnn.experimental"
CASES = [
    Case(f"{E}.fft", lambda g: ([normal(g, 4, 128)], {}), layouts=ROWS),
    Case(f"{E}.fft/complex", lambda g: ([normal(g, 2, 2, 100), normal(g, 2, 2, 100)], {}), (float32,), ROWS),
    Case(f"{E}.ifft", lambda g: ([normal(g, 2, 2048), normal(g, 2, 2048)], {}), layouts=ROWS),
    Case(f"{E}.bluestein_fft", lambda g: ([normal(g, 4, 100), normal(g, 4, 100), 100], {}), (float32,), ROWS),
    Case(f"{E}.complex_mul", lambda g: ([normal(g, 3, 40) for _ in range(4)], {}), layouts=ROWS),
    Case(f"{E}.apply_twiddles", lambda g: ([normal(g, 2, 16, 32), normal(g, 2, 16, 32), 32, 16], {}), layouts=ROWS),
    Case(f"{E}.apply_twiddles_xl", lambda g: ([normal(g, 8, 16), normal(g, 8, 16), 16, 4, 4096], {}), layouts=ROWS),
    Case(f"{E}.transpose_rm", lambda g: ([normal(g, 2, 32, 64)], {}), layouts=ROWS),
    Case(
        f"{E}.fused_msda",
        lambda g: ([normal(g, 2, 30, 2, 16), uniform(g, 2, 5, 2, 2, 3, 2), normal(g, 2, 5, 2, 2, 3), SIZES], {}),
        (bfloat16,),
        ROWS,
        placements=False,
    ),
    Case(
        f"{E}.fused_msda_from_offsets",
        lambda g: (
            [normal(g, 1, 30, 32), uniform(g, 1, 5, 2, 2), normal(g, 1, 5, 2, 16), normal(g, 1, 5, 2, 8), SIZES],
            {"reference_mode": "pillar", "align_corners": True},
        ),
        (bfloat16,),
        ROWS,
        pcc=0.999,  # bfloat16 places, a fraction of a pixel apart
        placements=False,
    ),
    Case(
        f"{E}.nlp_create_q_heads_split",
        lambda g: ([normal(g, 2, 1, 33, 256)], {"num_heads": 2, "split_head_dim": 32}),
    ),
    Case(f"{E}.fast_reduce_nc_split", lambda g: ([normal(g, 2, 3, 32, 96)], {"dim": 1, "split_output_width": 32})),
    Case(f"{E}.indexed_fused_update_cache", caches, (bfloat16,), (TILE_LAYOUT,), placements=False),
    Case(
        "ttnn.transformer.fused_recurrent_gated_delta_rule", lambda g: recurrent(g, output_final_state=True), pcc=0.999
    ),
    Case(
        "ttnn.transformer.fused_recurrent_gated_delta_rule/every state",
        lambda g: recurrent(g, output_per_token_state=True, scale=0.5, initial_state=normal(g, 1, 4, 32, 64)),
        pcc=0.999,
    ),
]
