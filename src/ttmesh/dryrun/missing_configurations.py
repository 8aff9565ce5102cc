"""Where a dry run finds the configuration of a model that is not on this machine, and the processors it makes of it."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

# Where a tt-metal checkout keeps configurations of models.
CONFIGS = (
    "models/*/model_params/{name}",
    "models/demos/*/model_params/{name}",
    "models/demos/*/configs/{name}",
)
FILE = "config.json"
# The loader for each part of a processor, and the module and the table in it that name the part's classes.
PARTS = {
    "tokenizer": "AutoTokenizer",
    "image_processor": "AutoImageProcessor",
    "video_processor": "AutoVideoProcessor",
    "feature_extractor": "AutoFeatureExtractor",
    "audio_processor": "AutoFeatureExtractor",
}
# Settings of image processors that a model's configuration decides, and what it calls them.
SIZES = {"patch_size": "patch_size", "temporal_patch_size": "temporal_patch_size", "merge_size": "spatial_merge_size"}
TABLES = {
    "AutoProcessor": ("processing_auto", "PROCESSOR_MAPPING_NAMES"),
    "AutoImageProcessor": ("image_processing_auto", "IMAGE_PROCESSOR_MAPPING_NAMES"),
    "AutoVideoProcessor": ("video_processing_auto", "VIDEO_PROCESSOR_MAPPING_NAMES"),
    "AutoFeatureExtractor": ("feature_extraction_auto", "FEATURE_EXTRACTOR_MAPPING_NAMES"),
}


def find_configuration(name: Any, given: Path | None = None, subfolder: str = "", file: str = FILE) -> Path | None:
    """The folder with the configuration of this model: in the folder given, or in a tt-metal checkout here."""
    if Path(str(name)).is_dir():
        return None
    folders: Iterator[Path] = (
        path for pattern in CONFIGS for path in Path().glob(pattern.format(name=Path(str(name)).name))
    )
    own = [given / str(name), given / Path(str(name)).name] if given is not None else []
    return next((path for path in (*own, *folders) if (path / subfolder / file).is_file()), None)


def list_processor_parts(cls: Any) -> Mapping[str, str]:
    """The parts that a processor's class takes: argument -> the loader for it."""
    asked = getattr(cls, "attributes", None) or cls.get_attributes()
    return {
        part: next(loader for kind, loader in PARTS.items() if kind in part)
        for part in asked
        if any(kind in part for kind in PARTS)
    }


def make_processor(cls: Any, name: Any) -> Any:
    """A processor of this class, of parts that the library's own loaders find or make up."""
    library = importlib.import_module("transformers")
    parts = {part: getattr(library, loader).from_pretrained(name) for part, loader in list_processor_parts(cls).items()}
    template = next((part.chat_template for part in parts.values() if getattr(part, "chat_template", None)), None)
    return cls(**parts, **({} if template is None else {"chat_template": template}))


def processor_class(loader: str, config: Any) -> Any:
    """The class that the library has for models of this configuration, or None."""
    module, table = TABLES[loader]
    names = getattr(importlib.import_module(f"transformers.models.auto.{module}"), table)
    found = names.get(getattr(config, "model_type", None))
    library = importlib.import_module("transformers")
    if isinstance(found, Mapping):  # release 5: by what computes; 4: a slow class and a fast one, or one
        found = tuple(found.values())
    choices: tuple[Any, ...] = found if isinstance(found, tuple) else (found,)
    makers = (_load_class(library, choice) for choice in choices if choice)
    return next((maker for maker in makers if maker is not None), None)


def make_part(loader: str, name: Any, config: Any) -> Any:
    """What a loader of processors gives for a model without files: its class with the class's own settings, or None."""
    cls = processor_class(loader, config)
    if cls is None:
        return None
    if loader == "AutoProcessor":
        return make_processor(cls, name)
    bins = getattr(config, "num_mel_bins", None)
    part = cls() if bins is None or loader != "AutoFeatureExtractor" else cls(feature_size=bins)
    seen = getattr(config, "vision_config", None)
    for setting, asked in SIZES.items():
        if hasattr(part, setting) and isinstance(getattr(seen, asked, None), int):
            setattr(part, setting, getattr(seen, asked))
    return part


def _load_class(library: Any, name: str) -> Any:
    """A class of the library, or None where it needs a package that is not there."""
    try:
        cls = getattr(library, name, None)
    except ImportError:
        return None
    return None if cls is None or cls.__module__.startswith("transformers.utils.dummy") else cls
