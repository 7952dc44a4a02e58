"""A model's shape, and the bytes and operations that follow from it."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagesim.errors import PagesimError
from pagesim.hardware import gpu
from pagesim.models import ModelSpec, all_reduce_bytes_per_token, model, models
from pagesim.models.layers import FullLayer, IndexerLayer, LatentLayer, StateLayer, WindowLayer
from pagesim.sizing import capacity


@pytest.mark.parametrize(
    ("name", "kv_bytes"),
    [
        ("opt-13b", 819_200),
        ("opt-175b", 4_718_592),
        ("llama-3-8b", 131_072),
        ("llama-2-70b", 327_680),
        ("deepseek-v3", 576 * 61 * 2),
    ],
)
def test_a_token_takes_this_much_cache(name: str, kv_bytes: int) -> None:
    assert model(name).kv_bytes_per_token() == kv_bytes


def test_fp8_halves_the_cache_where_no_layout_of_its_own_fixes_its_bytes() -> None:
    sparse = model("deepseek-v3.2")
    assert sparse.kv_bytes_per_token("bf16") == 61 * (2 * 576 + 132)
    assert sparse.kv_bytes_per_token("fp8") == 61 * (656 + 132)
    for spec in models():
        if any(layer.kind == "indexer" for layer in spec.cache_layers):
            continue
        assert 2 * spec.kv_bytes_per_token("fp8") == spec.kv_bytes_per_token("fp16")
        assert spec.kv_bytes_per_token("bf16") == spec.kv_bytes_per_token("fp16")


def test_an_unknown_kv_dtype_is_refused_with_the_known_ones() -> None:
    with pytest.raises(PagesimError, match="kv_dtype is 'int3'; it must be one of fp16, bf16, fp8"):
        model("opt-13b").kv_bytes_per_token("int3")


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("opt-125m", 125_239_296),
        ("opt-350m", 331_196_416),
        ("opt-6.7b", 6_658_473_984),
        ("opt-13b", 12_853_473_280),
        ("llama-7b", 6_738_415_616),
        ("llama-2-70b", 68_976_648_192),
        ("llama-3-8b", 8_030_261_248),
        ("llama-3.1-405b", 405_853_388_800),
        ("mistral-7b", 7_248_023_552),
        ("qwen2.5-72b", 72_706_203_648),
        ("qwen3-8b", 8_190_735_360),
        ("deepseek-v3", 671_026_419_200),
    ],
)
def test_parameters_are_those_of_the_released_checkpoint(name: str, parameters: int) -> None:
    assert model(name).parameters == parameters


def test_deepseek_v3_uses_37_of_its_671_billion_parameters_for_a_token() -> None:
    spec = model("deepseek-v3")
    assert spec.active_parameters == pytest.approx(37e9, rel=0.02)
    # Its release notes: 36.6B with the output head, the token table not counted.
    assert spec.linear_flops_per_token == pytest.approx(2 * 36.6e9, rel=0.001)


def test_linear_operations_are_two_a_parameter_without_tables_that_are_only_looked_up() -> None:
    llama, opt = model("llama-7b"), model("opt-13b")
    assert llama.linear_flops_per_token == 2 * (llama.parameters - 32000 * 4096)
    assert opt.linear_flops_per_token == 2 * (opt.parameters - 2050 * 5120)
    assert opt.lm_head_flops_per_token == 2 * 50272 * 5120


def test_attention_operations_follow_query_heads_not_kv_heads() -> None:
    assert model("opt-13b").attention_flops_per_pair == 4 * 40 * 5120
    assert model("llama-3-8b").attention_flops_per_pair == 4 * 32 * 4096
    assert model("llama-3-8b").prefill_attention_flops_per_pair == 4 * 32 * 4096


def test_latent_attention_decodes_against_the_latent_and_prefills_with_expanded_heads() -> None:
    spec = model("deepseek-v3")
    assert spec.attention_flops_per_pair == 2 * 61 * 128 * (512 + 64 + 512)
    assert spec.prefill_attention_flops_per_pair == 2 * 61 * 128 * (128 + 64 + 128)


def test_attention_kinds_are_told_apart() -> None:
    names = ("opt-13b", "llama-3-8b", "deepseek-v3")
    assert [model(name).attention for name in names] == ["MHA", "GQA", "MLA"]
    assert replace(model("opt-13b"), kv_heads=1).attention == "MQA"


@given(spec=st.sampled_from(models()), tp=st.sampled_from([1, 2, 4, 8]))
def test_tensor_parallelism_never_holds_less_than_the_whole_model(spec, tp) -> None:
    if spec.heads % tp or (spec.kv_heads % tp and tp % spec.kv_heads):
        with pytest.raises(PagesimError, match="tp is"):
            spec.weight_bytes_per_gpu(tp)
        return
    assert spec.weight_bytes_per_gpu(1) == spec.weight_bytes
    assert tp * spec.weight_bytes_per_gpu(tp) >= spec.weight_bytes
    assert tp * spec.kv_bytes_per_token(tp=tp) >= spec.kv_bytes_per_token()
    assert spec.weight_bytes_per_gpu(tp) <= spec.weight_bytes


def test_kv_heads_are_divided_and_replicated_once_gpus_outnumber_them() -> None:
    spec = model("llama-3-8b")
    shares = [spec.kv_bytes_per_token(tp=tp) * 8 // spec.kv_bytes_per_token() for tp in (1, 2, 4, 8, 16, 32)]
    assert shares == [8, 4, 2, 1, 1, 1]


def test_heads_that_cannot_be_dealt_out_are_refused_with_the_degrees_that_can() -> None:
    with pytest.raises(PagesimError, match="opt-13b has 40 heads, so it must be one of 1, 2, 4, 5, 8"):
        model("opt-13b").kv_bytes_per_token(tp=3)
    with pytest.raises(PagesimError, match=r"qwen2\.5-14b has 8 kv_heads"):
        model("qwen2.5-14b").kv_bytes_per_token(tp=5)


def test_an_all_reduce_moves_each_element_twice_over_but_for_its_own_share() -> None:
    assert all_reduce_bytes_per_token(model("opt-66b"), tp=1) == 0
    assert all_reduce_bytes_per_token(model("opt-66b"), tp=4) == 2 * 3 / 4 * 9216 * 2


def test_a_model_of_impossible_size_is_refused() -> None:
    with pytest.raises(PagesimError, match="layers is 0"):
        replace(model("opt-13b"), layers=0)
    with pytest.raises(PagesimError, match="40 heads cannot share 7 kv_heads"):
        replace(model("opt-13b"), kv_heads=7)


def of_layers(*cached, **options) -> ModelSpec:
    sizes = {"hidden": 0, "ffn": 0, "vocab": 0, "heads": 8, "kv_heads": 8, "head_dim": 64}
    given = {"name": "mine", "layers": len(cached), "max_model_len": 4096, "source": "a test", **sizes}
    return ModelSpec(**{**given, **options}, cached=cached)


def test_layers_say_what_a_token_takes_and_whether_all_keep_every_token_alike() -> None:
    full, window = FullLayer(8, 64), WindowLayer(2, 64, window=128)
    latent, indexer = LatentLayer(576), IndexerLayer(132)
    state = StateLayer((3, 64), (4, 64))
    assert of_layers(full, window, state).kv_bytes_per_token() == 2 * 2 * 64 * (8 + 2)
    assert of_layers(latent, indexer).kv_bytes_per_token("fp8", 2) == 576 + 132
    assert [of_layers(*each).keeps_all for each in ((full, full), (latent,))] == [True, True]
    different = ((full, window), (window,), (latent, indexer), (state, full), (full, FullLayer(4, 64)))
    assert not any(of_layers(*each).keeps_all for each in different)
    assert [of_layers(*each).is_plain for each in ((full, full), (latent,))] == [True, False]
    assert all(spec.keeps_all for spec in models() if not spec.cached)


def test_a_model_of_layers_alone_has_a_cache_of_blocks_or_bytes_but_no_weights() -> None:
    spec = of_layers(FullLayer(8, 64))
    for memory in ({"num_blocks": 100}, {"cache_bytes": 100 * 16 * 2048}):
        found = capacity(spec, gpu("h100"), sizing="vllm", max_model_len=1, **memory)
        assert (found.num_blocks, found.weight_bytes_per_gpu, found.activation_bytes) == (100, 0, 0)
    for what in (
        lambda: spec.parameters,
        lambda: spec.linear_flops_per_token,
        lambda: capacity(spec, gpu("h100")),
    ):
        with pytest.raises(PagesimError, match="says only what its layers keep, not what they weigh"):
            what()


def test_sizes_of_weights_are_left_out_together_and_only_where_there_are_layers() -> None:
    with pytest.raises(PagesimError, match="model mine: ffn is 0; it must be a positive number"):
        of_layers(FullLayer(8, 64), hidden=512)
    with pytest.raises(PagesimError, match="model mine: hidden is 0; it must be a positive number"):
        of_layers(layers=1)
