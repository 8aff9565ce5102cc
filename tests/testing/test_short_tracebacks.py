"""What pytest shows of an error that ttmesh raised."""

from __future__ import annotations

import pytest

import ttmesh.ttnn as ttnn
from ttmesh.base.tracebacks import is_own_file
from ttmesh.testing.short_tracebacks import shorten


def catch() -> pytest.ExceptionInfo[AttributeError]:
    with pytest.raises(AttributeError) as caught:
        _ = ttnn.lineer
    return caught


def test_the_frames_of_ttmesh_are_hidden() -> None:
    caught = catch()
    assert any(is_own_file(str(entry.path)) for entry in caught.traceback)

    shorten(caught)

    assert [str(entry.path) for entry in caught.traceback] == [__file__]
    assert [str(entry.path) for entry in caught.traceback.cut(path=__file__)] == [__file__], "what pytest does with it"
    assert "ttnn.lineer is no name of TT-NN" in str(caught.getrepr())


def test_they_can_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TTMESH_TRACEBACK", "full")
    caught = catch()
    frames = len(caught.traceback)

    shorten(caught)

    assert len(caught.traceback) == frames > 1
