"""The models that are known by name: their layers, their parameters, and what is said of where they stand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from pagesim.errors import PagesimError
from pagesim.models import ModelSpec, model
from pagesim.models.catalogue import known_as, rows
from pagesim.models.layers import StateLayer

TOTALS = [
    # name, and the parameters that transformers 5.23 makes of its config, those of a tower for images too
    ("mistral-7b-v0.1", 7_241_732_096),
    ("mistral-small-3", 23_572_403_200),
    ("mixtral-8x7b", 46_702_792_704),
    ("gpt-oss-20b", 20_914_757_184),
    ("gpt-oss-120b", 116_829_156_672),
    ("gemma3-12b", 11_766_034_176 + 421_290_864),
    ("gemma3-27b", 27_432_406_640),
    ("llama4-scout", 107_769_861_120 + 871_932_416),
    ("qwen3-30b-a3b", 30_532_122_624),
    ("qwen3-235b-a22b", 235_093_634_560),
    ("qwen3-next-80b", 79_674_391_296),
    ("qwen3.5-35b-a3b", 35_107_181_936),
    # What its files hold but for a scale for each block of 128 by 128.
    ("minimax-m2.5", 228_703_644_928 - 62 * (256 * 3 * 288 + 2688)),
    ("kimi-k2.5", 1_026_879_376_368),
    ("deepseek-v3.2", 671_877_929_216 + 58 * 256),  # with the routers' biases, which are buffers there
    ("jamba-1.5-mini", 51_570_323_328),
    ("granite-4-h-small", 32_207_337_984),
    ("nemotron-h-8b", 8_100_852_736),
    ("nemotron-3-nano", 31_577_937_344 + 23 * 128),
    ("falcon-h1-7b", 7_585_513_568),
    ("tinyllama-1.1b", 1_100_048_384),
    ("smollm2-1.7b", 1_711_376_384),
    ("gemma-2-2b", 2_614_341_888),
    ("gemma-2-9b", 9_241_705_984),
    ("gemma-2-27b", 27_227_128_320),
    ("gemma3-1b", 999_885_952),
    ("deepseek-v2-lite", 15_706_484_224),
]

RELEASED = [
    # name, and the numbers that the files of the release hold (gogongxt/python, scripts/models) less those of
    # layers that predict further tokens and of scales
    ("glm-4.5v", 107_710_933_120),
    # an MTP layer: attention, experts with their router and bias, shared expert, two tables, norms
    ("glm-4.7-flash", 31_221_488_576 - (21_763_328 + 613_548_096 + 8_388_608 + 2 * 317_194_240 + 3 * 2048)),
    ("kimi-linear-48b-a3b", 49_122_681_728),
    ("mimo-v2.5-pro", 1_023_244_718_976 - 1_934_715_264 - 61_877_376),
    ("qwen3-30b-a3b-2507", 30_532_122_624),
    ("qwen3-coder-30b-a3b", 30_532_122_624),
    ("qwen3.5-4b", 4_659_865_088 - (25 + 135 + 70) * 2**19 - 5 * 2560 - 2 * 256),
    ("qwq-32b", 32_763_876_352),
]


@pytest.mark.parametrize(("name", "parameters"), RELEASED)
def test_parameters_are_those_that_the_files_of_a_release_hold(name, parameters) -> None:
    assert model(name).parameters == parameters
    assert model(name).weights_are == "exact"


RELEASED_BYTES = [
    # name, and GiB of the files of the release, tables and norms among them, scales of blocks in 32 bits
    ("qwen3-8b-fp8", 8.79),
    ("qwen3-32b-awq", 18.00),
]


@pytest.mark.parametrize(("name", "gib"), RELEASED_BYTES)
def test_a_quantized_release_weighs_what_its_files_do(name, gib) -> None:
    assert model(name).weight_bytes / 2**30 == pytest.approx(gib, abs=0.006)


@pytest.mark.parametrize(("name", "parameters"), TOTALS)
def test_parameters_are_those_of_the_code_of_the_family(name, parameters) -> None:
    assert model(name).parameters == parameters
    assert model(name).weights_are == "exact"


ROWS = {name: rows.Row.model_validate(row) for name, row in rows.names().items()}


@pytest.mark.parametrize(("name", "row"), ROWS.items(), ids=list(ROWS))
def test_every_row_is_a_model_that_its_ids_find_and_says_where_its_numbers_stand(name, row) -> None:
    spec = model(name)
    assert (spec.name, spec.unverified) == (name, row.unverified)
    assert name == name.lower()
    assert row.source == spec.source != ""
    for hub_id in row.ids:
        assert known_as(hub_id) == known_as(hub_id.upper()) == name
        assert model(hub_id) is spec
        assert len(hub_id.split("/")) == 2


def test_no_name_and_no_id_stands_in_two_rows() -> None:
    raw = [row for path in sorted(rows.FOLDER.glob("*.json")) for row in json.loads(path.read_text())]
    assert len(raw) == len(ROWS)
    every = [hub_id.lower() for row in ROWS.values() for hub_id in row.ids]
    assert len(set(every)) == len(every)
    assert not set(every) & set(ROWS)


@pytest.fixture
def rows_of(tmp_path, monkeypatch):
    """Returns what makes the catalogue read files of one's own beside pagesim's."""

    def more(*given: dict[str, Any]) -> None:
        for path in rows.FOLDER.glob("*.json"):
            (tmp_path / path.name).write_text(path.read_text())
        (tmp_path / "mine.json").write_text(json.dumps(given))
        monkeypatch.setattr(rows, "FOLDER", tmp_path)
        rows.names.cache_clear()
        rows.ids.cache_clear()

    yield more
    rows.names.cache_clear()
    rows.ids.cache_clear()


SEEN = {"source": "config.json of me/Qwen3-8B-Long", "date": "2026-11-26"}


def test_adding_a_model_of_a_known_family_is_a_row(rows_of) -> None:
    longer = {"max_position_embeddings": 262144}
    rows_of(
        {"ids": ["me/Qwen3-8B-Long", "me/Qwen3-8B-Longer"], "like": "qwen3-8b", "config": longer, **SEEN},
        {
            "ids": ["me/Qwen3-8B-Long-FP8"],
            "like": "qwen3-8b-long",
            "weights": "fp8",
            "kv_dtype": "fp8",
            **SEEN,
        },
    )
    spec, base = model("me/qwen3-8b-longer"), model("qwen3-8b")
    assert (spec.name, spec.max_model_len, spec.parameters) == ("qwen3-8b-long", 262144, base.parameters)
    assert (spec.source, spec.base) == (SEEN["source"], "")
    packed = model("qwen3-8b-long-fp8")
    assert (packed.base, packed.kv_dtype, packed.max_model_len) == ("qwen3-8b-long", "fp8", 262144)
    assert packed.weights == base.with_weights("fp8").weights


@pytest.mark.parametrize(
    "change", [{"date": "yesterday"}, {"source": None}, {"layers": 3}, {"ids": "me/X"}, {"config": [1]}]
)
def test_a_row_that_is_not_as_the_schema_has_it_is_refused(rows_of, change) -> None:
    rows_of({"name": "mine", "like": "qwen3-8b", **SEEN, **change})
    with pytest.raises(ValidationError):
        model("mine")


def test_a_token_makes_use_of_two_of_mixtrals_eight_experts_and_its_cache_has_grouped_heads() -> None:
    spec = model("mixtral-8x7b")
    assert spec.active_parameters == 12_879_925_248
    assert (spec.attention, spec.kv_bytes_per_token()) == ("GQA", 131_072)
    assert model("qwen3-30b-a3b").kv_bytes_per_token() == 98_304


def test_gpt_oss_weighs_what_its_release_weighs() -> None:
    assert model("gpt-oss-20b").weight_bytes / 1e9 == pytest.approx(13.76, abs=0.01)
    assert model("gpt-oss-120b").weight_bytes / 1e9 == pytest.approx(65.25, abs=0.01)


def test_kimi_has_experts_in_four_bits_and_all_else_in_sixteen() -> None:
    spec = model("kimi-k2.5")
    experts = 60 * 384 * 3 * 7168 * 2048
    # Routers' biases have 32 bits, and two linear layers of an expert a shape of two numbers.
    beside = 60 * 384 * (2 + 2 * 2 * 2)
    assert spec.weight_bytes == 2 * (spec.parameters - experts) + experts * 4.5 / 8 + beside
    assert spec.weights_in_words == "bf16, experts int4"


@pytest.mark.parametrize("name", [name for name in ROWS if model(name).base])
def test_a_quantized_release_is_its_base_in_another_weight_dtype(name) -> None:
    spec, base, row = model(name), model(model(name).base), ROWS[name]
    assert not row.weights or spec.weights == base.with_weights(row.weights).weights
    assert (spec.parameters, spec.cache_layers) == (base.parameters, base.cache_layers)
    if base.weights_in_words == "bf16" and not spec.weights.passed_over:
        assert spec.weight_bytes < 0.75 * base.weight_bytes


LAYOUTS = sorted(
    path.stem
    for path in (Path(__file__).parents[1] / "golden" / "layouts").glob("*.toml")
    if not path.stem.startswith(("toy", "opt"))
)


@pytest.mark.parametrize("name", LAYOUTS)
def test_layers_are_those_of_the_layouts_whose_plans_vllm_made(name) -> None:
    path = Path(__file__).parents[1] / "golden" / "layouts" / f"{name}.toml"
    kept, logged = (
        list(model(each).cache_layers) for each in (name.replace("llama3.1", "llama-3.1"), str(path))
    )
    if name == "nemotron-3-nano":  # its layout is told without an order
        kept, logged = sorted(kept, key=repr), sorted(logged, key=repr)
    assert kept == logged


def test_a_release_whose_config_was_not_seen_says_so_and_why() -> None:
    small = model("mistral-small-3")
    assert small.notes == (f"model mistral-small-3 is unverified: {small.source}",)
    assert "the config.json of mistralai/Mistral-Small-24B-Instruct-2501 was not seen" in small.source
    assert model("gpt-oss-20b").notes == ()
    assert model("gpt-oss-20b").source.startswith("config.json of openai/gpt-oss-20b, copied in ")


def test_a_model_that_only_keeps_states_is_refused() -> None:
    with pytest.raises(PagesimError, match="model m: no layer attends, so it has no KV cache"):
        ModelSpec(
            "m", 2, 64, 64, 4, 4, 16, 100, 100, "nowhere", cached=(StateLayer((3, 64), (4, 16, 16)),) * 2
        )


def test_recurrent_layers_of_a_layer_file_have_no_weights_that_are_known(tmp_path) -> None:
    path = tmp_path / "mine.toml"
    kept = (
        '{kind = "full", kv_heads = 2, head_dim = 64}, {kind = "state", conv = [3, 64], state = [4, 16, 16]}'
    )
    path.write_text(f"max_model_len = 100\nhidden = 64\nffn = 64\nvocab = 100\nlayers = [{kept}]")
    assert model(str(path)).notes == (
        "model mine has recurrent layers whose weights are not known: its weights are an estimate",
    )
    assert model(str(path)).weights_are == "estimated"
    assert model("jamba-1.5-mini").weights_are == "exact"


def test_a_layer_file_says_which_layers_have_which_weight_dtype(tmp_path) -> None:
    path = tmp_path / "mine.toml"
    kept = 'layers = [{kind = "full", kv_heads = 2, head_dim = 64}]'
    moe = "moe = {experts = 4, experts_per_token = 2, expert_ffn = 8}"
    shape = f"max_model_len = 100\nhidden = 64\nffn = 64\nvocab = 100\n{kept}\n{moe}\n"
    path.write_text(shape)
    plain = model(str(path))
    path.write_text(shape + 'weights = {experts = "mxfp4"}')
    packed = model(str(path))
    assert plain.weight_bytes - packed.weight_bytes == 4 * 3 * 64 * 8 * (16 - 4.25) / 8
    assert packed.weights == plain.with_weights("mxfp4").weights
    path.write_text(shape + 'weights = "int4"')
    assert model(str(path)).weights == plain.with_weights("int4").weights


def test_of_ling_3_one_layer_in_six_attends_and_ranks_that_the_engine_refuses_are_refused(tmp_path) -> None:
    kept = [layer.kind for layer in model("ling-3.0-flash").cache_layers]
    assert (kept.count("latent"), kept.count("state")) == (7, 35)
    config = tmp_path / "config.json"
    config.write_text(json.dumps({**rows.config_of("ling-3.0-flash"), "no_kda_lora": False}))
    with pytest.raises(PagesimError, match="no_kda_lora is False; it must be true"):
        model(str(config))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"gating": "per-row"}, "per-head or per-element"),
        ({"num_attention_heads_per_layer": [48]}, "a number for each of the 40 layers"),
    ],
)
def test_what_laguna_has_in_its_attention_is_read_or_refused(tmp_path, change, said) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({**rows.config_of("laguna-xs-2.1"), **change}))
    with pytest.raises(PagesimError, match=said):
        model(str(config))
