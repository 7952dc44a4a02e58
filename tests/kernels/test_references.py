"""The references beside the formula and each other; none reads what holds no token."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from pagesim.kernels import (  # noqa: E402
    LAYOUTS,
    Cache,
    LatentCache,
    Sizes,
    mla_decode_attention,
    mla_write,
    paged_attention,
    reference,
    reshape_and_cache,
)
from tests.kernels.cases import make_case  # noqa: E402
from tests.kernels.hostile import dense  # noqa: E402


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("block_size", [1, 16])
def test_decode_is_the_formula(layout, block_size):
    case = make_case([63, 0, 1, 17], group=3, block_size=block_size, dtype=torch.float32, layout=layout)
    output = case.run(backend="reference")
    for row, length in enumerate(case.context_lens.tolist()):
        blocks = case.block_table[row, : -(-length // block_size)].long()
        keys, values = (
            each[blocks].flatten(0, 1)[:length].double() for each in (case.cache.keys, case.cache.values)
        )
        expected = dense.attention(case.q[row : row + 1], keys, values, 64**-0.5)
        torch.testing.assert_close(output[row].double(), expected[0], atol=1e-5, rtol=0)


def test_attention_is_torchs():
    q, keys, values = torch.randn(40, 4, 64), torch.randn(40, 4, 64), torch.randn(40, 4, 64)
    expected = torch.nn.functional.scaled_dot_product_attention(
        *(x.transpose(0, 1) for x in (q, keys, values)), is_causal=True
    )
    ours = reference.attend(q, keys, values, 64**-0.5)
    torch.testing.assert_close(ours, expected.transpose(0, 1), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_prompt_in_chunks_is_the_prompt_at_once(layout):
    whole = make_case([70], query_lens=[70], group=2, dtype=torch.float32, layout=layout)
    at_once = whole.run()
    for first, last in [(0, 30), (30, 31), (31, 70)]:
        chunk = paged_attention(
            whole.q[first:last],
            whole.cache,
            whole.block_table,
            torch.tensor([last], dtype=torch.int32),
            torch.tensor([0, last - first], dtype=torch.int32),
        )
        torch.testing.assert_close(chunk, at_once[first:last], atol=1e-5, rtol=1e-5)


def test_fp8_stands_for_its_numbers_times_the_scale():
    case = make_case([63, 20], group=2, kv_dtype=torch.float8_e4m3fn, head_scales=True)
    keys = case.key_cache.float() * case.k_scale[:, None]
    values = case.value_cache.float() * case.v_scale[:, None]
    plain_case = replace(case, q=case.q.float(), key_cache=keys, value_cache=values, k_scale=1.0, v_scale=1.0)
    torch.testing.assert_close(plain_case.refer(), case.refer(), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_written_is_what_is_attended_to(layout):
    caches = [torch.full(Sizes(6, 16, 2, 64).shape(layout), float("nan")) for _ in range(2)]
    cache = Cache(*caches, layout=layout)
    key, value = torch.randn(2, 40, 2, 64)
    table = torch.tensor([[4, 1, 3]], dtype=torch.int32)
    slots = table[0].long().repeat_interleave(16)[:40] * 16 + torch.arange(40) % 16
    reshape_and_cache(key, value, cache, slots)
    q = torch.randn(1, 4, 64)
    paged = paged_attention(q, cache, table, torch.tensor([40], dtype=torch.int32), scale=0.125)
    torch.testing.assert_close(paged, reference.attend(q, key, value, 0.125), atol=1e-6, rtol=1e-6)
    assert sum(cache.isnan().sum().item() for cache in caches) == 2 * (96 - 40) * 2 * 64


def test_latents_that_are_written_are_attended_to():
    """A latent is a token's value, and with its rotated part behind it its key; slot -1 is passed over."""
    cache = LatentCache(torch.full((4, 8, 288), float("nan")), latent_dim=256)
    latent, rope, q = torch.randn(12, 256), torch.randn(12, 32), torch.randn(1, 5, 288)
    table, length = torch.tensor([[2, 0]], dtype=torch.int32), torch.tensor([11], dtype=torch.int32)
    slots = torch.tensor([*range(16, 24), 0, 1, 2, -1])
    mla_write(latent, rope, cache, slots)
    keys = torch.cat([latent, rope], dim=1)[:11].double()
    expected = (0.07 * q[0].double() @ keys.T).softmax(dim=-1) @ keys[:, :256]
    got = mla_decode_attention(q, cache, table, length, scale=0.07)
    torch.testing.assert_close(got[0].double(), expected, atol=1e-5, rtol=1e-5)
    assert cache.cache.isfinite().all(dim=-1).sum() == 11
