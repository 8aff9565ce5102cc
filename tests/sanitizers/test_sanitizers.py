"""Native code runs clean under ASan, UBSan and TSan, also when it is interrupted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ttmesh.chip.formats.kernels import loader

FOLDER = Path(__file__).parent
PRELOADED = {"address,undefined": ("libasan.so", "libubsan.so"), "thread": ("libtsan.so",)}


def _find(library: str) -> str:
    compiler = loader._compiler()
    if compiler is None:
        pytest.skip("no C compiler")
    found = subprocess.run([compiler, f"-print-file-name={library}"], capture_output=True, text=True, check=True)
    if not Path(found.stdout.strip()).is_absolute():
        pytest.skip(f"the compiler has no {library}")
    return found.stdout.strip()


def _run(sanitizers: str, cache: Path, *command: str) -> str:
    environment = {
        **os.environ,
        "LD_PRELOAD": ":".join(_find(library) for library in PRELOADED[sanitizers]),
        "TTMESH_CACHE": str(cache),
        # What Python keeps to its end is no leak. With stacks kept for use after return, gcc 13 lets AVX-512 loads of
        # locals fault.
        "ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=0:exitcode=23",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "TSAN_OPTIONS": "halt_on_error=1:exitcode=23:report_signal_unsafe=0",  # Python's handler only sets a flag
        "OMP_NUM_THREADS": "1" if sanitizers == "thread" else "8",
    }
    script, *rest = command
    done = subprocess.run(
        [sys.executable, str(FOLDER / script), sanitizers, *rest],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-6000:]}"
    assert "Sanitizer" not in done.stderr, done.stderr[-6000:]
    return done.stdout


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.mark.deep
@pytest.mark.parametrize("sanitizers", PRELOADED)
def test_every_kernel_is_clean_under(sanitizers: str, cache: Path) -> None:
    assert "results" in _run(sanitizers, cache, "exercise.py")


@pytest.mark.deep
@pytest.mark.parametrize("sanitizers", PRELOADED)
def test_200_interrupts_with_8_threads_are_clean_under(sanitizers: str, cache: Path) -> None:
    said = _run(sanitizers, cache, "interrupts.py", "200", "1")
    print(said)

    assert "200 interrupts" in said


@pytest.mark.deep
@pytest.mark.parametrize("sanitizers", PRELOADED)
def test_a_fault_is_seen_by(sanitizers: str, cache: Path, tmp_path: Path) -> None:
    """The tests above would see a write into freed memory: one is made on purpose."""
    code = "void fault(char *to) { to[0] = 1; }\n"
    (tmp_path / "fault.c").write_text(code)
    compiler = loader._compiler()
    flags = (f"-fsanitize={sanitizers}", "-shared", "-fPIC", "-o", str(tmp_path / "fault.so"))
    subprocess.run([str(compiler), *flags, str(tmp_path / "fault.c")], check=True)
    script = (
        "import ctypes, torch\n"
        f"library = ctypes.CDLL({str(tmp_path / 'fault.so')!r})\n"
        "tensor = torch.empty(1 << 10)\n"
        "address = tensor.data_ptr()\n"
        "del tensor\n"
        "library.fault(ctypes.c_void_p(address))\n"
    )
    (tmp_path / "fault.py").write_text(script)

    with pytest.raises(AssertionError, match="heap-use-after-free"):
        _run(sanitizers, cache, str(tmp_path / "fault.py"))
