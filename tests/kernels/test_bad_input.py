"""What is off is said in one sentence that names the argument, the same with and without a GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pagesim import PagesimError

torch = pytest.importorskip("torch", reason="torch is not installed")

from pagesim.kernels import (  # noqa: E402
    LatentCache,
    checked_bounds,
    checks,
    copy_blocks,
    gather_blocks,
    mla_decode_attention,
    mla_write,
    paged_attention,
    reshape_and_cache,
    scatter_blocks,
)
from tests.kernels.cases import make_case  # noqa: E402


def says(sentence):
    return pytest.raises(PagesimError, match=rf"\A{sentence}[^\n]*\Z")


def run(case, **options):
    return paged_attention(case.q, case.cache, *case.batch, **case.variant, **options)


def changed(tensor, index, value):
    copy = tensor.clone()
    copy[index] = value
    return copy


CASE = make_case([63, 20], group=2)
PREFILL = make_case([63, 20], query_lens=[5, 6])
FP8 = make_case([63], kv_dtype=torch.float8_e4m3fn)
TABLE = CASE.block_table


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"q": None}, "q is a NoneType; a torch.Tensor is needed"),
        ({"q": CASE.q[0]}, r"q has the shape \[4, 64\]; \[tokens, q_heads, 64\] is needed"),
        ({"q": CASE.q.double()}, "q is float64; float16 or bfloat16 or float32 is needed"),
        ({"q": CASE.q.bfloat16()}, "q is bfloat16; float16 is needed, as the cache is"),
        ({"q": CASE.q[:, :3]}, "q has 3 heads; a multiple of the cache's 2 is needed"),
        ({"q": CASE.q.to("meta")}, "q is on meta; it must be on cpu"),
        ({"q": CASE.q.repeat(1, 1, 2)[..., ::2]}, r"q has the strides \[512, 128, 2\]; the last must be 1"),
        (
            {"key_cache": CASE.key_cache[0]},
            r"key_cache has the shape \[16, 2, 64\]; \[blocks, block_size, kv_heads, D\]",
        ),
        (
            {"key_cache": CASE.key_cache[..., :63], "value_cache": CASE.value_cache[..., :63]},
            "key_cache has head size 63; one of 32, 64, 72, 80, 96",
        ),
        (
            {"key_cache": CASE.key_cache[:, :0], "value_cache": CASE.value_cache[:, :0]},
            r"key_cache has the shape \[9, 0, 2, 64\]; at least one token and head is needed",
        ),
        (
            {"value_cache": CASE.value_cache[:-1]},
            r"value_cache has the shape \[8, 16, 2, 64\]; \[9, 16, 2, 64\]",
        ),
        ({"block_table": TABLE[:1]}, r"block_table has the shape \[1, 4\]; \[2, max_blocks\] is needed"),
        ({"block_table": changed(TABLE, (1, 1), 9)}, r"block_table\[1, 1\] is 9; 0 to 8 is allowed"),
        ({"context_lens": changed(CASE.context_lens, 0, 65)}, "context_lens holds 65; 0 to 64 is allowed"),
        ({"context_lens": changed(CASE.context_lens, 0, -1)}, "context_lens holds -1; 0 to 64 is allowed"),
        ({"k_scale": 2.0}, "k_scale is given; only a float8_e4m3fn cache is scaled, and this is float16"),
        ({"layout": "HDN"}, "layout is 'HDN'; it must be one of NHD, HND"),
    ],
)
def test_decode_attention_says_what_is_off(change, sentence):
    with says(sentence):
        run(replace(CASE, **change))


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        ({"scale": float("nan")}, "scale is nan; a positive number is needed"),
        ({"scale": -0.5}, "scale is -0.5; a positive number is needed"),
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
        (torch.ones(3), r"v_scale has the shape \[3\]; \[2\] is needed"),
        (torch.ones(2).half(), "v_scale is float16; float32 is needed"),
        (torch.tensor([1.0, -0.5]), r"v_scale\[1\] is -0.5; a positive number is needed"),
        (torch.tensor([1.0, float("nan")]), r"v_scale\[1\] is nan; a positive number is needed"),
        (torch.tensor([float("inf"), 1.0]), r"v_scale\[0\] is inf; a positive number is needed"),
    ],
)
def test_scales_of_fp8(scale, sentence):
    with says(sentence):
        run(replace(FP8, v_scale=scale))


@pytest.mark.parametrize(
    ("starts", "option", "sentence"),
    [
        ([0, 5], {}, r"query_starts has the shape \[2\]; \[3\] is needed"),
        ([1, 5, 11], {}, "query_starts goes from 1 to 11; from 0 to 11 is needed, the rows of q"),
        ([0, 12, 11], {}, "query_starts gives sequence 1 -1 rows; 0 to 20 is allowed, its context_lens"),
        ([0, 5, 11], {"max_query_len": 5}, "max_query_len is 5; query_starts has a sequence of 6 rows"),
        ([0, 5, 11], {"max_query_len": -1}, "max_query_len is -1; at least 0 is needed"),
    ],
)
def test_prefill_attention_says_what_is_off(starts, option, sentence):
    query_starts = torch.tensor(starts, dtype=torch.int32)
    with says(sentence):
        run(replace(PREFILL, query_starts=query_starts), **option)


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
        ([POOL[0], None], r"caches\[1\] is a NoneType"),
        ([POOL[0], POOL[1][:8]], r"caches\[1\] has the shape \[8, 16, 2, 64\]; \[9, 16, 2, 64\] is needed"),
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


def test_caches_are_caches():
    with says("cache is a Tensor; a Cache is needed"):
        paged_attention(CASE.q, CASE.key_cache, *CASE.batch)
    with says("cache is a Cache; a LatentCache is needed"):
        mla_decode_attention(CASE.q, CASE.cache, *CASE.batch[:2], scale=1.0)


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        ({"window": 0}, "window is 0; 1 to 2147483647 is allowed"),
        ({"window": 1.5}, "window is 1.5; a whole number is needed"),
        ({"softcap": -1.0}, "softcap is -1.0; a positive number is needed, None for no cap"),
        ({"sinks": torch.zeros(3)}, r"sinks has the shape \[3\]; \[4\] is needed"),
        ({"sinks": torch.zeros(4).half()}, "sinks is float16; float32 is needed"),
        (
            {"sinks": torch.tensor([0, 0, float("inf"), 0])},
            r"sinks\[2\] is inf; a number is needed, -inf for",
        ),
    ],
)
def test_variants_of_attention(option, sentence):
    with says(sentence):
        run(replace(CASE, **option))


LATENTS = torch.zeros(4, 16, 288)


@pytest.mark.parametrize(
    ("cache", "latent_dim", "sentence"),
    [
        (LATENTS, 100, "latent_dim is 100; 256 or 512 is needed"),
        (LATENTS, 512, "cache has 288 numbers a token, -224 beside latent_dim 512; 32 or 64 are needed"),
        (LATENTS[:, :0], 256, r"cache has the shape \[4, 0, 288\]; at least one token is needed"),
        (LATENTS.double(), 256, "cache is float64; float16 or bfloat16 or float32 is needed"),
        (LATENTS[0], 256, r"cache has the shape \[16, 288\]; \[blocks, block_size, latent_dim \+ rope_dim\]"),
    ],
)
def test_latents(cache, latent_dim, sentence):
    with says(sentence):
        LatentCache(cache, latent_dim=latent_dim)


def test_ops_of_latents_say_what_is_off():
    cache = LatentCache(LATENTS, latent_dim=256)
    q, table, lengths = torch.zeros(1, 5, 288), torch.zeros(1, 2, dtype=torch.int32), torch.ones(1).int()
    for change, options, sentence in (
        ({"q": q[..., :256]}, {}, r"q has the shape \[1, 5, 256\]; \[batch, q_heads, 288\] is needed"),
        ({"q": q[:, :0]}, {}, "q has 0 heads; at least 1 is needed"),
        ({"q": q.half()}, {}, "q is float16; float32 is needed"),
        ({}, {"scale": float("nan")}, "scale is nan; a positive number is needed"),
        ({}, {"num_splits": 0}, "num_splits is 0; 1 to 65535 is allowed"),
    ):
        given = {"q": q, "cache": cache, "block_table": table, "context_lens": lengths, **change}
        with says(sentence):
            mla_decode_attention(**given, **{"scale": 1.0, **options})
    new = torch.zeros(2, 256), torch.zeros(2, 32)
    with says(r"rope has the shape \[2, 30\]; \[2, 32\] is needed"):
        mla_write(new[0], new[1][:, :30], cache, torch.tensor([0, 1]))
    with says("slot_mapping holds 64; -1 to 63 is allowed"):
        mla_write(*new, cache, torch.tensor([0, 64]))


def test_bounds_on_a_device_are_checked_when_asked_for():
    elsewhere = torch.zeros(1, device="meta")
    assert not checks.bounds_are_checked(elsewhere)
    with checked_bounds():
        assert checks.bounds_are_checked(elsewhere)
    assert not checks.bounds_are_checked(elsewhere)
    assert checks.bounds_are_checked(CASE.q)
