"""A compute config reaches every FPU that an operation uses, unless TT-NN itself fixes the settings."""

from __future__ import annotations

import harness
import pytest
import torch

from ttmesh.base import numerics_mode
from ttmesh.base.dtypes import MathFidelity
from ttmesh.ops.catalogue import families
from ttmesh.ops.configs.compute_config import WormholeComputeKernelConfig

OPTIONS = ("compute_kernel_config", "compute_config")
# No operation has these as its defaults.
GIVEN = WormholeComputeKernelConfig(math_fidelity=MathFidelity.LoFi, math_approx_mode=False, fp32_dest_acc_en=True)
PACKED_ONLY = "cache"  # what is written into caches is packed, not multiplied: no setting shows


def option_of(case: harness.Case) -> str | None:
    """How the operation calls its compute config."""
    parameters = families.load()[case.operation].function.parameters()
    return next((name for name in OPTIONS if name in parameters), None)


CASES = [case for case in harness.load_cases() if option_of(case) is not None and PACKED_ONLY not in case.operation]


def test_cases_of_many_operations_are_asked() -> None:
    assert len({case.operation for case in CASES}) >= 70


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_compute_config_of_a_call_is_that_of_its_fpus(case: harness.Case) -> None:
    cell = next(cell for cell in harness.cells(case) if cell.mesh == (1, 1))
    option = option_of(case)
    arguments = case.make(torch.Generator().manual_seed(0))
    with harness.mesh_of((1, 1), "cpu", case.system) as mesh, numerics_mode.numerics("realistic"):
        args, kwargs = harness.arguments_on(mesh, cell, [arguments])
        function = families.load()[case.operation].function
        with harness.watch_fpus() as fpus:
            function(*args, **{**kwargs, option: GIVEN})

    assert {(used.fidelity, used.fp32_dest) for used in fpus} <= {(GIVEN.math_fidelity, True)}
