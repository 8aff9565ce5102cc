"""Checkpoints without contents: safetensors files of a model's tensors, all holes, from its configuration alone."""

from __future__ import annotations

import importlib
import importlib.util
import json
import shutil
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch

from ttmesh.base.directories import scratch_folder
from ttmesh.base.errors import MeshError
from ttmesh.dryrun.tensor_files import FLOATS

FILE_BYTES = (
    4 << 30
)  # of one file: programs map whole files, and a system may refuse to map more than its memory at once
INDEX = "model.safetensors.index.json"
INTEGERS = {"I64": torch.int64, "I32": torch.int32, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool}
NAMES = {dtype: name for name, dtype in (FLOATS | INTEGERS).items()}
Sizes = Mapping[str, tuple[tuple[int, ...], torch.dtype]]


def list_tensors(folder: Path) -> Sizes:
    """Names, shapes and formats of the tensors that a model of this configuration has."""
    if importlib.util.find_spec("transformers") is None:
        raise MeshError(
            "a checkpoint without contents needs the package transformers, which knows a model's tensors",
            expected="transformers",
            fix="Install it: pip install transformers.",
        )
    models = importlib.import_module("transformers")
    config = models.AutoConfig.from_pretrained(str(folder))
    newer = importlib.util.find_spec("transformers.core_model_loading") is not None  # release 5
    initial = importlib.import_module(f"transformers.{'initialization' if newer else 'modeling_utils'}")
    with torch.device("meta"), initial.no_init_weights():
        model = models.AutoModelForCausalLM.from_config(config, dtype=config.dtype or torch.bfloat16)
    tensors = model.state_dict()
    if newer:  # its models hold experts in one tensor, files one by one
        tensors = importlib.import_module("transformers.core_model_loading").revert_weight_conversion(model, tensors)
    return {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()}


def write_empty_checkpoint(folder: Path, tensors: Sizes) -> None:
    """Files in safetensors format that take no room on disk, and the index over them."""
    files: list[dict[str, dict[str, object]]] = [{}]
    end = 0
    for name, (shape, dtype) in tensors.items():
        size = torch.Size(shape).numel() * dtype.itemsize
        if end and end + size > FILE_BYTES:
            files.append({})
            end = 0
        files[-1][name] = {"dtype": NAMES[dtype], "shape": list(shape), "data_offsets": [end, end + size]}
        end += size
    names = [f"model-{i + 1:05}-of-{len(files):05}.safetensors" for i in range(len(files))]
    for name, header in zip(names, files, strict=True):
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with (folder / name).open("wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            file.truncate(8 + len(text) + max(entry["data_offsets"][1] for entry in header.values()))  # type: ignore[index]
    places = {tensor: name for name, header in zip(names, files, strict=True) for tensor in header}
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": places}))


@contextmanager
def empty_checkpoint(configuration: Path) -> Iterator[Path]:
    """A temporary folder with the files of this one, empty weights and an empty tokenizer configuration."""
    if not (configuration / "config.json").is_file():
        raise MeshError(
            f"{configuration} has no config.json",
            expected="a folder with the configuration of a model",
            fix="Name the folder that the model's config.json is in.",
        )
    tensors = list_tensors(configuration)
    with scratch_folder("ttmesh-checkpoint-") as folder:
        for path in configuration.glob("*"):
            if path.is_file() and path.suffix in (".json", ".py", ".model"):
                shutil.copy(path, folder)
        if not (folder / "tokenizer_config.json").exists():
            (folder / "tokenizer_config.json").write_text("{}")
        write_empty_checkpoint(folder, tensors)
        yield folder
