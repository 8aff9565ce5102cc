"""Checkpoints without contents, and files whose large tensors are not read."""

from __future__ import annotations

from pathlib import Path

import pytest
import safetensors
import torch
from safetensors.torch import save_file

from ttmesh.base.errors import MeshError
from ttmesh.dryrun import empty_checkpoint as checkpoints
from ttmesh.dryrun.tensor_files import without_large_tensors


def test_a_checkpoint_without_contents_takes_no_room_and_names_every_tensor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text("{}")
    sizes = {"norm": ((5,), torch.float32)}
    sizes |= {f"experts.{i}.weight": ((1 << 20, 1 << 10), torch.bfloat16) for i in range(5)}
    monkeypatch.setattr(checkpoints, "list_tensors", lambda folder: sizes)

    with checkpoints.empty_checkpoint(tmp_path) as folder:
        files = sorted(folder.glob("*.safetensors"))
        seen = {}
        for path in files:
            with safetensors.safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118  (no mapping)
                    part = file.get_slice(name)
                    seen[name] = (tuple(part.get_shape()), part.get_dtype())
        on_disk = sum(path.stat().st_blocks * 512 for path in files)

    assert seen == {name: (shape, checkpoints.NAMES[dtype]) for name, (shape, dtype) in sizes.items()}
    assert len(files) == 3
    assert on_disk < 1 << 20
    assert not folder.exists()


def test_a_folder_without_a_configuration_is_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(MeshError, match=r"has no config\.json; expected a folder with the configuration"),
        checkpoints.empty_checkpoint(tmp_path),
    ):
        pass


def test_large_tensors_of_a_file_have_no_values_and_small_ones_do(tmp_path: Path) -> None:
    save_file({"large": torch.zeros(1024, 1024), "small": torch.arange(4.0)}, tmp_path / "a.safetensors")

    with without_large_tensors(safetensors.safe_open)(tmp_path / "a.safetensors", framework="pt") as file:
        assert file.get_tensor("large").is_meta
        assert file.get_tensor("large").shape == (1024, 1024)
        assert torch.equal(file.get_tensor("small"), torch.arange(4.0))
        assert set(file.keys()) == {"large", "small"}
