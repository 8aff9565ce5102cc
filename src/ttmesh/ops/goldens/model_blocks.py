"""Blocks of particular models: delta rule, state space, diffusion, Kimi, colour conversion."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ttmesh.ops.goldens.elementwise import activation_function

LATENT = 32  # states per channel
MAMBA_CHANNELS = 5120  # of the model that TT-NN made repeat_and_interleave_eltwise_mul for


LUMA = {"BT601": (0.299, 0.114), "BT709": (0.2126, 0.0722), "BT2020": (0.2627, 0.0593)}  # weights of red and blue


def rgb_to_yuv(
    input: Tensor,
    *,
    color_space: Any = None,
    input_range: Any = None,
    output_range: Any = None,
    coefficients: Any = None,
    **_: Any,
) -> tuple[Tensor, ...]:
    """Luma, and chroma of half the size, of [3, h, w, t] by the standard's formulas or by given weights."""
    coarse = F.avg_pool2d(input.float().permute(3, 0, 1, 2), 2).permute(1, 2, 3, 0)
    if coefficients is not None:
        pairs = ((input.float(), coefficients.y), (coarse, coefficients.cb), (coarse, coefficients.cr))
        planes = [sum(w * channel for w, channel in zip(row, x, strict=False)) + row[3] for x, row in pairs]
    else:
        signed = getattr(input_range, "name", "MinusOneToOne") == "MinusOneToOne"
        fine, coarse = ((x + 1) / 2 if signed else x for x in (input.float(), coarse))
        red, blue = LUMA[getattr(color_space, "name", "BT601")]
        luma, mean = (red * x[0] + (1 - red - blue) * x[1] + blue * x[2] for x in (fine, coarse))
        chroma = ((coarse[2] - mean) / (2 * (1 - blue)), (coarse[0] - mean) / (2 * (1 - red)))
        limited = getattr(output_range, "name", "Limited") == "Limited"
        planes = [16 + 219 * luma if limited else 255 * luma, *(128 + (224 if limited else 255) * c for c in chroma)]
    return tuple(torch.floor(plane + 0.5).clamp(0, 255)[None] for plane in planes)


def gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    *,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    output_head_major: bool = False,
    **_: Any,
) -> tuple[Tensor, ...]:
    """Token by token: the state decays, then the error of its prediction of v for the key k is added."""
    batch, rows = q.shape[:2]
    value_heads = beta.shape[-1]
    values = v.reshape(batch, rows, value_heads, -1)
    value_dim = values.shape[-1]
    key_dim = q.shape[-1] if q.dim() == 4 else value_dim  # flat keys have the length of values
    queries, keys = (x.float().reshape(batch, rows, -1, key_dim) for x in (q, k))
    if q.dim() == 3:  # flat queries and keys are normalized first
        queries, keys = (x / torch.sqrt(torch.square(x).sum(-1, keepdim=True) + 1e-6) for x in (queries, keys))
    queries, keys = (x.repeat_interleave(value_heads // x.shape[2], 2) for x in (queries, keys))
    state = torch.zeros(batch, value_heads, key_dim, value_dim) if initial_state is None else initial_state.float()
    out = torch.zeros(batch, rows, value_heads, value_dim)
    for t in range(rows):
        state = state * torch.exp(g[:, t].float())[..., None, None]
        error = values[:, t].float() - torch.einsum("bhk,bhkv->bhv", keys[:, t], state)
        state = state + torch.einsum("bhk,bhv->bhkv", keys[:, t], error * beta[:, t, :, None].float())
        out[:, t] = torch.einsum("bhk,bhkv->bhv", queries[:, t], state) * (key_dim**-0.5 if scale is None else scale)
    if output_head_major:
        out = out.transpose(1, 2).flatten(0, 1)
    return (out, state) if output_final_state else (out,)


def recurrent_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    *,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    output_per_token_state: bool = False,
    **_: Any,
) -> tuple[Tensor, Tensor | None]:
    """The rule over one token after the other."""
    state, outputs, states = initial_state, [], []
    for t in range(q.shape[1]):
        token = (x[:, t : t + 1] for x in (q, k, v, g, beta))
        out, state = gated_delta_rule(*token, scale=scale, initial_state=state, output_final_state=True)
        outputs.append(out)
        states.append(state)
    kept = torch.stack(states, 1) if output_per_token_state else state
    return torch.cat(outputs, 1), kept if output_final_state or output_per_token_state else None


def gated_delta_scan(
    L_unit: Tensor,
    v_beta_sc: Tensor,
    k_bd_sc: Tensor,
    intra_attn: Tensor,
    q_decay: Tensor,
    k_decay_t: Tensor,
    dl_exp: Tensor,
    L_inv: Tensor,
    *,
    initial_state: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    state = torch.zeros(len(L_unit), k_bd_sc.shape[-1], v_beta_sc.shape[-1]) if initial_state is None else initial_state
    out = torch.zeros_like(v_beta_sc)
    for i in range(L_unit.shape[1]):
        new_values = torch.linalg.inv(L_unit[:, i]) @ (v_beta_sc[:, i] - k_bd_sc[:, i] @ state)
        out[:, i] = q_decay[:, i] @ state + intra_attn[:, i] @ new_values
        state = state * dl_exp[:, i] + k_decay_t[:, i] @ new_values
    return out, state


def rms_norm_with_activation(
    input_tensor: Tensor,
    epsilon: float = 1e-5,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    residual_input_tensor: Tensor | None = None,
    *,
    activation: Any = None,
    **_: Any,
) -> Tensor:
    x = input_tensor if residual_input_tensor is None else input_tensor + residual_input_tensor
    normed = F.rms_norm(x, x.shape[-1:], None if weight is None else weight.flatten(), epsilon)
    normed = normed if bias is None else normed + bias.flatten()
    return normed if activation is None else activation_function(activation)(normed)


def matmul_addcmul(
    matmul_input_tensor: Tensor,
    matmul_weight_tensor: Tensor,
    scalar: float,
    addcmul_input_tensor1: Tensor,
    addcmul_input_tensor2: Tensor,
    bias_tensor: Tensor | None = None,
    **_: Any,
) -> Tensor:
    weight = matmul_weight_tensor.reshape(matmul_weight_tensor.shape[-2:])
    result = F.linear(matmul_input_tensor, weight.T, None if bias_tensor is None else bias_tensor.flatten())
    return torch.addcmul(addcmul_input_tensor1, result, addcmul_input_tensor2, value=scalar)


def qkv_causal_conv1d_silu(
    input: Tensor,
    history: Tensor,
    tap0: Tensor,
    tap1: Tensor,
    tap2: Tensor,
    tap3: Tensor,
    q_width: int,
    k_width: int,
    v_width: int,
    **_: Any,
) -> tuple[Tensor, ...]:
    channels = input.shape[-1]
    kernel = torch.stack([tap.flatten() for tap in (tap0, tap1, tap2, tap3)], -1).unsqueeze(1)
    window = torch.cat([history, input], 1).float().transpose(1, 2)
    convolved = F.conv1d(window, kernel.float(), groups=channels).transpose(1, 2)
    return torch.split((convolved * torch.sigmoid(convolved)), [q_width, k_width, v_width], dim=-1)


def sigmoid_gated_rms_norm(
    input: Tensor, gate: Tensor, weight: Tensor, num_heads: int, *, epsilon: float = 1e-5, **_: Any
) -> Tensor:
    heads = torch.stack(torch.split(input.float(), num_heads), 0).transpose(1, 2)  # [B, T, H, V]
    normed = F.rms_norm(heads, heads.shape[-1:], weight.float().flatten(), epsilon).flatten(-2)
    return normed / (1 + torch.exp(-gate.float()))


def repeat_and_interleave_mul(a: Tensor, b: Tensor, **_: Any) -> Tensor:
    expanded = b if b.shape[-1] == LATENT * MAMBA_CHANNELS else b.repeat_interleave(LATENT, dim=-1)
    return a.repeat(1, 1, 1, expanded.shape[-1] // a.shape[-1]) * expanded


def prefix_scan(a: Tensor, bx: Tensor, h_prev: Tensor, **_: Any) -> Tensor:
    """The sum of all earlier rows' decayed contributions."""
    decay = torch.cat([torch.ones_like(a[..., :1, :]), a], dim=-2).double()
    inputs = torch.cat([h_prev, bx], dim=-2).double()
    rows = []
    for row in range(1, inputs.shape[-2]):
        contributions = [decay[..., i + 1 : row + 1, :].prod(-2) * inputs[..., i, :] for i in range(row + 1)]
        rows.append(torch.stack(contributions).sum(0))
    return torch.stack(rows, dim=-2).float()


def hc_sum_reduce(input: Tensor, **_: Any) -> Tensor:
    return torch.unflatten(input, -1, (-1, LATENT)).sum(-1)
