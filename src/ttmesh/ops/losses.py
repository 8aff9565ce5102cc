"""Losses: mse_loss and l1_loss, element by element or reduced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ttmesh.base.dtypes import PrintedEnum
from ttmesh.ops.activations import UnaryOpType
from ttmesh.ops.binary import binary
from ttmesh.ops.entry import OpFunction, composite
from ttmesh.ops.reductions import mean, sum_
from ttmesh.tensor.memory_config import MemoryConfig
from ttmesh.tensor.tensor import Tensor


class LossReductionMode(PrintedEnum):
    """What becomes of the losses of all elements."""

    NONE = 0
    MEAN = 1
    SUM = 2


def _enter(name: str, measure: UnaryOpType, golden: Callable[..., torch.Tensor]) -> OpFunction:
    def expected(reference: torch.Tensor, prediction: torch.Tensor, *, reduction: Any = None) -> torch.Tensor:
        mode = "none" if reduction is None else LossReductionMode(reduction).name.lower()
        return golden(reference, prediction, reduction=mode)

    def loss(
        input_reference: Tensor,
        input_prediction: Tensor,
        reduction: LossReductionMode | None,
        memory_config: MemoryConfig | None,
        output_tensor: Tensor | None,
    ) -> Tensor:
        """The difference of two tensors, measured per element; the mean or sum of all on request."""
        result: Tensor = binary["subtract"](
            input_reference,
            input_prediction,
            memory_config=memory_config,
            output_tensor=output_tensor,
            activations=[measure],
        )
        if reduction in (None, LossReductionMode.NONE):
            return result
        reduce = mean if reduction is LossReductionMode.MEAN else sum_
        reduced: Tensor = reduce(result, memory_config=memory_config or input_reference.memory_config())
        return reduced

    return composite(f"ttnn.{name}", golden=expected)(loss)


mse_loss = _enter("mse_loss", UnaryOpType.SQUARE, torch.nn.functional.mse_loss)
l1_loss = _enter("l1_loss", UnaryOpType.ABS, torch.nn.functional.l1_loss)
