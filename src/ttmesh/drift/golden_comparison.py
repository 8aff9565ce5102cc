"""How close a result is to its golden: correlation, or distance in units of the last place (`ttnn.comparison`)."""

from __future__ import annotations

import logging
import math
from typing import Any

import torch

from ttmesh.tensor.tensor import Tensor
from ttmesh.tensor.transfer.transfers import from_torch, to_torch

log = logging.getLogger(__name__)
HALVES = (torch.bfloat16, torch.float16)


def comp_pcc(
    golden: Any, calculated: Any, pcc: float = 0.99, rtol: float = 1e-05, atol: float = 1e-04
) -> tuple[bool, float]:
    """Whether Pearson's correlation is at least `pcc`, and the correlation.

    It is not defined where one side is constant: then closeness within rtol (at least four units of a 16-bit float's
    last place) and atol decides, and the number is 1.0 or 0.0.
    """
    golden, calculated = torch.Tensor(golden), torch.Tensor(calculated)
    rtol = max([rtol, *(4 * torch.finfo(side.dtype).eps for side in (golden, calculated) if side.dtype in HALVES)])
    calculated = calculated.to(golden.dtype)
    unknown = [bool(torch.isnan(side).all()) for side in (golden, calculated)]
    if any(unknown):
        log.warning("%s all nan", "both tensors are" if all(unknown) else "one of the tensors is")
        return all(unknown), float(all(unknown))
    if bool(golden.bool().any()) != bool(calculated.bool().any()):
        log.warning("one of the tensors is all zero: PCC is not defined, closeness decides")
        return _decide_by_closeness(golden, calculated, rtol, atol)
    golden, calculated = golden.flatten(), calculated.flatten()
    if golden.dtype.is_floating_point:
        if golden.dtype is not torch.float64 and golden.dtype is not torch.float16:
            golden, calculated = golden.float(), calculated.float()
        golden, calculated = (torch.nan_to_num(side, 0.0, 0.0, 0.0) for side in (golden, calculated))
    if torch.equal(golden, calculated):
        return True, 1.0
    found = _correlate(golden, calculated)
    if math.isnan(found):
        log.warning("one of the tensors is constant: PCC is not defined, closeness decides")
        return _decide_by_closeness(golden.double(), calculated.double(), rtol, atol)
    return found >= pcc, found


def ulp(x: Tensor | torch.Tensor) -> Tensor | torch.Tensor:
    """The distance from each value to the next larger one of its format, away from zero."""
    if isinstance(x, Tensor):
        return from_torch(_ulp(to_torch(x)))
    return _ulp(x)


def comp_ulp(
    golden: torch.Tensor, calculated: torch.Tensor, ulp_threshold: float, allow_nonfinite: bool = False
) -> tuple[bool | torch.Tensor, str]:
    """Whether every value is within this many units in the last place of the calculated format, and the largest distance."""
    if golden.numel() == 0 and calculated.numel() == 0:
        return True, "Both tensors are empty"
    if not allow_nonfinite and not bool(torch.isfinite(calculated).all()):
        return False, "Calculated tensor contains non-finite values"
    if not _has_same_nonfinite_values(golden, calculated):
        return False, "Tensors are not finite at the same positions"
    finite = torch.isfinite(golden)
    golden, calculated = (torch.where(finite, side, torch.zeros_like(side)) for side in (golden, calculated))
    unit = _ulp(golden.to(calculated.dtype)).to(golden.dtype)
    calculated = calculated.to(golden.dtype)
    distance = (calculated - golden).abs() / unit
    largest = distance.max()
    within = largest <= ulp_threshold
    message = f"Max ULP Delta: {largest}"
    if not bool(within):
        at = tuple(int(i) for i in torch.unravel_index(distance.argmax(), golden.shape))
        message += f" @ {list(at)} = |calculated {calculated[at]} - golden {golden[at]}| / ULP(golden) {unit[at]}"
    return within, message


def _ulp(x: torch.Tensor) -> torch.Tensor:
    size = x.abs()
    largest = torch.tensor(torch.finfo(x.dtype).max, dtype=x.dtype, device="cpu")
    last = largest - torch.nextafter(largest, torch.zeros_like(largest))
    distance = torch.nextafter(size, torch.full_like(size, math.inf)) - size
    return torch.where(size == largest, last, distance)


def _has_same_nonfinite_values(a: torch.Tensor, b: torch.Tensor) -> bool:
    if not torch.equal(a.isnan(), b.isnan()) or not torch.equal(a.isinf(), b.isinf()):
        return False
    return torch.equal(a[a.isinf()].sign().float(), b[b.isinf()].sign().float())


def _correlate(a: torch.Tensor, b: torch.Tensor) -> float:
    """Pearson's correlation, centred in the values' own precision and summed in float64; nan if one is constant."""
    if not a.dtype.is_floating_point:
        a, b = a.float(), b.float()
    a, b = (side - side.mean(dtype=torch.float64).to(side.dtype) for side in (a, b))
    a, b = a.double(), b.double()
    return float((a * b).sum() / torch.sqrt(a.square().sum() * b.square().sum()))


def _decide_by_closeness(
    golden: torch.Tensor, calculated: torch.Tensor, rtol: float, atol: float
) -> tuple[bool, float]:
    close = torch.allclose(golden, calculated, rtol=rtol, atol=atol)
    return close, float(close)
