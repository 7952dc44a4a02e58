"""What is off is said in one sentence that names the argument, the same with and without a GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pagesim import PagesimError

torch = pytest.importorskip("torch", reason="torch is not installed")

from pagesim.kernels import (  # noqa: E402
    Cache,
    DecodePlan,
    Sizes,
    checked_bounds,
    checks,
    contiguous_decode_attention,
    copy_blocks,
    decode_attention,
    decode_plan,
    gather_blocks,
    gather_sequences,
    prefill_attention,
    reshape_and_cache,
    scatter_blocks,
    token_scaled,
)
from pagesim.kernels.cases import make_case  # noqa: E402


def says(sentence):
    return pytest.raises(PagesimError, match=rf"\A{sentence}[^\n]*\Z")


def run(case, **options):
    return decode_attention(*case.arguments, **options)


def changed(tensor, index, value):
    copy = tensor.clone()
    copy[index] = value
    return copy


CASE = make_case([63, 20], group=2)
PREFILL = make_case([63, 20], query_lens=[5, 6])
FP8 = make_case([63], kv_dtype=torch.float8_e4m3fn)
INT8 = make_case([63], kv_dtype=torch.int8, token_scales=True)
TABLE = CASE.block_table


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"q": None}, "q is a NoneType; a torch.Tensor is needed"),
        ({"q": CASE.q[0]}, r"q has the shape \[4, 64\]; \[batch, q_heads, 64\] is needed"),
        ({"q": CASE.q.double()}, "q is float64; float16 or bfloat16 or float32 is needed"),
        ({"q": CASE.q.bfloat16()}, "q is bfloat16; float16 is needed, as the cache is"),
        ({"q": CASE.q[:, :3]}, "q has 3 heads; a multiple of the cache's 2 KV heads is needed"),
        ({"q": CASE.q[:, :0]}, "q has 0 heads"),
        ({"q": CASE.q.to("meta")}, "q is on meta; it must be on cpu"),
        ({"q": CASE.q.repeat(1, 1, 2)[..., ::2]}, r"q has the strides \[512, 128, 2\]; the last must be 1"),
        ({"key_cache": CASE.key_cache[0]}, r"key_cache has the shape \[16, 2, 64\]; \[block, token, head"),
        ({"key_cache": CASE.key_cache.int()}, "key_cache is int32; float16 or"),
        ({"key_cache": CASE.key_cache[..., :63]}, "key_cache has head size 63; one of 32, 64, 72, 80, 96"),
        (
            {"key_cache": CASE.key_cache[:, :, :0]},
            r"key_cache has the shape \[9, 16, 0, 64\]; at least one KV",
        ),
        ({"key_cache": CASE.key_cache[:, :0]}, "key_cache has block size 0; 1 to 4096 tokens are allowed"),
        ({"key_cache": CASE.key_cache.repeat(1, 512, 1, 1)}, "key_cache has block size 8192"),
        (
            {"value_cache": CASE.value_cache[:-1]},
            r"value_cache has the shape \[8, 16, 2, 64\]; \[9, 16, 2, 64\]",
        ),
        ({"value_cache": CASE.value_cache.float()}, "value_cache is float32; float16 is needed"),
        ({"block_table": TABLE.long()}, "block_table is int64; int32 is needed"),
        ({"block_table": TABLE[:1]}, r"block_table has the shape \[1, 4\]; \[2, max_blocks\] is needed"),
        ({"block_table": changed(TABLE, (1, 1), 9)}, r"block_table\[1, 1\] is 9; 0 to 8 is allowed"),
        ({"block_table": changed(TABLE, (0, 0), -1)}, r"block_table\[0, 0\] is -1; 0 to 8 is allowed"),
        ({"context_lens": CASE.context_lens.long()}, "context_lens is int64; int32 is needed"),
        ({"context_lens": CASE.context_lens[:1]}, r"context_lens has the shape \[1\]; \[2\] is needed"),
        ({"context_lens": changed(CASE.context_lens, 0, 65)}, "context_lens holds 65; 0 to 64 is allowed"),
        ({"context_lens": changed(CASE.context_lens, 0, -1)}, "context_lens holds -1; 0 to 64 is allowed"),
        ({"k_scale": 2.0}, "k_scale is given; only a float8_e4m3fn cache is scaled, and this is float16"),
        ({"layout": "HDN"}, "layout is 'HDN'; it must be one of NHD, HND, VLLM"),
        (
            {"layout": "VLLM"},
            r"key_cache has the shape \[9, 16, 2, 64\]; \[block, head, chunk, token, lane\]",
        ),
    ],
)
def test_decode_attention_says_what_is_off(change, sentence):
    with says(sentence):
        run(replace(CASE, **change))


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        ({"scale": float("nan")}, "scale is nan; a finite number is needed"),
        ({"out": torch.empty(2, 4, 32)}, r"out has the shape \[2, 4, 32\]; \[2, 4, 64\] is needed"),
        ({"out": torch.empty(2, 4, 64)}, "out is float32; float16 is needed"),
        ({"backend": "cuda"}, "backend is 'cuda'; it must be one of auto, triton, reference"),
    ],
)
def test_options_of_decode_attention(option, sentence):
    with says(sentence):
        run(CASE, **option)


@pytest.mark.parametrize(
    ("scale", "sentence"),
    [
        (0.0, "v_scale is 0.0; a positive number or a tensor"),
        (float("inf"), "v_scale is inf"),
        (torch.ones(3), r"v_scale has the shape \[3\]; \[2\] is needed"),
        (torch.ones(2).half(), "v_scale is float16; float32 is needed"),
        (torch.tensor([1.0, -0.5]), r"v_scale\[1\] is -0.5; a positive number is needed"),
        (torch.tensor([0.0, 1.0]), r"v_scale\[0\] is 0.0; a positive number is needed"),
        (torch.tensor([1.0, float("nan")]), r"v_scale\[1\] is nan; a positive number is needed"),
        (torch.tensor([float("inf"), 1.0]), r"v_scale\[0\] is inf; a positive number is needed"),
    ],
)
def test_scales_of_fp8(scale, sentence):
    with says(sentence):
        run(replace(FP8, v_scale=scale))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            {"k_scale": 1.0, "v_scale": 1.0},
            r"key_cache is int8; k_scale and v_scale \[blocks, kv_heads, block",
        ),
        ({"v_scale": 1.0}, "v_scale is a float; a torch.Tensor is needed"),
        ({"k_scale": INT8.k_scale[1:]}, r"k_scale has the shape \[6, 2, 16\]; \[7, 2, 16\] is needed"),
        ({"k_scale": INT8.k_scale.half()}, "k_scale is float16; float32 is needed"),
        (
            {"v_scale": torch.ones(7, 3, 16)[:, :2]},
            r"v_scale has the strides \[48, 16, 1\]; \[32, 16, 1\], k_",
        ),
    ],
)
def test_scales_of_tokens(change, sentence):
    with says(sentence):
        run(replace(INT8, **change))


def test_only_bytes_have_scales_of_tokens():
    with says("k_scale is given; only a float8_e4m3fn or int8 cache is scaled, and this is float16"):
        run(replace(CASE, k_scale=torch.ones(9, 2, 16), v_scale=torch.ones(9, 2, 16)))
    with says("dtype is torch.float16; torch.int8 or torch.float8_e4m3fn is needed"):
        token_scaled(Sizes(4, 16, 2, 64), torch.float16)
    padded = gather_sequences(FP8.cache, FP8.block_table, FP8.context_lens)
    tokens = make_case([63], kv_dtype=torch.float8_e4m3fn, token_scales=True)
    with says("out has scales of another kind than cache"):
        gather_sequences(tokens.cache, tokens.block_table, tokens.context_lens, out=padded)


@pytest.mark.parametrize(
    ("starts", "option", "sentence"),
    [
        ([0, 5], {}, r"query_starts has the shape \[2\]; \[3\] is needed"),
        ([1, 5, 11], {}, "query_starts goes from 1 to 11; from 0 to 11 is needed, the rows of q"),
        ([0, 5, 10], {}, "query_starts goes from 0 to 10"),
        ([0, 12, 11], {}, "query_starts gives sequence 1 -1 rows; 0 to 20 is allowed, its context_lens"),
        ([0, 5, 11], {"max_query_len": 5}, "max_query_len is 5; query_starts has a sequence of 6 rows"),
        ([0, 5, 11], {"max_query_len": -1}, "max_query_len is -1; at least 0 is needed"),
    ],
)
def test_prefill_attention_says_what_is_off(starts, option, sentence):
    query_starts = torch.tensor(starts, dtype=torch.int32)
    with says(sentence):
        prefill_attention(*PREFILL.arguments[:-1], query_starts, **option)


def test_more_queries_than_context_are_refused():
    case = make_case([3, 20], query_lens=[5, 6])
    with says("query_starts gives sequence 0 5 rows; 0 to 3 is allowed"):
        case.run()


@pytest.mark.parametrize(
    ("slots", "sentence"),
    [
        ([0, 144], "slot_mapping holds 144; -1 to 143 is allowed"),
        ([0, -2], "slot_mapping holds -2; -1 to 143 is allowed"),
        ([7, 7], "slot_mapping holds a number twice; each block or slot may be written once"),
        ([7], r"slot_mapping has the shape \[1\]; \[2\] is needed"),
    ],
)
def test_reshape_and_cache_says_what_is_off(slots, sentence):
    new = torch.zeros(2, 2, 64, dtype=torch.float16)
    with says(sentence):
        reshape_and_cache(new, new, CASE.cache, torch.tensor(slots))


def test_reshape_and_cache_wants_the_caches_type():
    new = torch.zeros(1, 2, 64)
    with says("key is float32; float16 is needed"):
        reshape_and_cache(new, new, CASE.cache, torch.tensor([0]))


POOL = [torch.zeros(9, 16, 2, 64) for _ in range(2)]


@pytest.mark.parametrize(
    ("caches", "sentence"),
    [
        (POOL[0], "caches is no list of tensors; put a single cache into a list"),
        ([], "caches is no list of tensors"),
        ([POOL[0], None], r"caches\[1\] is a NoneType"),
        ([POOL[0], POOL[1][:8]], r"caches\[1\] has the shape \[8, 16, 2, 64\]; \[9, 16, 2, 64\] is needed"),
        ([POOL[0], POOL[1].half()], r"caches\[1\] is float16; float32 is needed"),
        ([POOL[0].transpose(1, 2)], r"caches\[0\] has the strides .*; each block must lie in one piece"),
        ([torch.zeros(9, 3)], r"caches\[0\] has blocks that do not begin and end at multiples of 16 bytes"),
        (
            [POOL[0], torch.zeros(18, 16, 2, 64)[::2]],
            r"caches\[1\] has the block stride 4096; 2048, the first's",
        ),
    ],
)
def test_pools_of_blocks(caches, sentence):
    with says(sentence):
        copy_blocks(caches, torch.tensor([[0, 1]]))


@pytest.mark.parametrize(
    ("pairs", "sentence"),
    [
        ([[0, 9]], "pairs holds 9; 0 to 8 is allowed"),
        ([[0, 1], [2, 1]], r"pairs\[:, 1\] holds a number twice"),
        ([[0, 1], [1, 2]], "pairs holds a block that is both read and written"),
        ([0, 1], r"pairs has the shape \[2\]; \[pairs, 2\] is needed"),
    ],
)
def test_pairs_of_blocks(pairs, sentence):
    with says(sentence):
        copy_blocks(POOL, torch.tensor(pairs))


def test_ids_and_staging_memory():
    with says("block_ids holds -1; 0 to 8 is allowed"):
        gather_blocks(POOL, torch.tensor([-1]))
    with says("block_ids is int32; int64 is needed"):
        gather_blocks(POOL, torch.tensor([1], dtype=torch.int32))
    with says(r"out has the shape \[2, 16, 2, 64\]; \[1, 2, 16, 2, 64\] is needed"):
        gather_blocks(POOL, torch.tensor([1]), out=torch.empty(2, 16, 2, 64))
    with says("block_ids holds a number twice"):
        scatter_blocks(torch.zeros(2, 2, 16, 2, 64), POOL, torch.tensor([1, 1]))
    with says("staging is on meta; it must be on cpu"):
        scatter_blocks(torch.zeros(1, 2, 16, 2, 64, device="meta"), POOL, torch.tensor([1]))


def contiguous(*shape):
    return Cache(*(torch.zeros(shape, dtype=torch.float16) for _ in range(2)), paged=False)


def test_contiguous_caches():
    with says("layout is VLLM; a contiguous cache is NHD or HND"):
        Cache(CASE.key_cache, CASE.value_cache, layout="VLLM", paged=False)
    with says("cache holds 3 sequences; 2 are needed, as many as q has rows"):
        contiguous_decode_attention(CASE.q, contiguous(3, 100, 2, 64), CASE.context_lens)
    with says("context_lens holds 63; 0 to 40 is allowed, as the cache has room for"):
        contiguous_decode_attention(CASE.q, contiguous(2, 40, 2, 64), CASE.context_lens)


def test_each_op_wants_its_kind_of_cache():
    with says("cache is a contiguous cache; a paged one is needed"):
        decode_attention(CASE.q, contiguous(2, 100, 2, 64), TABLE, CASE.context_lens)
    with says("cache is a paged one; a contiguous cache is needed"):
        contiguous_decode_attention(CASE.q, CASE.cache, CASE.context_lens)
    for op in (decode_attention, prefill_attention):
        with says(r"cache is a Tensor; Cache\(key_cache, value_cache\) is needed"):
            op(
                CASE.q,
                CASE.key_cache,
                TABLE,
                CASE.context_lens,
                *((TABLE,) if op is prefill_attention else ()),
            )


def test_a_padded_batch_must_be_wide_enough():
    batch = (CASE.cache, CASE.block_table, CASE.context_lens)
    with says("context_lens holds 63; 0 to 40 is allowed, as max_context says"):
        gather_sequences(*batch, max_context=40)
    with says(r"out.key_cache has the shape \[2, 64, 2, 128\]; \[2, 64, 2, 64\] is needed"):
        gather_sequences(*batch, out=contiguous(2, 64, 2, 128))


def test_no_more_sequences_than_a_grid_has_room_for():
    many = {"q": CASE.q[:1].expand(65_536, -1, -1), "block_table": TABLE[:1].expand(65_536, -1)}
    with says("context_lens has 65536 sequences; at most 65535 are allowed"):
        run(replace(CASE, **many, context_lens=torch.zeros(65_536, dtype=torch.int32)))


def test_a_plan_needs_heads_that_fit():
    with says("q_heads is 3; a multiple of kv_heads, which is 2, is needed"):
        decode_plan(CASE.q[:, :3], CASE.cache, CASE.context_lens)


def test_a_plan_can_be_made_by_hand():
    assert run(CASE, plan=DecodePlan(16, 16, 4, 4, 3)).shape == CASE.q.shape


@pytest.mark.parametrize(
    ("numbers", "sentence"),
    [
        ((24, 24, 1, 4, 3), "tile is 24; a power of two from 16 is needed"),
        ((16, 24, 2, 4, 3), "tokens_per_split is 24; a multiple of tile, which is 16, is needed"),
        ((16, 0, 2, 4, 3), "tokens_per_split is 0"),
        ((16, 16, 0, 4, 3), "num_splits is 0; at least 1 is needed"),
        ((16, 16, 70_000, 4, 3), "num_splits is 70000; at most 65535 is allowed"),
        ((16, 16, 1, 3, 3), "num_warps is 3; a power of two from 1 to 32 is needed"),
        ((16, 16, 1, 4, 0), "num_stages is 0"),
    ],
)
def test_a_plan_that_would_skip_tokens_cannot_be_made(numbers, sentence):
    with says(sentence):
        DecodePlan(*numbers)


def test_bounds_on_a_device_are_checked_when_asked_for():
    elsewhere = torch.zeros(1, device="meta")
    assert not checks.bounds_are_checked(elsewhere)
    with checked_bounds():
        assert checks.bounds_are_checked(elsewhere)
    assert not checks.bounds_are_checked(elsewhere)
    assert checks.bounds_are_checked(CASE.q)
