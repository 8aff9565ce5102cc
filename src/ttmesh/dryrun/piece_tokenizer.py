"""A tokenizer for models whose own is not on this machine: words and pieces of words, numbered as they come."""

from __future__ import annotations

import functools
import importlib
import re
from typing import Any

PIECE = re.compile(r"\s?\w{1,6}|\s?[^\w\s]|\s")
SPECIAL = {"<bos>": 0, "<unk>": 1, "<eos>": 2, "<pad>": 3, "<cls>": 4, "<sep>": 5, "<mask>": 6}
FIRST_PIECE = 10  # numbers below are special
VOCABULARY = 30_000
# A configuration's numbers of tokens that stand for images, sound and their ends, such as image_token_id.
MARKER = re.compile(r"(\w+)_token_(?:id|index)")
ORDINARY = ("bos", "eos", "pad", "unk", "cls", "sep", "mask", "decoder_start", "forced_bos", "forced_eos")
# What Qwen's prompts and processors call two of them; others are <|image|>, <|vision_start|> and so on.
QWEN = {"image": "<|image_pad|>", "video": "<|video_pad|>"}
TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: "
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for part in message['content'] %}"
    "{% if 'text' in part %}{{ part['text'] }}{% elif part['type'] == 'image' %}IMAGE"
    "{% elif part['type'] == 'video' %}VIDEO{% endif %}{% endfor %}{% endif %}"
    "{% if not loop.last %}{{ '\n' }}{% endif %}{% endfor %}"
)


def split_text(text: str) -> list[str]:
    """Short words and pieces of long ones: prompts are about as long as with a real tokenizer."""
    return PIECE.findall(text)


def make_tokenizer(config: Any = None) -> Any:
    """A tokenizer of Hugging Face's library; the configuration says which tokens stand for images and sound."""
    markers = list_markers(config)
    typed = hasattr(config, "type_vocab_size")  # BERT and its relatives also take the number of the sentence
    names = ["input_ids", "token_type_ids", "attention_mask"] if typed else ["input_ids", "attention_mask"]
    tokens = {"bos": "<bos>", "eos": "<eos>", "pad": "<pad>", "unk": "<unk>"}
    if typed:
        tokens |= {"cls": "<cls>", "sep": "<sep>", "mask": "<mask>"}
    tokenizer = _tokenizer_class()(
        SPECIAL | dict(markers.values()),
        model_input_names=names,
        **{f"{kind}_token": name for kind, name in tokens.items()},
    )
    for kind, (name, number) in markers.items():
        setattr(tokenizer, f"{kind}_token", name)
        setattr(tokenizer, f"{kind}_token_id", number)
    tokenizer.chat_template = _write_template({kind: name for kind, (name, _) in markers.items()})
    return tokenizer


def is_made_up(tokenizer: Any) -> bool:
    """Whether `make_tokenizer` made it."""
    return isinstance(tokenizer, _tokenizer_class())


def list_markers(config: Any) -> dict[str, tuple[str, int]]:
    """The tokens that stand for images, sound and their ends: kind -> (text, number)."""
    qwen = str(getattr(config, "model_type", "")).startswith("qwen")
    found = {}
    for name, number in vars(config).items() if config is not None else ():
        kind = MARKER.fullmatch(name)
        if kind is not None and isinstance(number, int) and kind[1] not in ORDINARY:
            found[kind[1]] = (QWEN.get(kind[1], f"<|{kind[1]}|>") if qwen else f"<|{kind[1]}|>", number)
    return found


def _write_template(markers: dict[str, str]) -> str:
    """A chat template: the messages one after the other, with the markers of images and videos."""

    def mark(kind: str) -> str:
        if kind == "image" and "boi" in markers:  # processors put the image's own tokens behind its start
            return markers["boi"]
        return "".join(markers.get(each, "") for each in ("vision_start", kind, "vision_end"))

    return TEMPLATE.replace("IMAGE", mark("image")).replace("VIDEO", mark("video"))


@functools.cache
def _tokenizer_class() -> Any:
    base = importlib.import_module("transformers").PreTrainedTokenizer
    added_token = importlib.import_module("transformers").AddedToken

    class PieceTokenizer(base):  # type: ignore[misc, valid-type]
        """Numbers for the pieces of a text, in the order in which they were first seen."""

        def __init__(self, special: dict[str, int], **options: Any) -> None:
            self._numbers: dict[str, int] = {}
            self._pieces: list[str] = []
            decoder = {number: added_token(name, special=True, normalized=False) for name, number in special.items()}
            super().__init__(added_tokens_decoder=decoder, **options)

        @property
        def vocab_size(self) -> int:
            """As many tokens as a small vocabulary has."""
            return VOCABULARY

        def __len__(self) -> int:
            return VOCABULARY

        def get_vocab(self) -> dict[str, int]:
            """The pieces seen so far and the special tokens."""
            seen = {piece: self._convert_token_to_id(piece) for piece in self._numbers}
            return seen | {token.content: number for number, token in self.added_tokens_decoder.items()}

        def _tokenize(self, text: str, **options: object) -> list[str]:
            return split_text(text)

        def _convert_token_to_id(self, token: str) -> int:
            if token not in self._numbers:
                self._numbers[token] = len(self._numbers)
                self._pieces.append(token)
            return FIRST_PIECE + self._numbers[token] % (VOCABULARY - FIRST_PIECE)

        def _convert_id_to_token(self, index: int) -> str:
            return self._pieces[index - FIRST_PIECE] if 0 <= index - FIRST_PIECE < len(self._pieces) else ""

        def convert_tokens_to_string(self, tokens: list[str]) -> str:
            """The pieces one behind the other."""
            return "".join(tokens)

        def build_inputs_with_special_tokens(self, first: list[int], second: list[int] | None = None) -> list[int]:
            """The start token, then the text."""
            return [SPECIAL["<bos>"], *first, *(second or [])]

        def num_special_tokens_to_add(self, pair: bool = False) -> int:
            """The start token."""
            return 1

        def create_token_type_ids_from_sequences(self, first: list[int], second: list[int] | None = None) -> list[int]:
            """Zeros for the first sentence, ones for the second."""
            return [0] * (1 + len(first)) + [1] * len(second or [])

        def apply_chat_template(self, *args: Any, **options: Any) -> Any:
            """The messages as text, or as numbers without a mask unless one is asked for."""
            return super().apply_chat_template(*args, **{"return_dict": False, **options})

        def save_vocabulary(self, *args: Any, **options: Any) -> tuple[()]:
            """There is none to save."""
            return ()

    return PieceTokenizer
