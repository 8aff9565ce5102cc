"""What a notebook shows: tensors, meshes and memory as HTML, and what a cell did to the chips' memory."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from types import SimpleNamespace

import pytest
import torch

import ttmesh
import ttmesh.ttnn as ttnn
from ttmesh.notebook import run_tracked_cell


@pytest.fixture
def mesh() -> Iterator[ttnn.MeshDevice]:
    mesh = ttnn.open_mesh_device(ttnn.MeshShape(2, 4))
    yield mesh
    if mesh.is_open():
        ttnn.close_mesh_device(mesh)


def shard(mesh: ttnn.MeshDevice) -> ttnn.Tensor:
    mapper = ttnn.ShardTensorToMesh(mesh, dim=0)
    return ttnn.from_torch(
        torch.zeros(256, 64), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=mesh, mesh_mapper=mapper
    )


def find_cells(html: str) -> list[str]:
    """The texts of the table's cells; fails on tags that are not closed."""
    cells: list[str] = []
    open_tags: list[str] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: object) -> None:
            if tag != "br":
                open_tags.append(tag)
            if tag == "td":
                cells.append("")

        def handle_endtag(self, tag: str) -> None:
            assert open_tags.pop() == tag

        def handle_data(self, data: str) -> None:
            if "td" in open_tags:
                cells[-1] += f"{data} "

    Reader().feed(html)
    assert not open_tags
    return cells


def test_a_tensor_shows_its_spec_and_the_slice_on_every_chip(mesh: ttnn.MeshDevice) -> None:
    html = shard(mesh)._repr_html_()

    assert "<b>[32, 64]</b>" in html
    assert "<b>bfloat16</b>" in html
    cells = find_cells(html)
    assert len(cells) == 8
    assert cells[0] == "device 4 [0:32, :] "
    assert cells[7] == "device 6 [224:256, :] "


def test_chips_that_hold_the_same_have_one_colour(mesh: ttnn.MeshDevice) -> None:
    replicated = ttnn.from_torch(torch.zeros(32, 32), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=mesh)

    colours = [set(re.findall(r"hsla\(\d+", tensor._repr_html_())) for tensor in (replicated, shard(mesh))]

    assert [len(found) for found in colours] == [1, 8]


def test_a_freed_tensor_and_a_closed_mesh_say_so(mesh: ttnn.MeshDevice) -> None:
    tensor = shard(mesh)

    ttnn.deallocate(tensor)
    ttnn.close_mesh_device(mesh)

    assert "<b>deallocated</b>" in tensor._repr_html_()
    assert "<b>closed</b>" in mesh._repr_html_()


def test_a_host_tensor_shows_where_its_shards_would_be(mesh: ttnn.MeshDevice) -> None:
    html = shard(mesh).cpu()._repr_html_()

    assert "<b>host</b>" in html
    assert find_cells(html)[1] == "(0, 1) [32:64, :] "


def test_a_mesh_shows_what_each_chip_holds_also_for_its_submeshes(mesh: ttnn.MeshDevice) -> None:
    corner = mesh.create_submesh(ttnn.MeshShape(1, 1))
    held = ttnn.zeros((32, 32), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=corner)

    cells = find_cells(mesh._repr_html_())

    assert held.is_allocated()
    assert cells[0] == "device 4 (0, 0) DRAM 2 KB L1 0 B "
    assert cells[1] == "device 0 (0, 1) DRAM 0 B L1 0 B "


def test_a_memory_view_draws_taken_and_free_spans(mesh: ttnn.MeshDevice) -> None:
    tensor = shard(mesh)

    html = ttnn.get_memory_view(mesh, ttnn.BufferType.DRAM)._repr_html_()

    assert tensor.is_allocated()
    assert "12</b>" in html
    assert re.findall(r"\d+ B (taken|free)", html) == [
        "free",
        "taken",
        "free",
    ]  # first the rows that were tilized there


def test_a_tracked_cell_reports_what_it_allocated_and_freed_on_each_chip(
    mesh: ttnn.MeshDevice, capsys: pytest.CaptureFixture[str]
) -> None:
    before = shard(mesh)
    kept = []

    def cell() -> None:
        kept.append(ttnn.relu(ttnn.relu(before)))
        ttnn.deallocate(before)

    run_tracked_cell(" track ", cell)

    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["memory", "allocated", "freed", "peak", "now", "chips"]
    assert lines[1].split()[1:9] == ["8", "KB", "8", "KB", "12", "KB", "4", "KB"]
    assert lines[1].endswith("  0, 1, 2, 3, 4, 5, 6, 7")
    assert len(lines) == 2


def test_a_tracked_cell_that_fails_or_closes_its_mesh_is_reported_too(
    mesh: ttnn.MeshDevice, capsys: pytest.CaptureFixture[str]
) -> None:
    tensor = shard(mesh)

    def fail() -> None:
        ttnn.close_mesh_device(mesh)
        raise ValueError("a mistake in the cell")

    with pytest.raises(ValueError, match="a mistake in the cell"):
        run_tracked_cell("track", fail)

    assert not tensor.is_allocated()
    assert capsys.readouterr().out.splitlines()[1].split()[1:9] == ["0", "B", "4", "KB", "4", "KB", "0", "B"]


def test_a_cell_without_tensors_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    run_tracked_cell("track", lambda: None)

    assert capsys.readouterr().out == "this cell allocated and freed nothing on a chip\n"


def test_another_word_is_answered_with_the_right_one() -> None:
    with pytest.raises(RuntimeError, match=r"'trac'; expected %%ttmesh track"):
        run_tracked_cell("trac", lambda: None)


def test_loading_the_extension_adds_the_magic(capsys: pytest.CaptureFixture[str]) -> None:
    magics: dict[tuple[str, str], Callable[[str, str], None]] = {}
    ran: list[str] = []
    shell = SimpleNamespace(
        register_magic_function=lambda f, magic_kind, magic_name: magics.update({(magic_kind, magic_name): f}),
        run_cell=ran.append,
    )

    ttmesh.load_ipython_extension(shell)
    magics["cell", "ttmesh"]("track", "x = 1")

    assert ran == ["x = 1"]
    assert "allocated and freed nothing" in capsys.readouterr().out


def test_the_magic_works_in_ipython(capsys: pytest.CaptureFixture[str]) -> None:
    shell = pytest.importorskip("IPython.core.interactiveshell").InteractiveShell.instance()

    shell.run_line_magic("load_ext", "ttmesh")
    shell.run_cell_magic("ttmesh", "track", "tracked = 1 + 1")

    assert shell.user_ns["tracked"] == 2
    assert "allocated and freed nothing" in capsys.readouterr().out
