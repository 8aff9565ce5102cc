"""Hugging Face's loaders make up weights and tokenizers in a dry run, and only there."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace

import pytest

import ttmesh
from ttmesh.dryrun.missing_configurations import make_part
from ttmesh.dryrun.piece_tokenizer import list_markers, split_text

FILES = {
    "huggingface_hub/__init__.py": "",
    "huggingface_hub/constants.py": "HF_HUB_OFFLINE = False",
    "transformers/__init__.py": """
class AutoConfig:
    @classmethod
    def from_pretrained(cls, name):
        raise OSError(f"{name} has no configuration")


class Extractor:
    def __init__(self, feature_size=80):
        self.feature_size = feature_size


class Processor:
    patch_size, merge_size, size = 14, 2, 384


class AddedToken(str):
    def __new__(cls, content, **options):
        return super().__new__(cls, content)


class PreTrainedTokenizer:
    def __init__(self, added_tokens_decoder, **options):
        self.added_tokens_decoder, self.chat_template = added_tokens_decoder, None

    def encode(self, text, add_special_tokens=True):
        numbers = [self._convert_token_to_id(piece) for piece in self._tokenize(text)]
        return self.build_inputs_with_special_tokens(numbers) if add_special_tokens else numbers

    def decode(self, numbers):
        return self.convert_tokens_to_string([self._convert_id_to_token(number) for number in numbers])
""",
    "transformers/models/auto/image_processing_auto.py": """
IMAGE_PROCESSOR_MAPPING_NAMES = {"vision": ("Processor", None)}
""",
    "transformers/models/auto/feature_extraction_auto.py": """
FEATURE_EXTRACTOR_MAPPING_NAMES = {"audio": "Extractor"}
""",
    "transformers/configuration_utils.py": """
from pathlib import Path


class PretrainedConfig:
    @classmethod
    def get_config_dict(cls, name, **options):
        if not Path(name).is_dir():
            raise OSError(f"{name} has no configuration")
        return (Path(name) / "config.json").read_text(), options
""",
    "datasets/__init__.py": "from .load import load_dataset",
    "datasets/load.py": """
def load_dataset(name, **options):
    raise OSError(f"{name} is not here")
""",
    "requests.py": """
class ConnectionError(OSError):
    pass


class Response:
    pass


class Session:
    def request(self, method, url):
        raise ConnectionError(url)
""",
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
        if name.startswith("later/"):
            None.endswith("tekken.json")  # release 4.57.6 builds some classes from no file
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
@pytest.mark.parametrize(
    ("name", "kept"), [("no/words", False), ("unknown/words", False), ("known/words", True), ("later/model", False)]
)
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


@pytest.mark.usefixtures("_library")
def test_configurations_come_from_the_folder_given(tmp_path: Path) -> None:
    (tmp_path / "some/model").mkdir(parents=True)
    (tmp_path / "some/model/config.json").write_text("{}")
    with ttmesh.dry_run(configurations=tmp_path):
        from transformers.configuration_utils import PretrainedConfig

        assert PretrainedConfig.get_config_dict("some/model")[0] == "{}"
        with pytest.raises(
            OSError, match=r"other/model has no configuration\n.*put its config.json into FOLDER/other/model"
        ):
            PretrainedConfig.get_config_dict("other/model")
        with pytest.raises(OSError, match="into FOLDER/other/model/text"):
            PretrainedConfig.get_config_dict("other/model", subfolder="text")


@pytest.mark.usefixtures("_library")
def test_data_sets_and_downloads_that_cannot_be_had_are_made_up() -> None:
    with ttmesh.dry_run() as run:
        import datasets
        import requests

        records = datasets.load_dataset("some/records")
        stream = iter(datasets.load_dataset("some/records", streaming=True))
        page = requests.Session().request("GET", "https://example.com/book.txt")
        with pytest.raises(requests.ConnectionError):
            requests.Session().request("POST", "https://example.com/form")

    assert all(next(stream)["label"] == 0 for _ in range(2 * len(records)))
    assert len(records["validation"]) == len(list(records))
    assert records[0]["audio"]["array"].shape == (160_000,)
    assert isinstance(next(iter(records))["text"], str)
    assert page.status_code == 200
    assert len(page.raw.read()) > 1_000_000
    assert run.report is not None
    assert {line.split(":")[0] for line in run.report.assumptions} == {"data set some/records", "https"}
    with pytest.raises(OSError, match="some/records is not here"):
        datasets.load_dataset("some/records")


@pytest.mark.usefixtures("_library")
def test_feature_extractors_make_as_many_features_as_the_model_takes() -> None:
    made = make_part("AutoFeatureExtractor", "some/model", SimpleNamespace(model_type="audio", num_mel_bins=128))

    assert made.feature_size == 128


@pytest.mark.usefixtures("_library")
def test_image_processors_cut_the_patches_that_the_model_takes() -> None:
    seen = SimpleNamespace(patch_size=16, spatial_merge_size=4)

    made = make_part("AutoImageProcessor", "some/model", SimpleNamespace(model_type="vision", vision_config=seen))

    assert (made.patch_size, made.merge_size, made.size) == (16, 4, 384)
    assert make_part("AutoImageProcessor", "some/model", SimpleNamespace(model_type="other")) is None


def test_tokens_for_images_are_those_of_the_configuration() -> None:
    qwen = SimpleNamespace(model_type="qwen2_5_vl", image_token_id=7, vision_start_token_id=8, eos_token_id=2)
    llama = SimpleNamespace(model_type="mllama", image_token_index=9)

    assert list_markers(qwen) == {"image": ("<|image_pad|>", 7), "vision_start": ("<|vision_start|>", 8)}
    assert list_markers(llama) == {"image": ("<|image|>", 9)}
    assert list_markers(None) == {}


def test_prompts_are_about_as_long_as_with_a_real_tokenizer() -> None:
    text = "The quick brown fox jumps over the lazy dog, and then it sleeps. " * 10

    assert 100 <= len(split_text(text)) <= 200
