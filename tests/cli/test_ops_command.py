"""`ttmesh ops` says what exists and what does not."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import ttmesh.ttnn as ttnn
from ttmesh import cli
from ttmesh.cli.ops import describe
from ttmesh.ops.catalogue.coverage import MISSING, REASONS, first_line, list_rows
from ttmesh.ops.catalogue.families import load
from ttmesh.ops.catalogue.signatures import registered_names
from ttmesh.ttnn.not_emulated import list_modules, list_names


def test_a_pattern_lists_matching_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["ops", "logadd"]) == 0

    printed = capsys.readouterr().out
    assert "ttnn.logaddexp2_" in printed
    assert "ttnn.matmul" not in printed
    assert "of 504 operations" in printed


def test_a_pattern_that_matches_nothing_is_answered_with_near_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["ops", "sofmax"]) == 2

    assert "no name matches 'sofmax'" in (printed := capsys.readouterr().err)
    assert "Did you mean softmax" in printed


def test_a_pattern_matches_names_with_and_without_their_module(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["ops", "all_gat*"]) == 0

    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert "ttnn.all_gather" in names
    assert "ttnn.experimental.all_gather_async" in names
    assert not any("reduce_scatter" in name for name in names)


def test_where_there_is_no_terminal_every_name_has_a_line_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["ops", "scale_causal_mask"])

    name = "ttnn.scale_causal_mask_hw_dims_softmax_in_place"
    assert any(line.startswith(f"{name} ") for line in capsys.readouterr().out.splitlines())


def test_long_names_are_printed_whole(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["ops", "scale_causal_mask"])

    assert "…" not in capsys.readouterr().out


def test_a_reader_that_goes_away_is_no_error() -> None:
    command = [sys.executable, "-m", "ttmesh", "info", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()

        assert process.stderr.read() == ""
        assert process.wait(180) == 128 + signal.SIGPIPE


def test_a_misspelt_operation_is_answered_with_near_names() -> None:
    with pytest.raises(AttributeError, match=r"module 'ttnn' has no attribute 'sofmax': .* Did you mean softmax"):
        _ = ttnn.sofmax
    with pytest.raises(AttributeError, match=r"Did you mean ttnn\.transformer\.scaled_dot_product_attention\?"):
        _ = ttnn.scaled_dot_product_attention


def test_the_page_has_a_row_for_every_registered_operation(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["ops", "--markdown"])

    printed = capsys.readouterr().out
    assert not [name for name in registered_names() if f"| `{name}` |" not in printed]


def test_no_effect_is_a_page_of_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["ops", "--no-effect"])

    assert "`sub_core_grids`" in capsys.readouterr().out


def test_only_missing_names_have_reasons() -> None:
    found = {row.name: row for row in list_rows(load(), describe)}

    assert all(found[name].status == MISSING for name in REASONS)


def test_names_that_only_raise_are_not_counted_as_emulated() -> None:
    found = {row.name: row.status for row in list_rows(load(), describe)}
    placeholders = [f"{module}.{name}" for module in list_modules() for name in list_names(module)]

    assert [name for name in placeholders if found.get(name, MISSING) != MISSING] == []


def test_operations_are_described_in_our_words_not_in_torchs() -> None:
    torchs = {
        first_line(function)
        for module in (torch, torch.special, torch.nn.functional)
        for function in vars(module).values()
        if callable(function) and isinstance(function.__doc__, str)
    }

    assert [row.name for row in list_rows(load(), describe) if row.remark in torchs - {""}] == []


def test_the_committed_pages_are_what_the_code_says(capsys: pytest.CaptureFixture[str]) -> None:
    docs = Path(__file__).parents[2] / "docs"
    for option, page in (("--markdown", "coverage.md"), ("--no-effect", "no_effect.md")):
        cli.main(["ops", option])
        assert capsys.readouterr().out == (docs / page).read_text(), f"run `make pages`: {page} is out of date"


def test_that_nothing_is_missing_is_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["ops", "--missing", "softmax"]) == 0

    assert capsys.readouterr().out.startswith("Nothing that matches 'softmax' is missing.")
