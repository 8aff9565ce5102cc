"""`ttmesh ops` says what exists and what does not."""

from __future__ import annotations

import pytest

from ttmesh import cli
from ttmesh.ops.coverage import MISSING, REASONS, rows
from ttmesh.ops.families import load
from ttmesh.ops.signature_table import registered_names


def test_a_pattern_lists_matching_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["ops", "logadd"]) == 0

    printed = capsys.readouterr().out
    assert "ttnn.logaddexp2_" in printed
    assert "ttnn.matmul" not in printed
    assert "of the 504 operations" in printed


def test_the_page_has_a_row_for_every_registered_operation(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["ops", "--markdown"])

    printed = capsys.readouterr().out
    assert not [name for name in registered_names() if f"| `{name}` |" not in printed]


def test_no_effect_is_a_page_of_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["ops", "--no-effect"])

    assert "`sub_core_grids`" in capsys.readouterr().out


def test_only_missing_names_have_reasons() -> None:
    found = {row.name: row for row in rows(load(), lambda name: False)}

    assert all(found[name].status == MISSING for name in REASONS)
