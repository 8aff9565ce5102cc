"""Hugging Face's loaders make up weights and tokenizers in a dry run, and only there."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

import ttmesh
from ttmesh.dryrun.missing_checkpoints import PieceTokenizer

FILES = {
    "huggingface_hub/__init__.py": "",
    "huggingface_hub/constants.py": "HF_HUB_OFFLINE = False",
    "transformers/__init__.py": "",
    "transformers/models/__init__.py": "",
    "transformers/models/auto/__init__.py": "",
    "transformers/modeling_utils.py": """
class Config:
    torch_dtype = None

    @classmethod
    def from_pretrained(cls, name):
        return cls()

    def to_dict(self):
        return {}


class PreTrainedModel:
    config_class = Config

    @classmethod
    def from_pretrained(cls, name, *args, config=None, **options):
        raise OSError(f"{name} has no weights")

    @classmethod
    def _from_config(cls, config):
        return cls()
""",
    "transformers/models/auto/tokenization_auto.py": """
class AutoTokenizer:
    @classmethod
    def from_pretrained(cls, name, **options):
        if name.startswith("some/"):
            raise OSError(f"{name} has no tokenizer")
        return cls(name)

    def __init__(self, name):
        self.unk_token_id, self.name = 0, name

    def encode(self, text, add_special_tokens=True):
        return {"no/words": [], "unknown/words": [0, 0], "known/words": [0, 1]}[self.name]
""",
}


@pytest.fixture
def _library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without_hugging_face: None) -> None:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("_library")
def test_a_model_without_files_has_the_sizes_of_its_configuration() -> None:
    with ttmesh.dry_run() as run:
        from transformers.modeling_utils import PreTrainedModel
        from transformers.models.auto.tokenization_auto import AutoTokenizer

        assert isinstance(PreTrainedModel.from_pretrained("some/model"), PreTrainedModel)
        tokenizer = AutoTokenizer.from_pretrained("some/model")

    assert run.report is not None
    assert any(line.startswith("weights of some/model") for line in run.report.assumptions)
    assert any(line.startswith("tokenizer of some/model") for line in run.report.assumptions)
    text = "Tell me about transformers."
    assert tokenizer.decode(tokenizer.encode(text)) == text
    for loader in (PreTrainedModel, AutoTokenizer):
        with pytest.raises(OSError, match="some/model has no"):
            loader.from_pretrained("some/model")


@pytest.mark.usefixtures("_library")
@pytest.mark.parametrize(("name", "kept"), [("no/words", False), ("unknown/words", False), ("known/words", True)])
def test_a_tokenizer_that_was_made_without_its_files_is_replaced(name: str, kept: bool) -> None:
    with ttmesh.dry_run() as run:
        from transformers.models.auto.tokenization_auto import AutoTokenizer

        found = AutoTokenizer.from_pretrained(name)

    assert isinstance(found, AutoTokenizer) is kept
    assert run.report is not None
    assert bool(run.report.assumptions) is not kept


@pytest.mark.usefixtures("_library")
def test_loaders_do_not_wait_for_a_server_unless_they_are_told_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    with ttmesh.dry_run():
        from huggingface_hub import constants

        assert constants.HF_HUB_OFFLINE is True
    assert constants.HF_HUB_OFFLINE is False
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    with ttmesh.dry_run():
        assert constants.HF_HUB_OFFLINE is False


@pytest.mark.usefixtures("_library")
def test_a_loader_that_was_looked_for_before_it_is_imported_is_changed_too() -> None:
    with ttmesh.dry_run():
        assert importlib.util.find_spec("transformers.modeling_utils") is not None
        from transformers.modeling_utils import PreTrainedModel

        assert isinstance(PreTrainedModel.from_pretrained("some/model"), PreTrainedModel)


def test_prompts_are_about_as_long_as_with_a_real_tokenizer() -> None:
    text = "The quick brown fox jumps over the lazy dog, and then it sleeps. " * 10

    assert 100 <= len(PieceTokenizer().encode(text)) <= 200
