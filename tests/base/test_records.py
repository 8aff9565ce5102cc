"""What records carry."""

from __future__ import annotations

import pytest

from ttmesh.base.records import SYSTEM_CHARACTERS, shorten_system_name


@pytest.mark.parametrize("name", ["", "t3000", "x" * SYSTEM_CHARACTERS])
def test_the_name_of_a_system_stays_as_it_is(name):
    assert shorten_system_name(name) == name


def test_the_end_of_a_long_name_is_kept_because_it_may_be_a_path():
    found = shorten_system_name("/somewhere" * 20 + "/lab.yaml")

    assert len(found) == SYSTEM_CHARACTERS
    assert found.startswith("…")
    assert found.endswith("/lab.yaml")
