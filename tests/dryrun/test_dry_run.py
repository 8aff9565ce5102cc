"""A dry run allocates, compiles and moves what the real run does, and computes nothing."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import ttmesh
import ttmesh.ttnn as ttnn
from ttmesh.base.records import Allocated, Freed
from ttmesh.dryrun.host_tensors import MissingValueError
from ttmesh.dryrun.memory_log import MemoryLog
from ttmesh.dryrun.run_report import make_report

SOURCE = Path(__file__).parents[2] / "src"
LAYER = """
import sys
import torch
import ttnn

mesh = ttnn.open_mesh_device(ttnn.MeshShape(2, 4))
held = []
for _ in range(int(sys.argv[1])):
    weight = torch.nn.Linear(4096, 8192, bias=False).weight
    held.append(ttnn.as_tensor(
        weight, dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=mesh, memory_config=ttnn.DRAM_MEMORY_CONFIG,
        cache_file_name="cache/weight",
    ))
x = ttnn.from_torch(torch.ones(32, 8192), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=mesh)
y = ttnn.matmul(x, held[0])
print(tuple(y.shape))
if len(sys.argv) > 2:
    print(ttnn.to_torch(ttnn.get_device_tensors(y)[0]).sum().item())
"""


def line_of(text: str) -> int:
    return next(number for number, line in enumerate(LAYER.splitlines(), 1) if text in line)


def run_dry(
    tmp_path: Path, *words: str, options: tuple[str, ...] = (), program: str = LAYER
) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "program.py"
    script.write_text(program)
    command = [sys.executable, "-m", "ttmesh", "dry-run", *options, str(script), *words]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    return subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=300, check=False
    )


def run_small_program() -> None:
    ttnn.set_fabric_config(ttnn.FabricConfig.FABRIC_1D)
    mesh = ttnn.open_mesh_device(ttnn.MeshShape(2, 4), trace_region_size=1 << 20)
    x = ttnn.from_torch(
        torch.ones(8, 1, 64, 64), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=mesh,
        mesh_mapper=ttnn.ShardTensorToMesh(mesh, dim=0),
    )  # fmt: skip
    for _ in range(3):
        x = ttnn.softmax(
            ttnn.all_reduce(ttnn.matmul(x, x, memory_config=ttnn.L1_MEMORY_CONFIG), cluster_axis=1), dim=-1
        )
    ttnn.deallocate(x)
    ttnn.close_mesh_device(mesh)
    ttnn.set_fabric_config(ttnn.FabricConfig.DISABLED)


def test_dry_and_real_agree_on_memory_programs_and_links() -> None:
    log = MemoryLog()
    log.start()
    try:
        run_small_program()
    finally:
        log.stop()
    real = make_report(log)

    with ttmesh.dry_run() as dry:
        run_small_program()

    assert dry.report is not None
    assert dry.report.to_json() == real.to_json()
    assert real.program_runs > 0
    assert real.links


def test_holders_are_listed_oldest_first_whatever_the_numbers_of_their_buffers() -> None:
    for first in range(1, 64):  # sets of numbers have another order for some of these
        log = MemoryLog()
        for number in range(first, first + 8):
            log._hear(Allocated(1, number, (0,), "DRAM", 1024 * number, 1024, 1024, 12, 1024, "matmul", 0, ""))
        log._hear(Freed(1, first + 3))

        assert [use.address for use in log.holders_at(9, 0, "DRAM")] == [
            1024 * n for n in range(first, first + 8) if n != first + 3
        ]


def test_a_program_that_fits_says_what_it_holds(tmp_path: Path) -> None:
    done = run_dry(tmp_path, "2", options=("--json", "report.json", "--html", "report.html"))

    assert done.returncode == 0, done.stderr
    assert "(32, 4096)" in done.stdout
    assert "fits on t3000" in done.stdout
    assert f"program.py:{line_of('ttnn.as_tensor')} in <module>" in "".join(done.stdout.split("\n"))
    assert not (tmp_path / "cache").exists()
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["fits"]
    dram = next(part for part in report["memory"] if part["memory"] == "DRAM")
    assert dram["by_kind"]["weights and inputs"] >= 2 * 4096 * 8192 * 2
    page = (tmp_path / "report.html").read_text()
    assert "<svg" in page
    assert "width=device-width" in page
    assert not re.search(r"<svg[^>]* width=", page), "a drawing is as wide as its window"
    assert "http" not in page.replace("http://www.w3.org", "")


def test_a_program_that_does_not_fit_names_the_holder_and_what_would(tmp_path: Path) -> None:
    done = run_dry(tmp_path, "400")

    assert done.returncode == 1
    assert "does not fit on t3000" in done.stdout
    assert "Out of Memory: Not enough space to allocate 67108864 B DRAM buffer across 12 banks" in done.stdout
    assert "weights and inputs hold" in done.stdout
    assert "Traceback" not in done.stderr


def test_the_status_is_the_users_choice(tmp_path: Path) -> None:
    assert run_dry(tmp_path, "400", options=("--fail-on", "none")).returncode == 0


def test_a_value_that_does_not_exist_is_an_error_that_names_the_line(tmp_path: Path) -> None:
    done = run_dry(tmp_path, "1", "value")

    assert done.returncode == 1
    assert "Tensor.item() or bool() needs a value that a dry run does not compute, at" in done.stderr
    assert f"program.py:{line_of('item()')} in <module>" in done.stderr
    assert "is_dry_run" in done.stderr
    assert "the program failed; as far as it ran, it fits on t3000" in done.stdout


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--fail-on", "sunshine"), "--fail-on 'sunshine' is not known"),
        (("--system", "t300"), "no system named 't300'"),
        (("--json", "/proc/none.json"), "cannot be written"),
    ],
)
def test_wrong_options_are_named(tmp_path: Path, options: tuple[str, ...], text: str) -> None:
    done = run_dry(tmp_path, "1", options=options)

    assert done.returncode == 2
    assert text in done.stderr


def test_missing_values_spread_and_small_tensors_stay_real() -> None:
    with ttmesh.dry_run():
        large, small = torch.randn(1024, 1024), torch.arange(8)
        assert large.is_meta
        assert torch.randn(1024, 1024, generator=torch.Generator().manual_seed(1)).is_meta
        assert (large + 1).is_meta
        assert (large[:2, :2] * torch.ones(2, 2)).is_meta
        assert int(small.sum()) == 28
        target = torch.zeros(2, 2)
        target.copy_(large[:2, :2])
        with pytest.raises(MissingValueError, match="does not compute"):
            target.sum().item()
        assert ttmesh.is_dry_run()
    assert not ttmesh.is_dry_run()
    assert not torch.randn(1024, 1024).is_meta


def test_values_that_do_not_exist_may_be_assumed_and_the_lines_are_reported() -> None:
    with ttmesh.dry_run(assume=2) as run:
        large = torch.randn(1024, 1024)
        assert large[0, 0].item() == 2
        assert large[0, :3].tolist() == [2, 2, 2]
        assert large[:2, 0].numpy().sum() == 4

    assert run.report is not None
    assert any("test_dry_run.py" in line for line in run.report.assumptions)


@pytest.mark.parametrize(
    ("read", "what"),
    [
        (lambda x: torch.allclose(x, x), "torch.allclose"),
        (lambda x: torch.zeros(2, 2).allclose(x[:2, :2]), "Tensor.allclose"),
        (lambda x: torch.unique(x[0]), "torch.unique"),
        (lambda x: torch.unique_consecutive(x[0]), "torch.unique_consecutive"),
        (lambda x: torch.bincount(x[0].long()), "torch.bincount"),
        (lambda x: torch.repeat_interleave(torch.ones(1024), x[0].long()), "torch.repeat_interleave"),
        (lambda x: x[0][x[0] > 0], "indexing by a mask"),
        (lambda x: torch.tensor([x[0, 0], 1.0]), "torch.tensor of numbers"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_functions_that_need_values_name_the_line_or_take_the_assumed_number(
    read: Callable[[torch.Tensor], object], what: str
) -> None:
    with ttmesh.dry_run(), pytest.raises(MissingValueError, match=rf"{what}.* needs a value .*test_dry_run.py:\d+"):
        read(torch.randn(1024, 1024))
    with ttmesh.dry_run(assume=1) as run:
        read(torch.randn(1024, 1024))

    assert run.report is not None
    assert any("test_dry_run.py" in line for line in run.report.assumptions)


def test_a_refusal_that_the_program_catches_is_reported() -> None:
    with ttmesh.dry_run() as run:
        mesh = ttnn.open_mesh_device(ttnn.MeshShape(1, 1))
        with pytest.raises(RuntimeError, match="Not enough space"):
            ttnn.zeros((1, 1, 1 << 20, 1 << 14), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=mesh)
        ttnn.close_mesh_device(mesh)

    assert run.report is not None
    assert not run.report.fits
    assert "Not enough space to allocate 34359738368 B DRAM buffer" in run.report.problem
    assert any("per chip are missing" in line for line in run.report.advice)


def test_the_report_has_circular_buffers_collectives_free_blocks_and_every_chip() -> None:
    with ttmesh.dry_run() as run:
        run_small_program()

    assert run.report is not None
    dram, l1 = run.report.memory
    assert l1.by_kind["circular buffers"] > 0
    assert l1.peak_bytes == sum(l1.by_kind.values())
    assert 0 < dram.largest_free_bytes <= dram.capacity_bytes - sum(dram.by_kind.values())
    assert sorted(dram.by_chip) == list(range(8))
    assert run.report.collectives["ttnn.all_reduce"] == [(64 * 64 * 2, 3)]
    assert run.report.program_cache_hits > 0


def test_a_module_runs_with_its_own_options_and_its_memory_errors_are_reported(tmp_path: Path) -> None:
    (tmp_path / "test_model.py").write_text(
        "import ttnn\n"
        "def test_large():\n"
        "    mesh = ttnn.open_mesh_device(ttnn.MeshShape(1, 1))\n"
        "    ttnn.zeros((1, 1, 1 << 20, 1 << 14), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=mesh)\n"
    )
    command = [
        sys.executable,
        "-m",
        "ttmesh",
        "dry-run",
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "test_model.py",
    ]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=300, check=False
    )

    assert done.returncode == 1, done.stderr
    assert "does not fit on" in done.stdout
    assert "test_model.py:4 in test_large" in done.stdout


def test_a_test_suite_runs_dry_and_reports_after_its_summary(tmp_path: Path) -> None:
    (tmp_path / "test_model.py").write_text(
        "import ttnn\n"
        "def test_sum():\n"
        "    mesh = ttnn.open_mesh_device(ttnn.MeshShape(2, 4))\n"
        "    x = ttnn.ones((1, 1, 32, 32), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=mesh)\n"
        "    assert ttnn.to_torch(ttnn.get_device_tensors(x + x)[0])[0, 0, 0, 0].item() == 3\n"
    )
    command = [
        sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "ttmesh.testing.as_ttnn", "--dry-run",
        "--dry-run-assume", "3", "test_model.py",
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=300, check=False
    )

    assert done.returncode == 0, done.stdout
    assert "fits on t3000 (meshes 2x4)" in done.stdout
    assert "test_model.py:5 in test_sum" in done.stdout


def test_an_interrupted_run_leaves_nothing_behind(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(LAYER + "\nprint('ready', flush=True)\nimport time\ntime.sleep(600)\n")
    command = [sys.executable, "-m", "ttmesh", "dry-run", "--json", "report.json", str(script), "1"]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "PYTHONDONTWRITEBYTECODE": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=environment
    ) as running:
        assert running.stdout is not None
        while "ready" not in running.stdout.readline():
            assert running.poll() is None
        running.send_signal(signal.SIGINT)
        running.communicate(timeout=300)

    assert running.returncode != 0
    assert [path.name for path in tmp_path.iterdir()] == ["program.py"]


@pytest.mark.parametrize("rows", [32, 4096], ids=["small tensors have values", "large ones have none"])
@pytest.mark.parametrize("on_device", [False, True])
def test_tensors_are_not_written_to_files_but_can_be_read_again(tmp_path: Path, rows: int, on_device: bool) -> None:
    path = tmp_path / "cache" / "weight.tensorbin"
    with ttmesh.dry_run(), ttnn.manage_device(0) as device:
        place = device if on_device else None
        made = ttnn.from_torch(torch.ones(rows, 1024), ttnn.bfloat8_b, layout=ttnn.TILE_LAYOUT, device=place)
        ttnn.dump_tensor(path, made)
        read = ttnn.load_tensor(path, device=place)
        assert read.spec == made.spec
        assert ttnn.is_tensor_storage_on_device(read) is on_device
        ttnn._ttnn.tensor.dump_tensor_flatbuffer(str(path.with_suffix("")), made)  # TTTv2's way
        assert ttnn._ttnn.tensor.load_tensor_flatbuffer(str(path.with_suffix(""))).spec.shape == made.spec.shape
        ttnn.as_tensor(torch.ones(rows, 1024), ttnn.bfloat16, cache_file_name=tmp_path / "cache" / "other")
    assert not list(tmp_path.iterdir())
    with pytest.raises(ttmesh.MeshError, match="does not exist"):
        ttnn.load_tensor(path)


def test_a_run_in_which_nothing_ran_claims_no_fit(tmp_path: Path) -> None:
    done = run_dry(tmp_path, program="", options=("--json", "report.json", "--html", "report.html"))

    page, report = (tmp_path / "report.html").read_text(), json.loads((tmp_path / "report.json").read_text())
    assert done.returncode == 1, done.stderr
    assert (report["fits"], report["operations"]) == (None, 0)
    for text in (done.stdout, page, report["verdict"]):
        assert "nothing ran: no operation and no tensor" in text
        assert "fits" not in text
    assert run_dry(tmp_path, program="", options=("--fail-on", "oom")).returncode == 0


def test_an_open_mesh_alone_runs_nothing() -> None:
    with ttmesh.dry_run() as run:
        ttnn.close_mesh_device(ttnn.open_mesh_device(ttnn.MeshShape(1, 1)))

    assert run.report is not None
    assert run.report.fits is None
    assert run.report.verdict == "nothing ran: no operation and no tensor"


def test_the_advised_trace_region_holds_the_trace_that_was_refused() -> None:
    with ttmesh.dry_run() as run:
        mesh = ttnn.open_mesh_device(ttnn.MeshShape(1, 1), trace_region_size=4096)
        x = ttnn.ones((1, 1, 32, 32), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=mesh)
        trace = ttnn.begin_trace_capture(mesh, cq_id=0)
        for _ in range(20):
            x = ttnn.exp(x)
        try:
            ttnn.end_trace_capture(mesh, trace, cq_id=0)
        finally:
            ttnn.close_mesh_device(mesh)

    report = run.report
    assert report is not None
    assert not report.fits
    assert f"Creating trace buffers of size {report.trace_bytes}B" in report.problem
    assert report.trace_region_size >= report.trace_bytes > 4096


def test_tensors_without_an_operation_fit_and_the_report_says_that_none_ran() -> None:
    with ttmesh.dry_run() as run:
        mesh = ttnn.open_mesh_device(ttnn.MeshShape(1, 1))
        kept = ttnn.from_torch(torch.zeros(1, 1, 32, 32), layout=ttnn.TILE_LAYOUT, device=mesh)
        ttnn.close_mesh_device(mesh)

    assert kept.shape == (1, 1, 32, 32)
    assert run.report is not None
    assert run.report.fits
    assert run.report.verdict == "no operation ran; the tensors that it placed fit"


def test_small_tensors_keep_their_values_on_the_device_of_one_without() -> None:
    with ttmesh.dry_run():
        image = torch.rand(3, 1024, 1024)
        scale = torch.as_tensor([0.5, 0.25, 1.0], device=image.device)

        assert not bool((scale == 0).any())
        assert float(torch.tensor(3.0).to(image.device)) == 3
        assert (image / scale[:, None, None]).is_meta


def test_autocast_takes_the_device_of_a_tensor_without_values() -> None:
    with ttmesh.dry_run():
        x = torch.rand(1024, 1024)
        with torch.autocast(device_type=x.device.type, enabled=False):
            assert (x @ x).dtype is torch.float32


def test_a_spectrum_of_samples_without_values_takes_a_window_with_values() -> None:
    with ttmesh.dry_run():
        samples = torch.rand(2, 160_000)
        spectrum = torch.stft(samples, 400, 160, window=torch.hann_window(400), return_complex=True)

        assert spectrum.is_meta
        assert tuple(spectrum.shape) == (2, 201, 1001)


def test_a_value_that_does_not_exist_is_a_question_mark_in_messages() -> None:
    with ttmesh.dry_run():
        error = torch.rand(1024, 1024).mean()

        assert f"error {error:.4f}, {torch.tensor(0.5):.2f}" == "error ?, 0.50"
