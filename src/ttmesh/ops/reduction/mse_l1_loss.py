"""mse_loss and l1_loss, elementwise or reduced, and the Pearson correlation of two torch tensors."""

from __future__ import annotations

from typing import Any

import torch

from ttmesh.base.dtypes import PrintedEnum
from ttmesh.ops.catalogue.definition import Golden, OpFunction, composite
from ttmesh.ops.configs.activations import UnaryOpType
from ttmesh.ops.elementwise.binary import binary
from ttmesh.ops.goldens import training as goldens
from ttmesh.ops.reduction.reduce import mean, sum_
from ttmesh.tensor.spec.memory_config import MemoryConfig
from ttmesh.tensor.tensor import Tensor


class LossReductionMode(PrintedEnum):
    """How the elementwise losses are reduced."""

    NONE = 0
    MEAN = 1
    SUM = 2


def _define_loss(name: str, measure: UnaryOpType, golden: Golden) -> OpFunction:
    def loss(
        input_reference: Tensor,
        input_prediction: Tensor,
        reduction: LossReductionMode | None,
        memory_config: MemoryConfig | None,
        output_tensor: Tensor | None,
    ) -> Tensor:
        """The loss of each element, or its mean or sum over all elements."""
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

    return composite(f"ttnn.{name}", golden=golden)(loss)


mse_loss = _define_loss("mse_loss", UnaryOpType.SQUARE, goldens.mse_loss)
l1_loss = _define_loss("l1_loss", UnaryOpType.ABS, goldens.l1_loss)


@composite("ttnn.pearson_correlation_coefficient")
def pearson_correlation_coefficient(expected: Any, actual: Any) -> float:
    """The correlation of two torch or numpy arrays: 1 if they are equal; positions that are not finite are left out."""
    a, b = (torch.as_tensor(values).double().flatten() for values in (expected, actual))
    if bool(torch.isnan(a).all()) or bool(torch.isnan(b).all()):
        return float(bool(torch.isnan(a).all()) and bool(torch.isnan(b).all()))
    if not (a.any() or b.any()) or torch.equal(a, b):
        return 1.0
    if bool(a.any()) != bool(b.any()):
        return 0.0
    finite = torch.isfinite(a) & torch.isfinite(b)
    a, b = a[finite], b[finite]
    if a.numel() < 2 or a.std() == 0 or b.std() == 0:
        return float(torch.allclose(a, b))
    return float(torch.corrcoef(torch.stack([a, b]))[0, 1])
