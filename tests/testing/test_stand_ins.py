"""Modules that test suites import and that are not installed."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from ttmesh import dropin
from ttmesh.testing import stand_ins
from ttmesh.testing.import_changes import ImportChanges


@pytest.fixture(autouse=True)
def _stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    finders = [finder for finder in sys.meta_path if not isinstance(finder, stand_ins.MissingFinder | ImportChanges)]
    monkeypatch.setattr(sys, "meta_path", finders)
    monkeypatch.setattr(stand_ins, "NEEDED_BY_NAME", ("a_picture_library", "a_picture_library.shapes"))
    monkeypatch.setattr(stand_ins, "ASKED_BY_TRANSFORMERS", {"is_vision_available": "a_picture_library"})
    for name in stand_ins.NEEDED_BY_NAME:
        monkeypatch.delitem(sys.modules, name, raising=False)
    stand_ins.install()
    dropin.install(force=True)


def test_a_name_of_a_missing_module_is_a_type() -> None:
    from a_picture_library import shapes  # type: ignore[import-not-found]

    def draw(circle: shapes.Circle | None) -> bool:
        return isinstance(circle, shapes.Circle)

    class Ellipse(shapes.Circle):  # type: ignore[misc]
        """A shape of the program's own."""

    assert not draw(None)
    with pytest.raises(ModuleNotFoundError, match="a_picture_library is not installed"):
        Ellipse()


def test_a_missing_module_can_be_imported_but_not_used() -> None:
    from a_picture_library.shapes import Circle  # type: ignore[import-not-found]

    with pytest.raises(ModuleNotFoundError, match=r"shapes\.Circle was used, but a_picture_library is not installed"):
        Circle(3)


def test_libraries_that_ask_whether_a_module_is_there_are_told_no() -> None:
    assert importlib.util.find_spec("a_picture_library") is None


def test_a_module_that_was_built_for_another_torch_is_stood_in_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "a_picture_library").mkdir()
    (tmp_path / "a_picture_library" / "__init__.py").write_text("raise RuntimeError('operator nms does not exist')\n")
    about = tmp_path / "a_picture_library-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: a_picture_library\nVersion: 1.0\nRequires-Dist: torch (>=99.0)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, stand_ins.MissingFinder)]
    stand_ins.install()

    from a_picture_library.shapes import Circle  # type: ignore[import-not-found]

    with pytest.raises(ModuleNotFoundError, match="a_picture_library is not installed for this torch"):
        Circle(3)


@pytest.mark.usefixtures("without_hugging_face")
@pytest.mark.parametrize("before", [True, False], ids=["stand-in imported before", "not before"])
def test_transformers_that_asks_by_importing_is_told_no(
    before: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asks = "def is_vision_available():\n    import a_picture_library.shapes\n    return True\n"
    package = tmp_path / "transformers" / "utils"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").write_text("")
    (package / "__init__.py").write_text("from .import_utils import is_vision_available\n")
    (package / "import_utils.py").write_text(asks)
    monkeypatch.syspath_prepend(str(tmp_path))
    if before:
        import a_picture_library.shapes  # noqa: F401
    from transformers.utils import is_vision_available  # type: ignore[import-not-found]

    assert not is_vision_available()


def test_tt_lib_is_taken_from_the_checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    package = tmp_path / "ttnn" / "tt_lib"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("answer = 42\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "tt_lib", raising=False)

    import tt_lib  # type: ignore[import-not-found]

    assert tt_lib.answer == 42


def test_a_module_that_tt_nn_shows_elsewhere_is_taken_from_the_checkout(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(dropin, "FROM_CHECKOUT", {"shown_here": "ttnn/_hidden/lies_there.py"})
    (tmp_path / "ttnn/ttnn/_hidden").mkdir(parents=True)
    (tmp_path / "ttnn/ttnn/_hidden/lies_there.py").write_text("answer = 43\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "shown_here", raising=False)

    import shown_here  # type: ignore[import-not-found]

    assert shown_here.answer == 43


def test_what_no_checkout_has_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dropin, "FROM_CHECKOUT", {"shown_nowhere": "ttnn/_hidden/lies_nowhere.py"})

    with pytest.raises(ModuleNotFoundError, match="shown_nowhere"):
        import shown_nowhere  # type: ignore[import-not-found]  # noqa: F401


def test_tools_around_a_profiler_can_be_imported_but_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "tracy.process_model_log", raising=False)
    monkeypatch.setitem(sys.modules, "tracy", stand_ins._tracy())

    from tracy.process_model_log import run_device_profiler  # type: ignore[import-not-found]

    with pytest.raises(ModuleNotFoundError, match="run_device_profiler was used, but tracy is not installed"):
        run_device_profiler("command")


def test_tools_around_a_profiler_are_those_of_the_checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tools = tmp_path / "tools" / "tracy"
    tools.mkdir(parents=True)
    (tools / "__init__.py").write_text("from .columns import SHOWN\n")
    (tools / "columns.py").write_text("from tracy import signpost\nfrom tracy.names import NAMES\nSHOWN = set(NAMES)\n")
    (tools / "names.py").write_text("NAMES = ['start', 'end']\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("tools", "tools.tracy", "tools.tracy.columns", "tracy.names"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "tracy", stand_ins._tracy())

    from tools.tracy import SHOWN  # type: ignore[import-not-found]

    assert sorted(SHOWN) == ["end", "start"]
