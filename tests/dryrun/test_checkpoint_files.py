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


LIBRARY = """
import torch


class AutoConfig:
    dtype = None

    @classmethod
    def from_pretrained(cls, folder):
        return cls()


class AutoModelForCausalLM:
    @classmethod
    def from_config(cls, config, dtype):
        return torch.nn.ModuleDict({"experts": torch.nn.Linear(8, 6, bias=False, dtype=dtype)})
"""
EMPTY = "from contextlib import nullcontext as no_init_weights\n"
SPLIT = """
def revert_weight_conversion(model, tensors):
    return {f"{name}.{i}": row for name, tensor in tensors.items() for i, row in enumerate(tensor.split(3))}
"""
RELEASES = {
    4: ({"modeling_utils.py": EMPTY}, {"experts.weight": (6, 8)}),
    5: (
        {"modeling_utils.py": "", "initialization.py": EMPTY, "core_model_loading.py": SPLIT},
        {"experts.weight.0": (3, 8), "experts.weight.1": (3, 8)},
    ),
}


@pytest.mark.usefixtures("without_hugging_face")
@pytest.mark.parametrize("release", RELEASES)
def test_tensors_are_named_as_in_files_by_every_release_of_transformers(
    release: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, expected = RELEASES[release]
    for name, text in {**files, "__init__.py": LIBRARY}.items():
        (tmp_path / "transformers").mkdir(exist_ok=True)
        (tmp_path / "transformers" / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))

    found = checkpoints.list_tensors(tmp_path)

    assert found == {name: (shape, torch.bfloat16) for name, shape in expected.items()}


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
