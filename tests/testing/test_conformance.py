"""`ttmesh conformance` on a small checkout of our own making."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ttmesh.testing.conformance_runs import check_checkout, shorten_reason

SOURCE = str(Path(__file__).parents[2] / "src")

FILES = {
    "conftest.py": "import pytest\n@pytest.fixture\ndef number():\n    return 7\n",
    "tests/ttnn/test_good.py": (
        "import pytest, ttnn\nfrom tracy import signpost\n"
        "def test_ok(number):\n    signpost('x')\n    assert ttnn.MeshShape(1, 2).mesh_size() == 2 and number == 7\n"
        "@pytest.mark.skip(reason='only on a Galaxy')\ndef test_skipped():\n    pass\n"
    ),
    "tests/ttnn/test_bad.py": "import ttnn\ndef test_a():\n    ttnn.no_such_op\ndef test_b():\n    ttnn.no_such_op\n",
    "tests/ttnn/test_crash.py": "import os\ndef test_dies():\n    os._exit(9)\n",
    "tests/ttnn/test_hang.py": "import time\ndef test_sleeps():\n    time.sleep(60)\n",
}


@pytest.fixture
def checkout(tmp_path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def conformance(checkout: Path, *arguments: str) -> tuple[subprocess.CompletedProcess[str], list[dict[str, Any]]]:
    command = [sys.executable, "-m", "ttmesh", "conformance", str(checkout), *arguments, "--json", "out.json"]
    env = {**os.environ, "PYTHONPATH": SOURCE}
    done = subprocess.run(command, cwd=checkout, env=env, capture_output=True, text=True, timeout=300, check=False)
    return done, json.loads((checkout / "out.json").read_text())


def test_it_counts_and_goes_on_through_crashes(checkout) -> None:
    files = [f"tests/ttnn/test_{name}.py" for name in ("good", "bad", "crash")]

    done, (good, bad, crash) = conformance(checkout, *files)

    assert done.returncode == 1, done.stderr
    assert "1 of 3 files whole, 1 tests passed, 2 failed" in done.stdout
    assert (good["passed"], good["skipped"], good["trouble"]) == (1, 1, "")
    assert list(good["skip_reasons"]) == ["only on a Galaxy"]
    assert bad["failed"] == 2
    assert "ttnn.no_such_op is no name of TT-NN" in next(iter(bad["reasons"]))
    assert "status 9" in crash["trouble"]


def test_a_file_that_hangs_is_given_up(checkout) -> None:
    done, (hang,) = conformance(checkout, "tests/ttnn/test_hang.py", "--timeout", "2")

    assert done.returncode == 1
    assert "timed out after 2 s" in hang["trouble"]


def test_a_folder_that_is_no_checkout_is_refused(tmp_path) -> None:
    with pytest.raises(RuntimeError, match="is not a checkout of tt-metal"):
        check_checkout(tmp_path)


def test_equal_reasons_count_together() -> None:
    assert shorten_reason("\nPCC 0.91234 of 0x7f00ff\nmore") == shorten_reason("PCC 0.55555 of 0x123456")
