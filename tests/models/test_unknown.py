"""What is said of a model that has no row, and taking its config from the Hub."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import pytest

from pagesim.errors import PagesimError
from pagesim.models import model
from pagesim.models.catalogue import matching
from pagesim.models.catalogue.fetch import fetched
from pagesim.models.catalogue.unknown import out_of_scope

CONFIG = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 128, "vocab_size": 100, "max_position_embeddings": 256,
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "does"),
    [
        ("black-forest-labs/FLUX.1-dev", "makes images or video by diffusion"),
        ("Wan-AI/Wan2.2-T2V-A14B-Diffusers", "makes images or video by diffusion"),
        ("Qwen/Qwen-Image-Edit-2511", "makes images or video by diffusion"),
        ("Qwen/Qwen3-ASR-1.7B", "takes or makes speech"),
        ("openai/whisper-large-v3", "takes or makes speech"),
        ("inclusionAI/LLaDA2.1-mini", "writes text by diffusion"),
        ("google/diffusiongemma-26B-A4B-it", "writes text by diffusion"),
        ("Qwen/Qwen3-Embedding-8B", "makes embeddings, ranks or classifies"),
        ("BAAI/bge-m3", "makes embeddings, ranks or classifies"),
    ],
)
def test_a_model_that_pagesim_is_not_about_is_named_as_such(name, does) -> None:
    assert str(out_of_scope(name)).startswith(does)
    with pytest.raises(PagesimError, match=rf"by its name it {does}"):
        model(name)


def test_no_model_that_is_known_is_taken_to_be_one_that_writes_no_text() -> None:
    names = [name for spec in matching("") for name in (spec.name, spec.source)]
    assert not [name for name in names if out_of_scope(name.partition("config.json of ")[2] or name)]


def test_an_unknown_id_is_answered_with_how_to_give_its_config() -> None:
    with pytest.raises(PagesimError) as error:
        model("some/model-7B")
    said = str(error.value)
    assert "https://huggingface.co/some/model-7B/blob/main/config.json" in said
    assert "pagesim plan --fetch" in said
    with pytest.raises(PagesimError, match=r"did you mean Qwen/Qwen3-32B or .* Else give its config.json"):
        model("Qwen/Qwen3-33B")


@pytest.mark.parametrize("size", ["Super-120B-A12B", "Ultra-550B-A55B"])
@pytest.mark.parametrize("dtype", ["FP8", "NVFP4"])
def test_a_release_of_which_the_quantized_layers_are_not_known_is_refused_by_name(
    size: str, dtype: str
) -> None:
    for name in (
        f"nvidia/NVIDIA-Nemotron-3-{size}-{dtype}",
        f"nemotron-3-{size[:5].lower()}-{dtype.lower()}",
    ):
        with pytest.raises(
            PagesimError, match=r"put its config.json and its hf_quant_config.json into a folder"
        ):
            model(name)
    assert model(f"nvidia/NVIDIA-Nemotron-3-{size}-BF16").weights_in_words == "bf16"


def test_a_dense_release_in_fp8_counts_its_layers_so() -> None:
    """Qwen3 32B: all but the head and the token table, 151,936 rows of 5,120 each, in 8 bits."""
    spec, base = model("Qwen/Qwen3-32B-FP8-Static-PerTensor"), model("qwen3-32b")
    tables = 2 * 151936 * 5120
    saved = base.weight_bytes_per_gpu(1) - spec.weight_bytes_per_gpu(1)
    assert 0 <= (base.parameters - tables) - saved < 1 << 22  # norms stay, and layers have scales
    assert spec.kv_dtype == "fp8"


def test_models_are_found_by_part_of_a_name_or_an_id() -> None:
    assert [spec.name for spec in matching("QWEN3-0.6")] == ["qwen3-0.6b", "qwen3-0.6b-fp8"]
    assert "mistral-small-3" in [spec.name for spec in matching("Mistral-Small-24B")]
    assert not matching("no such model")


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """Stands in for the Hub's client: has the files that a test gives, and notes what is asked for."""
    files: dict[str, str] = {}
    asked: list[str] = []
    there = SimpleNamespace(files=files, asked=asked, down=None)

    def about(url: str, timeout: float) -> None:
        assert timeout <= 10
        if there.down:
            raise there.down

    def download(repository: str, file: str, local_files_only: bool = False) -> str:
        assert local_files_only or not there.down
        asked.append(f"{repository}/{file}")
        if file not in files:
            raise FileNotFoundError(f"404: no {file}")
        path = tmp_path / file
        path.write_text(files[file])
        return str(path)

    client = SimpleNamespace(hf_hub_download=download, hf_hub_url="{}/{}".format, get_hf_file_metadata=about)
    monkeypatch.setitem(sys.modules, "huggingface_hub", client)
    return there


def test_only_the_config_of_an_unknown_model_is_fetched(hub, tmp_path, succeeds) -> None:
    hub.files["config.json"] = json.dumps(CONFIG)
    assert fetched("me/Mine") == str(tmp_path)
    assert hub.asked == ["me/Mine/config.json", "me/Mine/hf_quant_config.json"]
    assert model(fetched("me/Mine")).hidden == 64
    assert fetched("Qwen/Qwen3-8B") == "Qwen/Qwen3-8B"
    assert len(hub.asked) == 4
    planned = succeeds("plan", "--model", "me/Mine", "--gpu", "h100", "--fetch", "--json").json
    assert planned["options"]["max_model_len"] == 256


def test_a_hub_that_does_not_answer_is_asked_once_and_what_was_fetched_before_is_taken(hub) -> None:
    hub.down = ConnectionError("name not known")
    with pytest.raises(PagesimError, match="of me/Mine cannot be taken from the Hub: name not known; give"):
        fetched("me/Mine")
    assert hub.asked == ["me/Mine/config.json"]  # only among what was fetched before
    hub.files["config.json"] = json.dumps(CONFIG)
    hub.down = LookupError("an error of its HTTP client")
    assert model(fetched("me/Mine")).hidden == 64


def test_what_cannot_be_fetched_is_a_sentence(hub, monkeypatch) -> None:
    with pytest.raises(
        PagesimError, match=r"the config.json of me/Mine cannot be taken from the Hub: 404: no"
    ):
        fetched("me/Mine")
    with pytest.raises(PagesimError, match="did you mean opt-13b"):
        fetched("opt-13")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(PagesimError, match=r"not installed: pip install huggingface_hub, or give the path"):
        fetched("me/Mine")
