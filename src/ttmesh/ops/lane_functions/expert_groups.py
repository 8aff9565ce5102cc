"""Routing by groups of experts: DeepSeek's gates choose groups first, and experts among them."""

from __future__ import annotations

import torch
from torch import Tensor as Lanes


def mask_other_groups(ranking: Lanes, groups: int, experts_summed: int, groups_kept: int) -> Lanes:
    """The ranking with -inf outside the best groups; a group counts by the sum of its best experts."""
    grouped = torch.unflatten(ranking, -1, (groups, -1))
    group_scores = torch.topk(grouped, experts_summed, dim=-1).values.sum(-1)
    best = torch.topk(group_scores, groups_kept, dim=-1).indices
    in_best_group = torch.zeros_like(group_scores, dtype=torch.bool).scatter(-1, best, True)[..., None]
    return grouped.masked_fill(~in_best_group, float("-inf")).flatten(-2)
