"""The short version of benchmarks/tracking_soak.py."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tracked import environment

SOAK = Path(__file__).parent.parent.parent / "benchmarks" / "tracking_soak.py"


def test_killed_programs_and_servers_leave_exact_totals():
    command = [sys.executable, str(SOAK), "--seconds", "3", "--programs", "4", "--seed", "7", "--exact-s", "120"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=600)

    assert done.returncode == 0, done.stderr
    assert re.search(r"\d+ programs and 4 servers killed", done.stdout)
    assert "a new server knew it all in" in done.stdout
