"""Models without their files: in a dry run Hugging Face's loaders need a configuration, not weights or a tokenizer."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from ttmesh.dryrun.missing_configurations import find_configuration, make_part, make_processor
from ttmesh.dryrun.missing_datasets import Records
from ttmesh.dryrun.missing_downloads import replace_requests
from ttmesh.dryrun.piece_tokenizer import is_made_up, make_tokenizer
from ttmesh.dryrun.tensor_files import without_large_tensors
from ttmesh.testing.import_changes import ImportChanges

MISSING = (OSError, ValueError, TypeError, ImportError)  # what the loaders raise for files that are not there
# Release 4.57.6 builds a tokenizer from files that are not there, or knows no class: what is then raised varies.
MISSING_TOKENIZER = (*MISSING, AttributeError, LookupError)
MISSING_CONFIGURATION = (
    "A dry run makes up the weights and the tokenizer of {name}, but not its configuration: put its {file} into "
    "FOLDER/{name} and run `ttmesh dry-run --configs FOLDER ...`, or set HF_HUB_OFFLINE=0 to let it be downloaded."
)
Make = Callable[[Any], Callable[..., Any]]


class LoaderHooks(ImportChanges):
    """Changes Hugging Face's loaders as soon as the program imports them, and changes them back at the end."""

    def __init__(self, notes: Counter[str], configurations: Path | None = None) -> None:
        auto = "transformers.models.auto"
        super().__init__(
            {
                "transformers.modeling_utils": self._change_models,
                "transformers.configuration_utils": self._change_configurations,
                "transformers.tokenization_utils_base": self._change_tokenizers,
                f"{auto}.tokenization_auto": lambda module: self._replace(module.AutoTokenizer, self._find_tokenizer),
                "transformers.processing_utils": self._change_processors,
                "transformers.image_processing_base": lambda module: self._make_up(module.ImageProcessingMixin),
                "transformers.video_processing_utils": lambda module: self._make_up(module.BaseVideoProcessor),
                "transformers.feature_extraction_utils": lambda module: self._make_up(module.FeatureExtractionMixin),
                f"{auto}.processing_auto": lambda module: self._make_up_part(module.AutoProcessor),
                f"{auto}.image_processing_auto": lambda module: self._make_up_part(module.AutoImageProcessor),
                f"{auto}.video_processing_auto": lambda module: self._make_up_part(module.AutoVideoProcessor),
                f"{auto}.feature_extraction_auto": lambda module: self._make_up_part(module.AutoFeatureExtractor),
                "diffusers.configuration_utils": self._change_diffusion_configurations,
                "diffusers.models.modeling_utils": self._change_diffusion_models,
                "diffusers.pipelines.pipeline_utils": self._change_pipelines,
                "datasets.load": self._change_datasets,
                "requests": lambda module: self._undo.append(replace_requests(module, notes)),
                "huggingface_hub.constants": self._stay_offline,
                "safetensors": self._change_files,
            }
        )
        self._notes, self._configurations = notes, configurations
        self._undo: list[Callable[[], None]] = []
        self._stopped = False

    def stop(self) -> None:
        """Change everything back."""
        super().stop()
        self._stopped = True
        while self._undo:
            self._undo.pop()()

    def _replace(self, owner: Any, make: Make, method: str = "from_pretrained") -> None:
        """A new class method, made from the old one."""
        own = owner.__dict__.get(method)  # None where a base class has it
        setattr(owner, method, classmethod(make(getattr(owner, method).__func__)))
        self._undo.append(lambda: delattr(owner, method) if own is None else setattr(owner, method, own))

    def _make_up(self, owner: Any, make: Callable[[Any, Any], Any] = lambda cls, name: cls()) -> None:
        """Let a class make up what it finds no files for."""

        def wrap(load: Any) -> Callable[..., Any]:
            @functools.wraps(load)
            def from_pretrained(cls: Any, name: Any, *args: Any, **options: Any) -> Any:
                try:
                    return load(cls, name, *args, **options)
                except MISSING as error:
                    made = make(cls, name)
                    if made is None:
                        raise
                    what = f"{type(made).__name__} of {name}: with the settings that transformers has for all of them"
                    self._notes[what] += 1
                    logging.getLogger(__name__).debug("%s: %s", what, error)
                    return made

            return from_pretrained

        self._replace(owner, wrap)

    def _change_processors(self, module: ModuleType) -> None:
        self._make_up(module.ProcessorMixin, make_processor)
        found = module.ProcessorMixin.from_pretrained.__func__

        def from_pretrained(cls: Any, name: Any, *args: Any, **options: Any) -> Any:
            """The processor, with the chat template of a tokenizer that was made up."""
            processor = found(cls, name, *args, **options)
            if getattr(processor, "chat_template", None) is None and hasattr(processor, "tokenizer"):
                processor.chat_template = processor.tokenizer.chat_template
            return processor

        module.ProcessorMixin.from_pretrained = classmethod(functools.wraps(found)(from_pretrained))
        check = getattr(module.ProcessorMixin, "check_argument_for_proper_class", None)
        if check is None:
            return

        def check_others(processor: Any, name: str, part: Any) -> Any:
            """Release 4 asks for the model's own class of tokenizers."""
            return type(part) if is_made_up(part) else check(processor, name, part)

        module.ProcessorMixin.check_argument_for_proper_class = check_others
        self._undo.append(lambda: setattr(module.ProcessorMixin, "check_argument_for_proper_class", check))

    def _make_up_part(self, owner: Any) -> None:
        def make(cls: Any, name: Any) -> Any:
            config = self._find_configuration(name)
            return None if config is None else make_part(owner.__name__, name, config)

        self._make_up(owner, make)

    def _find_configuration(self, name: Any) -> Any:
        """The configuration of a model, or None where there is none on this machine."""
        try:
            return importlib.import_module("transformers").AutoConfig.from_pretrained(name)
        except MISSING:
            return None

    def _change_files(self, module: ModuleType) -> None:
        old = module.safe_open
        module.safe_open = without_large_tensors(old)  # type: ignore[attr-defined]
        self._undo.append(lambda: setattr(module, "safe_open", old))

    def _change_datasets(self, module: ModuleType) -> None:
        old = module.load_dataset

        @functools.wraps(old)
        def load_dataset(name: Any, *args: Any, **options: Any) -> Any:
            try:
                return old(name, *args, **options)
            except MISSING:
                if self._stopped:  # programs keep the function that they imported
                    raise
                self._notes[f"data set {name}: black images, silence and one sentence"] += 1
                return Records(endless=bool(options.get("streaming")))

        module.load_dataset = load_dataset  # type: ignore[attr-defined]
        self._undo.append(lambda: setattr(module, "load_dataset", old))

    def _stay_offline(self, module: ModuleType) -> None:
        """No waiting for a server: what a dry run reads is on this machine, unless HF_HUB_OFFLINE is set to 0."""
        if "HF_HUB_OFFLINE" in os.environ:
            return
        old = module.HF_HUB_OFFLINE
        module.HF_HUB_OFFLINE = True  # type: ignore[attr-defined]
        self._undo.append(lambda: setattr(module, "HF_HUB_OFFLINE", old))

    def _change_models(self, module: ModuleType) -> None:
        def make(load: Any) -> Callable[..., Any]:
            @functools.wraps(load)
            def from_pretrained(cls: Any, name: Any, *args: Any, config: Any = None, **options: Any) -> Any:
                if config is None or not hasattr(config, "to_dict"):
                    subfolder = options.get("subfolder") or ""
                    config = cls.config_class.from_pretrained(
                        config or name, **({"subfolder": subfolder} if subfolder else {})
                    )
                if _has_weights(Path(str(name)) / (options.get("subfolder") or "")):
                    return load(cls, name, *args, config=config, **options)
                self._notes[f"weights of {name}: of the sizes that its configuration gives"] += 1
                dtype = options.get("torch_dtype") or options.get("dtype")
                if dtype in (None, "auto"):
                    dtype = getattr(config, "torch_dtype", None)
                return cls._from_config(config, **({} if dtype is None else {"torch_dtype": dtype}))

            return from_pretrained

        self._replace(module.PreTrainedModel, make)

    def _change_tokenizers(self, module: ModuleType) -> None:
        self._replace(module.PreTrainedTokenizerBase, self._find_tokenizer)

    def _find_tokenizer(self, load: Any) -> Callable[..., Any]:
        """The loader of tokenizers, which makes one up where there are no files for it."""

        @functools.wraps(load)
        def from_pretrained(cls: Any, name: Any, *args: Any, **options: Any) -> Any:
            try:
                found = load(cls, name, *args, **{**options, "local_files_only": True})
            except MISSING_TOKENIZER:
                found = None
            if found is None or not _knows_words(found):
                self._notes[f"tokenizer of {name}: words and pieces of words"] += 1
                return make_tokenizer(self._find_configuration(name))
            return found

        return from_pretrained

    def _change_configurations(self, module: ModuleType) -> None:
        def make(load: Any) -> Callable[..., Any]:
            @functools.wraps(load)
            def get_config_dict(cls: Any, name: Any, **options: Any) -> Any:
                own = find_configuration(name, self._configurations, options.get("subfolder") or "")
                try:
                    return load(cls, name if own is None else str(own), **options)
                except OSError as error:
                    raise OSError(f"{error}\n{_describe_missing(name, options)}") from error

            return get_config_dict

        newer = getattr(module, "PreTrainedConfig", None)
        self._replace(newer or module.PretrainedConfig, make, "get_config_dict")

    def _change_diffusion_configurations(self, module: ModuleType) -> None:
        def make(load: Any) -> Callable[..., Any]:
            @functools.wraps(load)
            def load_config(cls: Any, name: Any, *args: Any, **options: Any) -> Any:
                file, subfolder = cls.config_name, options.get("subfolder") or ""
                own = find_configuration(name, self._configurations, subfolder, file)
                try:
                    return load(cls, name if own is None else str(own), *args, **options)
                except OSError as error:
                    raise OSError(f"{error}\n{_describe_missing(name, options, file)}") from error

            return load_config

        self._replace(module.ConfigMixin, make, "load_config")

    def _change_diffusion_models(self, module: ModuleType) -> None:
        def make(load: Any) -> Callable[..., Any]:
            @functools.wraps(load)
            def from_pretrained(cls: Any, name: Any, **options: Any) -> Any:
                subfolder = options.get("subfolder") or ""
                if _has_weights(Path(str(name)) / subfolder):
                    return load(cls, name, **options)
                self._notes[f"weights of {name} {subfolder}: of the sizes that its configuration gives"] += 1
                model = cls.from_config(cls.load_config(name, subfolder=subfolder))
                dtype = options.get("torch_dtype")
                return model if dtype is None else model.to(dtype)

            return from_pretrained

        self._replace(module.ModelMixin, make)

    def _change_pipelines(self, module: ModuleType) -> None:
        def make(load: Any) -> Callable[..., Any]:
            @functools.wraps(load)
            def from_pretrained(cls: Any, name: Any, **options: Any) -> Any:
                own = find_configuration(name, self._configurations, file=cls.config_name)
                return load(cls, name if own is None else str(own), **options)

            return from_pretrained

        self._replace(module.DiffusionPipeline, make)


def _describe_missing(name: Any, options: Mapping[str, Any], file: str = "config.json") -> str:
    """Where to put a configuration that was not found."""
    folder = "/".join(filter(None, (str(name), options.get("subfolder"))))
    return MISSING_CONFIGURATION.format(name=folder, file=file)


def _knows_words(tokenizer: Any) -> bool:
    """Whether a tokenizer has a vocabulary: transformers 5 makes some without their files, which have none."""
    tokens = tokenizer.encode("Write a poem, please.", add_special_tokens=False)
    return any(token != getattr(tokenizer, "unk_token_id", None) for token in tokens)


def _has_weights(name: Any) -> bool:
    folder = Path(str(name))
    return any(next(folder.glob(pattern), None) for pattern in ("*.safetensors", "*.bin", "*.pth"))


@contextmanager
def without_checkpoints(notes: Counter[str], configurations: Path | None = None) -> Iterator[None]:
    """Models and tokenizers of Hugging Face whose files are not on this machine are made up; `notes` says which.

    Args:
        notes: what was made up.
        configurations: a folder of configurations, in folders named after the models.
    """
    if importlib.util.find_spec("transformers") is None:
        yield
        return
    hooks = LoaderHooks(notes, configurations)
    hooks.start()
    try:
        yield
    finally:
        hooks.stop()
