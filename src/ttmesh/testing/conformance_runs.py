"""Run files of a tt-metal checkout on ttmesh, one process per file, and count what passes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ttmesh.base.errors import MeshError

# The tt-metal test files that ttmesh promises to pass, by capability.
PROMISED = (
    "tests/ttnn/unit_tests/base_functionality/test_multi_device.py",
    "tests/ttnn/unit_tests/base_functionality/test_multi_device_events.py",
    "tests/ttnn/unit_tests/base_functionality/test_multi_device_trace.py",
    "tests/ttnn/unit_tests/base_functionality/test_to_and_from_torch.py",
    "tests/ttnn/unit_tests/base_functionality/test_as_tensor.py",
    "tests/ttnn/unit_tests/base_functionality/test_deallocate.py",
    "tests/ttnn/distributed/test_visualization_T3000.py",
    "tests/emule/ccl/test_emule_ccl_microtests.py",
    "tests/ttnn/docs_examples/test_ccl_examples.py",
    "tests/nightly/t3000/ccl/test_all_reduce.py",
    "tests/nightly/t3000/ccl/test_broadcast_op.py",
    "tests/nightly/t3000/ccl/test_mesh_partition.py",
    "tests/nightly/t3000/ccl/test_send_recv_async.py",
    "models/tt_cnn/tests/test_pipeline.py",
)


@dataclass
class FileResult:
    """The result of one test file."""

    file: str
    passed: int = 0
    failed: int = 0
    errors: int = 0
    skipped: int = 0
    seconds: float = 0.0
    trouble: str = ""  # a crash or a time-out
    reasons: Counter[str] = field(default_factory=Counter)
    skip_reasons: Counter[str] = field(default_factory=Counter)

    @property
    def has_passed(self) -> bool:
        """Whether no test failed and the run finished."""
        return not (self.failed or self.errors or self.trouble)

    def as_dict(self) -> dict[str, object]:
        """The result as a dict for JSON."""
        return {**asdict(self), "reasons": dict(self.reasons), "skip_reasons": dict(self.skip_reasons)}


def check_checkout(root: Path) -> None:
    """Raise if a folder is not a tt-metal checkout."""
    if not (root / "tests" / "ttnn").is_dir() or not (root / "conftest.py").is_file():
        raise MeshError(
            f"{root} is not a checkout of tt-metal",
            expected="its tests/ttnn folder and conftest.py",
            fix="Pass the root folder of a checkout.",
        )


def run_files(
    root: Path,
    files: Iterable[str],
    *,
    timeout_s: float,
    options: Sequence[str] = (),
    on_start: Callable[[str], None] = print,
) -> list[FileResult]:
    """Every file in a separate process; a crash or a time-out of one does not stop the others."""
    results = []
    for file in files:
        on_start(file)
        results.append(run_file(root, file, timeout_s=timeout_s, options=options))
    return results


def run_file(root: Path, file: str, *, timeout_s: float, options: Sequence[str] = ()) -> FileResult:
    """One file, through pytest with the drop-in; with the checkout's conftest.py."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        package = str(Path(__file__).parents[2])
        path = os.pathsep.join([package, str(root), *filter(None, [os.environ.get("PYTHONPATH")])])
        command = [
            sys.executable, "-m", "pytest", "-p", "ttmesh.testing.as_ttnn", "-p", "no:cacheprovider", "-q",
            f"--junitxml={report}", *options, file,
        ]  # fmt: skip
        trouble = ""
        try:
            done = subprocess.run(
                command,
                cwd=root,
                env={**os.environ, "PYTHONPATH": path},
                timeout=timeout_s,
                capture_output=True,
                check=False,
            )
            if done.returncode not in (0, 1):
                trouble = _describe_crash(done.returncode, done.stdout + done.stderr)
        except subprocess.TimeoutExpired:
            trouble = f"timed out after {timeout_s:.0f} s"
        result = count_results(file, report) if report.is_file() else FileResult(file)
    result.trouble = trouble
    result.seconds = time.monotonic() - started
    return result


def count_results(file: str, report: Path) -> FileResult:
    """The counts and commonest reasons of a JUnit report."""
    result = FileResult(file)
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        problem = next((case.find(kind) for kind in ("failure", "error") if case.find(kind) is not None), None)
        skipped = case.find("skipped")
        if problem is not None:
            if problem.tag == "failure":
                result.failed += 1
            else:
                result.errors += 1
            result.reasons[shorten_reason(problem.get("message") or problem.text or "")] += 1
        elif skipped is not None:
            result.skipped += 1
            result.skip_reasons[shorten_reason(skipped.get("message") or "")] += 1
        else:
            result.passed += 1
    return result


def shorten_reason(text: str) -> str:
    """One line without addresses and numbers, so that equal reasons count together."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "no message")
    return re.sub(r"0x[0-9a-f]+|\d+\.\d+|\d{3,}", "…", line)[:160]


def _describe_crash(status: int, output: bytes) -> str:
    lines = [line for line in output.decode(errors="replace").splitlines() if line.strip()]
    return f"pytest ended with status {status}: {lines[-1][:160] if lines else 'no output'}"
