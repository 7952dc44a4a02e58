"""The blocks that vLLM makes of a model's layers, and how many a request can take of them."""

from __future__ import annotations

from itertools import chain

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pagesim.errors import CapacityError, PagesimError
from pagesim.models.layers import (
    ChunkLayer,
    FullLayer,
    IndexerLayer,
    LatentLayer,
    Layer,
    StateLayer,
    WindowLayer,
)
from pagesim.sizing.block_plan import BlockPlan
from pagesim.sizing.planning import plan_blocks

FULL = FullLayer(8, 128)
WINDOW = WindowLayer(8, 128, window=1024)
CHUNK = ChunkLayer(8, 128, chunk=8192)
LATENT = LatentLayer(576)
STATE = StateLayer((3, 8192), (32, 128, 128), checkpoint=64)


def planned(*layers: Layer, **options: object) -> BlockPlan:
    given = {"max_model_len": 32768, "in_flight_tokens": 16384, "num_blocks": 10_000, **options}
    return plan_blocks(layers, **given)  # type: ignore[arg-type]


def shape(plan: BlockPlan) -> list[tuple[str, int, int]]:
    return [(group.kind, len(group.layers), group.block_size) for group in plan.groups]


def test_where_there_are_less_than_1_5_times_as_many_of_one_kind_as_of_the_other_both_are_one_group():
    assert shape(planned(*[WINDOW] * 11, *[FULL] * 8)) == [("window", 11, 16), ("full", 8, 16)]
    assert len(planned(*[WINDOW] * 12, *[FULL] * 8).groups) == 3


def test_a_page_that_divides_the_largest_gets_a_block_of_more_tokens_and_hashes_the_smallest():
    plan = planned(WindowLayer(2, 128, window=1024), FULL)
    assert shape(plan) == [("window", 1, 64), ("full", 1, 16)]
    assert plan.groups[0].page_bytes == plan.groups[0].real_pages[0] == plan.bytes_per_block
    assert (plan.scheduler_block, plan.hash_block) == (64, 16)
    assert planned(WindowLayer(2, 128, window=1024), FULL, prefix_caching=False).hash_block == 64


def test_a_page_that_does_not_divide_the_largest_is_padded():
    plan = planned(WindowLayer(3, 128, window=1024), FULL)
    assert shape(plan) == [("window", 1, 16), ("full", 1, 16)]
    assert plan.padding_of(plan.groups[0]) == pytest.approx(5 / 8)
    assert plan.padding == pytest.approx(5 / 16)


def test_latent_vectors_are_not_padded_and_windows_beside_them_are_then_kept_as_full_attention():
    window = WindowLayer(1, 320, window=512)
    assert shape(planned(LATENT, LATENT, window)) == [("latent", 3, 16)]
    assert planned(LATENT, WindowLayer(1, 144, window=512)).groups[1].kind == "window"
    with pytest.raises(PagesimError, match="vLLM pads neither latent vectors nor indexers"):
        planned(LATENT, window, CHUNK, hybrid=True)


def test_without_the_hybrid_manager_windows_and_chunks_are_kept_as_full_attention():
    plan = planned(WINDOW, FULL, hybrid=False)
    assert shape(plan) == [("full", 2, 16)]
    assert plan.groups[0].layers == (WINDOW, FULL)
    assert plan.groups[0].rule == FULL
    assert shape(planned(WindowLayer(2, 128, window=1024), FULL, hybrid=False)) == [("full", 2, 16)]
    assert shape(planned(WINDOW, WINDOW, hybrid=False)) == [("window", 2, 16)]


@pytest.mark.parametrize(
    ("options", "blocks", "most", "tokens"),
    [
        # What the planner of vLLM 0.33.0 makes of Scout, and of Maverick on eight GPUs, on an H100.
        ({"cache_bytes": 20 << 30}, (27_306, 786_432), 3 * 1536 + 2048, 134_429),
        (
            {"cache_bytes": int(33.3 * 2**30), "max_model_len": 131_072, "tp": 8},
            (363_724, 98_304),
            3 * 1536 + 8192,
            3_724_533,
        ),
    ],
)
def test_llama_4_has_three_groups_of_chunks_and_one_of_full_attention(options, blocks, most, tokens):
    plan = planned(*[*[CHUNK] * 3, FULL] * 12, num_blocks=None, **options)
    assert [(group.kind, len(group.layers)) for group in plan.groups] == [("chunk", 12)] * 3 + [("full", 12)]
    assert (plan.num_blocks, plan.bytes_per_block) == blocks
    assert (plan.most_blocks, plan.tokens) == (most, tokens)


@pytest.mark.parametrize(
    "layers",
    [(STATE, FULL), (WINDOW, WindowLayer(8, 128, window=512), FULL), (WINDOW, CHUNK)],
    ids=["states", "two windows", "no full attention"],
)
def test_layers_that_cannot_be_kept_alike_do_not_start_without_the_hybrid_manager(layers):
    with pytest.raises(PagesimError, match="choose policy vllm-v1, without disable_hybrid"):
        planned(*layers, hybrid=False)


def test_chunks_that_are_not_whole_blocks_are_refused_where_they_have_groups_of_their_own():
    layers = (FULL, ChunkLayer(8, 128, chunk=8200))
    assert len(planned(*layers, hybrid=False).groups) == 1
    with pytest.raises(PagesimError, match="choose a block_size that divides the chunk"):
        planned(*layers)


def test_a_state_in_blocks_takes_two_of_them_and_one_more_where_it_can_be_left_behind_within_a_prompt():
    mamba_1 = StateLayer((3, 8192), (8192, 16))
    mamba_2 = StateLayer((3, 8448), (128, 64, 128), checkpoint=1, always=True)

    def most(*states: StateLayer) -> list[tuple[int, int | None]]:
        groups = planned(*states, FULL).groups[:-1]
        return [(group.most_blocks, group.checkpoint) for group in groups]

    assert most(mamba_1) == [(2, None)]
    assert most(mamba_2) == [(3, 1)]
    assert most(STATE) == [(3, 320)]  # a block
    assert most(STATE, mamba_1) == [(2, None), (2, None)]
    assert most(mamba_2, mamba_1) == [(3, 1), (2, None)]


def test_a_larger_block_that_is_asked_for_stays():
    assert shape(planned(STATE, FullLayer(2, 256), block_size=1024))[1] == ("full", 1, 1024)
    assert shape(planned(STATE, FullLayer(2, 256), block_size=32))[1] == ("full", 1, 576)


@pytest.mark.parametrize(
    ("layer", "tp", "sentence"),
    [
        (FULL, 3, "tp is 3; a layer has 8 kv_heads: it must divide them or be a multiple"),
        (STATE, 3, "tp is 3; a layer's state has 8192 channels and 32 heads to share: it must divide both"),
    ],
)
def test_layers_that_gpus_cannot_share_are_refused(layer, tp, sentence):
    with pytest.raises(PagesimError, match=sentence):
        planned(layer, FullLayer(9, 128), tp=tp)


def test_states_beside_attention_of_two_widths_or_of_none_are_refused():
    with pytest.raises(PagesimError, match=r"keep 1024 and 4096 bytes a token, and no log shows"):
        planned(STATE, FULL, FullLayer(2, 128))
    with pytest.raises(PagesimError, match=r"keep no bytes a token, and no log shows"):
        planned(STATE)


def test_what_is_in_flight_counts_in_windows_and_chunks_but_not_beyond_the_longest_request():
    def most(in_flight: int) -> list[int]:
        plan = planned(WINDOW, CHUNK, FULL, in_flight_tokens=in_flight, hybrid=True)
        return [group.most_blocks for group in plan.groups]

    assert most(2048) == [-(-(1023 + 2048) // 16) + 1, (8192 + 2048) // 16, 2048]
    assert most(100_000) == [2049, 2048, 2048]


def test_the_longest_request_that_fits_is_the_longest_that_starts():
    def five_windows(max_model_len: int, num_blocks: int = 2000) -> BlockPlan:
        return planned(
            *[WINDOW] * 5, FULL, in_flight_tokens=2048, max_model_len=max_model_len, num_blocks=num_blocks
        )

    # Five windows take 192 + 1 blocks each, and one block is the null block.
    plan = five_windows(32768)
    assert (plan.most_blocks, plan.longest, plan.starts) == (3013, 16544, False)
    assert [five_windows(longest).starts for longest in (16544, 16545)] == [True, False]
    assert five_windows(32768, num_blocks=6).longest == 0


def test_the_least_that_a_longest_request_holds_in_the_end_bounds_how_many_can_run():
    def least(*layers: Layer, **options: object) -> int:
        return planned(*layers, hybrid=True, **options).least_blocks

    assert least(FULL) == 2048
    assert least(FULL, max_model_len=16 * 2048 + 1) == 2048  # the last token is sampled and not cached
    assert least(WINDOW, FULL) == 64 + 2048
    assert least(WINDOW, FULL, max_model_len=513) == 32 + 32
    assert least(CHUNK, FULL) == 512 + 2048
    assert least(CHUNK, FULL, max_model_len=8193) == 0 + 512
    assert least(STATE, FULL) == 1 + -(-32767 // 320)
    assert least(FULL, max_model_len=1) == 1


def test_bytes_make_as_many_whole_blocks_as_fit():
    plan = planned(WINDOW, FULL, num_blocks=None, cache_bytes=1_000_000)
    assert plan.num_blocks == 1_000_000 // plan.bytes_per_block == 15
    with pytest.raises(CapacityError, match="a KV block takes 65536 bytes on each GPU, more than the 65535"):
        planned(WINDOW, FULL, num_blocks=None, cache_bytes=65535)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"num_blocks": None}, "needs num_blocks or cache_bytes"),
        ({"cache_bytes": 1 << 30}, "needs num_blocks or cache_bytes"),
        ({"num_blocks": 0}, "num_blocks is 0; it must be at least 1"),
        ({"max_model_len": 0}, "max_model_len is 0; it must be at least 1"),
        ({"kv_dtype": "int3"}, "kv_dtype is 'int3'; it must be one of fp16, bf16, fp8"),
    ],
)
def test_arguments_out_of_bounds_are_refused(options, sentence):
    with pytest.raises(PagesimError, match=sentence):
        planned(FULL, **options)


LAYERS = st.lists(
    st.one_of(
        st.builds(FullLayer, st.sampled_from([1, 2, 3, 8]), st.sampled_from([64, 96, 128])),
        st.builds(
            WindowLayer,
            st.sampled_from([1, 2, 3, 8]),
            st.sampled_from([64, 96, 128]),
            st.integers(1, 5000),
        ),
        st.builds(ChunkLayer, st.just(8), st.just(128), st.sampled_from([4096, 8192])),
    ),
    min_size=1,
    max_size=40,
)
BESIDE_STATES = st.lists(
    st.sampled_from([FULL, WINDOW, STATE, StateLayer((3, 8192), (8192, 16))]), min_size=1, max_size=40
).map(lambda layers: [*layers, FULL])
LATENTS = st.lists(st.sampled_from([LATENT, IndexerLayer(132)]), min_size=1, max_size=20)


@given(
    layers=st.one_of(LAYERS, BESIDE_STATES, LATENTS),
    block_size=st.sampled_from([None, 16, 48, 128]),
    prefix_caching=st.booleans(),
    kv_dtype=st.sampled_from(["bf16", "fp8"]),
    max_model_len=st.integers(1, 200_000),
    in_flight_tokens=st.integers(1, 40_000),
)
def test_every_layer_is_in_one_group_and_no_group_takes_more_than_a_block(
    layers, block_size, prefix_caching, kv_dtype, max_model_len, in_flight_tokens
):
    # vLLM's kernels take chunks of whole blocks only.
    assume(block_size != 48 or not any(isinstance(layer, ChunkLayer) for layer in layers))
    plan = plan_blocks(
        layers,
        max_model_len=max_model_len,
        in_flight_tokens=in_flight_tokens,
        num_blocks=1000,
        kv_dtype=kv_dtype,
        block_size=block_size,
        prefix_caching=prefix_caching,
        hybrid=True,
    )
    places = sorted(chain.from_iterable(group.places for group in plan.groups))
    assert places == list(range(len(layers)))
    assert plan.bytes_per_block == max(group.bytes for group in plan.groups)
    assert 0 <= plan.padding < 1
    assert plan.padding * len(plan.groups) == pytest.approx(sum(map(plan.padding_of, plan.groups)))
    assert plan.most_blocks == sum(group.most_blocks for group in plan.groups)
    assert plan.longest <= max_model_len
    assert (plan.longest == max_model_len) == (plan.most_blocks < 1000)
    for group in plan.groups:
        assert group.layers == tuple(layers[place] for place in group.places)
        assert len(group.pages) == len(group.real_pages) == len(group.layers)
        assert all(0 < real <= page for real, page in zip(group.real_pages, group.pages, strict=True))
        assert plan.scheduler_block % group.block_size == 0
        if prefix_caching:
            assert group.block_size % plan.hash_block == 0
        if group.kind != "state":
            tokens = [layer.bytes_per_token(kv_dtype) for layer in group.layers]
            assert group.real_bytes == group.block_size * sum(tokens)
        assert group.most_blocks <= -(-max_model_len // group.block_size) + 1 or group.kind == "state"
