"""Build wheel and sdist, install each in a clean environment and use it as a new user would. `make release`.

The newest Python that has torch gets everything: demo, every example, the notebook, the smoke tests. The other supported
versions of Python that are installed get what needs no torch: commands, server, monitor, exports.
"""

from __future__ import annotations

import argparse
import glob
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
OUT = ROOT / "artefacts" / "release"
FULL = "3.11"
OTHERS = ("3.10", "3.12", "3.13")
WITHOUT_TORCH = ("torch", "safetensors")  # not installed where torch is not
# Examples that take minutes with their defaults are run with less to do.
SHORT = {
    "text_demo": ["--users", "2", "--tokens", "4"],
    "train_cnn": ["--steps", "3"],
    "train_gpt": ["--steps", "3"],
    "train_stages": ["--epochs", "1"],
    "vision_pipeline": ["--images", "64"],
}
OVER_RANKS = {"06_pipeline_over_ranks": 2}  # examples for several processes
COMMANDS = (["--version"], ["--help"], ["info"], ["smi"], ["smi", "--json"], ["monitor", "-n", "1"], ["export", "json"],
            ["export", "csv"], ["leaks"], ["doctor"])  # fmt: skip


class Failure(Exception):
    """A step that did not end as it should."""


def main() -> int:
    """Every step; the first failure ends it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--only", choices=("build", "full", "others"), help="one of the steps; the others were run before"
    )
    only = parser.parse_args().only
    try:
        check_changelog()
        if only in (None, "build"):
            build()
        wheel, sdist = find_built("*.whl"), find_built("*.tar.gz")
        if only in (None, "full"):
            check_fully(wheel, "wheel")
            check_commands(install(find_python(FULL), sdist, "sdist", torch=True), "sdist")
        if only in (None, "others"):
            for version in OTHERS:
                check_other(version, wheel)
    except Failure as failure:
        print(f"release: {failure}", file=sys.stderr)
        return 1
    print(f"release: {wheel.name} and {sdist.name} in {OUT / 'dist'}")
    return 0


def check_changelog() -> None:
    """The version has a dated section in the changelog, and it is the same everywhere."""
    version = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.M)
    inside = re.search(r'^__version__ = "(.+)"', (ROOT / "src/ttmesh/__init__.py").read_text(), re.M)
    if version is None or inside is None or version[1] != inside[1]:
        raise Failure(f"pyproject.toml says {version}, src/ttmesh/__init__.py {inside}")
    if not re.search(
        rf"^## \[{re.escape(version[1])}\] - \d{{4}}-\d\d-\d\d$", (ROOT / "CHANGELOG.md").read_text(), re.M
    ):
        raise Failure(f"CHANGELOG.md has no line `## [{version[1]}] - YYYY-MM-DD`")


def build() -> None:
    """Wheel and sdist, from a clean environment."""
    shutil.rmtree(OUT / "dist", ignore_errors=True)
    python = make_environment(find_python(FULL), "build")
    call(python, "-m", "pip", "install", "-q", "build")
    call(python, "-m", "build", "--outdir", str(OUT / "dist"), str(ROOT))


def check_fully(wheel: Path, name: str) -> None:
    """Everything that a new user with torch can do."""
    python = install(find_python(FULL), f"{wheel}[monitor,web]", name, torch=True)
    call(
        python,
        "-m",
        "pip",
        "install",
        "-q",
        "-c",
        str(ROOT / "constraints.txt"),
        "pytest",
        "pytest-timeout",
        "hypothesis",
        "nbclient",
        "ipykernel",
    )
    check_commands(python, name)
    began = time.monotonic()
    call(python, "-m", "ttmesh", "demo")
    print(f"release: the demo took {time.monotonic() - began:.1f} s")
    listed = call(
        python, "-c", "from ttmesh.showcase.example_files import list_examples as l; print(*[e.name for e in l()])"
    )
    for example in listed.split():
        name = example.rpartition("/")[2]
        ranks = OVER_RANKS.get(name)
        launched = (
            ["launch", "-n", str(ranks), "--engine", "torchdist", "--mesh-per-rank", python, "-m", "ttmesh"]
            if ranks
            else []
        )
        call(python, "-m", "ttmesh", *launched, "examples", example, *SHORT.get(name, []))
    tests = OUT / "tests"
    shutil.rmtree(tests, ignore_errors=True)
    tests.mkdir(parents=True)
    for file in ("test_smoke.py", "conftest.py"):
        shutil.copy(ROOT / "tests" / file, tests / file)
    call(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tests / "test_smoke.py"), cwd=tests)
    run_notebook(python)


def run_notebook(python: Path) -> None:
    """The tutorial's notebook, every cell."""
    shutil.copy(ROOT / "docs" / "tutorial.ipynb", OUT / "tutorial.ipynb")
    code = (
        "import nbformat, nbclient; book = nbformat.read('tutorial.ipynb', 4); "
        "nbclient.NotebookClient(book, timeout=600).execute(); print(len(book.cells), 'cells')"
    )
    call(python, "-c", code, cwd=OUT)


def check_other(version: str, wheel: Path) -> None:
    """What needs no torch, on another Python; one that is not installed is named."""
    try:
        base = find_python(version)
    except Failure as missing:
        print(f"release: not tried: {missing}")
        return
    check_commands(install(base, str(wheel), f"python{version}", torch=False), f"python{version}")


def check_commands(python: Path, name: str) -> None:
    """Commands against a server of their own."""
    socket = OUT / f"{name}.sock"
    socket.unlink(missing_ok=True)
    env = {**clean_environment(os.environ), "TTMESH_SOCKET": str(socket)}
    with subprocess.Popen(
        [python, "-m", "ttmesh", "server"], env=env, stdout=subprocess.PIPE, text=True, cwd=OUT
    ) as server:
        try:
            assert server.stdout is not None
            if "listens at" not in server.stdout.readline():
                raise Failure(f"{name}: the server did not start")
            for arguments in COMMANDS:
                call(python, "-m", "ttmesh", *arguments, env=env, allowed=(0, 1) if arguments == ["doctor"] else (0,))
        finally:
            server.terminate()
    print(f"release: {name}: {len(COMMANDS)} commands and the server")


def install(base: str, what: str | Path, name: str, *, torch: bool) -> Path:
    """A clean environment with the package; without torch, with the other requirements."""
    python = make_environment(base, name)
    pip = [python, "-m", "pip", "install", "-q"]
    if torch:
        call(*pip, "-c", str(ROOT / "constraints.txt"), str(what))
        return python
    call(*pip, "--no-deps", str(what))
    code = "from importlib.metadata import requires; print(*requires('ttmesh'), sep='\\n')"
    lines = call(python, "-c", code).splitlines()
    needed = [line for line in lines if "extra ==" not in line and not line.startswith(WITHOUT_TORCH)]
    call(*pip, *needed)
    return python


def make_environment(base: str, name: str) -> Path:
    """The python of a new virtual environment."""
    folder = OUT / name
    shutil.rmtree(folder, ignore_errors=True)
    call(base, "-m", "venv", str(folder))
    return folder / "bin" / "python"


def find_python(version: str) -> str:
    """An interpreter of this version that starts."""
    home = os.environ.get("PYENV_ROOT", os.path.expanduser("~/.pyenv"))
    for found in (f"python{version}", *glob.glob(f"{home}/versions/{version}.*/bin/python")):
        done = (
            subprocess.run([found, "-c", "import venv"], capture_output=True, check=False)
            if shutil.which(found)
            else None
        )
        if done is not None and done.returncode == 0:
            return found
    raise Failure(f"no Python {version} on this machine")


def find_built(pattern: str) -> Path:
    """The one file that was built."""
    found = list((OUT / "dist").glob(pattern))
    if len(found) != 1:
        raise Failure(f"{len(found)} files {pattern} in {OUT / 'dist'}; run the step `build`")
    return found[0]


def clean_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables without those that would bring the checkout's code in."""
    return {key: value for key, value in variables.items() if key != "PYTHONPATH"}


def call(
    *command: str | Path, env: dict[str, str] | None = None, cwd: Path | None = None, allowed: tuple[int, ...] = (0,)
) -> str:
    """Run a command away from the checkout, without its PYTHONPATH; what it printed."""
    OUT.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    done = subprocess.run(
        list(map(str, command)),
        env=clean_environment(env or os.environ),
        cwd=cwd or OUT,
        capture_output=True,
        text=True,
        check=False,
    )
    shown = " ".join(map(str, command[1:]))[:110]
    print(f"release: {time.monotonic() - began:6.1f} s  {shown}", flush=True)
    if done.returncode not in allowed:
        raise Failure(f"`{shown}` ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
