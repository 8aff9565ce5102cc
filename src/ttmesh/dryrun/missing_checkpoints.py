"""Models without their files: in a dry run Hugging Face's loaders need a configuration, not weights or a tokenizer."""

from __future__ import annotations

import functools
import importlib.util
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from ttmesh.dryrun.tensor_files import without_large_tensors
from ttmesh.testing.import_changes import ImportChanges

# Where a tt-metal checkout keeps configurations of models.
CONFIGS = (
    "models/*/model_params/{name}",
    "models/demos/*/model_params/{name}",
    "models/demos/*/configs/{name}",
)
MISSING = (OSError, ValueError, TypeError, ImportError)  # what the loaders raise for files that are not there


PIECE = re.compile(r"\s?\w{1,6}|\s?[^\w\s]|\s")
FIRST_PIECE = 10  # token numbers below are special


class PieceTokenizer:
    """A tokenizer whose tokens are short words and pieces of long ones: prompts are about as long as with a real one."""

    bos_token_id, eos_token_id, pad_token_id = 0, 2, 3
    bos_token, eos_token, pad_token, chat_template = "<bos>", "<eos>", "<pad>", None
    vocab_size = 30_000
    all_special_ids = (0, 2, 3)

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def encode(self, text: str, add_special_tokens: bool = True, **options: object) -> list[int]:
        """Numbers for the pieces of a text, in the order in which they were first seen."""
        pieces = (self._numbers.setdefault(piece, len(self._numbers)) for piece in PIECE.findall(text))
        first = [self.bos_token_id] if add_special_tokens else []
        return [*first, *(FIRST_PIECE + number % (self.vocab_size - FIRST_PIECE) for number in pieces)]

    def decode(self, tokens: Any, **options: object) -> str:
        """The text of pieces; other tokens are left out."""
        known = list(self._numbers)
        found = [tokens] if isinstance(tokens, int) else [int(token) for token in tokens]
        return "".join(known[token - FIRST_PIECE] for token in found if FIRST_PIECE <= token < FIRST_PIECE + len(known))

    def batch_decode(self, rows: Any, **options: object) -> list[str]:
        """The text of each row."""
        return [self.decode(row) for row in rows]

    def apply_chat_template(self, messages: Any, tokenize: bool = True, **options: object) -> Any:
        """The messages one after the other."""
        text = "\n".join(f"{message['role']}: {message['content']}" for message in messages)
        return self.encode(text) if tokenize else text

    def convert_tokens_to_ids(self, token: str) -> int:
        """The end token: this vocabulary has no named ones."""
        return self.eos_token_id

    def __call__(self, text: Any, **options: object) -> dict[str, Any]:
        """Token numbers and their mask."""
        rows = [self.encode(each) for each in ([text] if isinstance(text, str) else text)]
        rows = rows[0] if isinstance(text, str) else rows  # type: ignore[assignment]
        return {"input_ids": rows, "attention_mask": [1] * len(rows)}

    def __len__(self) -> int:
        return self.vocab_size


class LoaderHooks(ImportChanges):
    """Changes Hugging Face's loaders as soon as the program imports them, and changes them back at the end."""

    def __init__(self, notes: Counter[str]) -> None:
        super().__init__(
            {
                "transformers.modeling_utils": self._change_models,
                "transformers.models.auto.tokenization_auto": self._change_tokenizers,
                "transformers.models.auto.configuration_auto": self._change_configurations,
                "huggingface_hub.constants": self._stay_offline,
                "safetensors": self._change_files,
            }
        )
        self._notes = notes
        self._undo: list[Callable[[], None]] = []

    def stop(self) -> None:
        """Change everything back."""
        super().stop()
        while self._undo:
            self._undo.pop()()

    def _replace(self, owner: Any, make: Callable[[Any], Callable[..., Any]]) -> None:
        """A new `from_pretrained` for a class, made from the old one."""
        old = owner.__dict__["from_pretrained"]
        owner.from_pretrained = classmethod(make(old.__func__))
        self._undo.append(lambda: setattr(owner, "from_pretrained", old))

    def _change_files(self, module: ModuleType) -> None:
        old = module.safe_open
        module.safe_open = without_large_tensors(old)  # type: ignore[attr-defined]
        self._undo.append(lambda: setattr(module, "safe_open", old))

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
                    config = cls.config_class.from_pretrained(config or name)
                if _has_weights(name):
                    return load(cls, name, *args, config=config, **options)
                self._notes[f"weights of {name}: of the sizes that its configuration gives"] += 1
                dtype = options.get("torch_dtype") or options.get("dtype")
                if dtype in (None, "auto"):
                    dtype = getattr(config, "torch_dtype", None)
                return cls._from_config(config, **({} if dtype is None else {"torch_dtype": dtype}))

            return from_pretrained

        self._replace(module.PreTrainedModel, make)

    def _change_tokenizers(self, module: ModuleType) -> None:
        def make(load: Any) -> Callable[..., Any]:
            @functools.wraps(load)
            def from_pretrained(cls: Any, name: Any, *args: Any, **options: Any) -> Any:
                try:
                    found = load(cls, name, *args, **{**options, "local_files_only": True})
                except MISSING:
                    found = None
                if found is None or not _knows_words(found):
                    self._notes[f"tokenizer of {name}: words and pieces of words"] += 1
                    return PieceTokenizer()
                return found

            return from_pretrained

        self._replace(module.AutoTokenizer, make)

    def _change_configurations(self, module: ModuleType) -> None:
        def make(load: Any) -> Callable[..., Any]:
            @functools.wraps(load)
            def from_pretrained(cls: Any, name: Any, **options: Any) -> Any:
                found = (path for pattern in CONFIGS for path in Path().glob(pattern.format(name=Path(name).name)))
                own = next((path for path in found if (path / "config.json").is_file()), None)
                if Path(name).is_dir() or own is None:
                    return load(cls, name, **options)
                return load(cls, str(own), **options)

            return from_pretrained

        self._replace(module.AutoConfig, make)


def _knows_words(tokenizer: Any) -> bool:
    """Whether a tokenizer has a vocabulary: transformers 5 makes some without their files, which have none."""
    tokens = tokenizer.encode("Write a poem, please.", add_special_tokens=False)
    return any(token != getattr(tokenizer, "unk_token_id", None) for token in tokens)


def _has_weights(name: Any) -> bool:
    folder = Path(str(name))
    return any(next(folder.glob(pattern), None) for pattern in ("*.safetensors", "*.bin", "*.pth"))


@contextmanager
def without_checkpoints(notes: Counter[str]) -> Iterator[None]:
    """Models and tokenizers of Hugging Face whose files are not on this machine are made up; `notes` says which."""
    if importlib.util.find_spec("transformers") is None:
        yield
        return
    hooks = LoaderHooks(notes)
    hooks.start()
    try:
        yield
    finally:
        hooks.stop()
