"""No operation takes a parameter and says nothing about it."""

from __future__ import annotations

import pytest

from ttmesh.ops import families
from ttmesh.ops.parameter_tags import PER_OPERATION
from ttmesh.ops.parameters import page, unspoken

CATALOGUE = families.load()
NOT_YET = {"ttnn.sparse_matmul"}


@pytest.mark.parametrize("name", sorted(CATALOGUE))
def test_every_parameter_is_used_checked_or_said_to_have_no_effect(name: str) -> None:
    assert unspoken(CATALOGUE[name]) == []


def test_tags_name_operations_that_exist() -> None:
    assert {name for name in PER_OPERATION if name not in CATALOGUE} <= NOT_YET


def test_the_page_gives_every_reason() -> None:
    text = page(CATALOGUE.values())

    assert "`compute_kernel_config`" in text
    assert "math_fidelity" in text
    assert "`sub_core_grids`" in text
