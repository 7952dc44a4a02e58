"""Windows, soft caps, sinks and several queries in the references, and what of them is refused."""

from __future__ import annotations

from math import inf, nan

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from pagesim import PagesimError  # noqa: E402
from pagesim.kernels import Variant, decode_attention, decode_plan, prefill_attention, reference  # noqa: E402
from pagesim.kernels.cases import make_case  # noqa: E402


def test_a_window_is_torchs_mask():
    q, keys, values = (torch.randn(40, 4, 64) for _ in range(3))
    token = torch.arange(40)
    seen = (token <= token[:, None]) & (token > token[:, None] - 7)  # 7 tokens, the query's own included
    heads_first = (x.transpose(0, 1) for x in (q, keys, values))
    expected = torch.nn.functional.scaled_dot_product_attention(*heads_first, attn_mask=seen)
    ours = reference.attend(q, keys, values, 64**-0.5, window=7)
    torch.testing.assert_close(ours, expected.transpose(0, 1), atol=1e-5, rtol=1e-5)


def test_a_sink_takes_its_share_and_gives_nothing():
    """A sink as high as the only score leaves half of the value; one of minus infinity leaves it whole."""
    q, key, value = torch.ones(1, 2, 64), torch.ones(1, 2, 64), torch.ones(1, 2, 64)
    output = reference.attend(q, key, value, 1 / 64, sinks=torch.tensor([1.0, -inf]))
    assert output[0, :, 0].tolist() == pytest.approx([0.5, 1.0])


def test_a_soft_cap_bounds_the_scores():
    """Of two keys whose scores are 3000 and 0 the first has a weight of e²/(e² + 1) under a cap of 2."""
    q = torch.ones(1, 1, 1)
    keys, values = torch.tensor([3000.0, 0.0]).view(2, 1, 1), torch.tensor([1.0, 0.0]).view(2, 1, 1)
    share = reference.attend(q, keys, values, 1.0, softcap=2.0).item()
    assert share == pytest.approx(torch.tensor(2.0).sigmoid().item())


def test_several_queries_are_a_prefill_of_the_last_tokens():
    several = make_case([70, 33], queries=4, group=2, window=20, dtype=torch.float32)
    prefill = make_case([70, 33], query_lens=[4, 4], group=2, window=20, dtype=torch.float32)
    assert torch.equal(several.run().flatten(0, 1), prefill.run())


def test_queries_before_the_first_token_give_zeros():
    case = make_case([2], queries=5, dtype=torch.float32)
    output = case.run()[0]
    assert (output[:3] == 0).all()
    alone = make_case([2], query_lens=[2], dtype=torch.float32)
    expected = reference.prefill_attention(
        case.q[0, 3:], *(case.key_cache, case.value_cache), *alone.arguments[2:], scale=64**-0.5
    )
    torch.testing.assert_close(output[3:], expected)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"window": 0}, "window is 0; 1 to 2147483647 tokens are allowed"),
        ({"window": 2.5}, "window is 2.5; a whole number is needed"),
        ({"softcap": -1.0}, "softcap is -1.0; a positive number is needed, None for no cap"),
        ({"softcap": nan}, "softcap is nan; a positive number"),
        ({"sinks": [1.0]}, "sinks is a list; a torch.Tensor is needed"),
        ({"sinks": torch.zeros(4).half()}, "sinks is float16; float32 is needed"),
        ({"sinks": torch.tensor([0.0, nan])}, r"sinks\[1\] is nan; a number is needed, -inf for no sink"),
    ],
)
def test_what_is_no_variant_is_refused(options, said):
    with pytest.raises(PagesimError, match=said):
        Variant(**options)


def test_sinks_are_as_many_as_query_heads():
    case = make_case([5])
    with pytest.raises(PagesimError, match=r"sinks has the shape \[3\]; \[2\] is needed"):
        decode_attention(*case.arguments, variant=Variant(sinks=torch.zeros(3)))
    prompt = make_case([5], query_lens=[5])
    with pytest.raises(PagesimError, match=r"sinks has the shape \[3\]; \[2\] is needed"):
        prefill_attention(*prompt.arguments, variant=Variant(sinks=torch.zeros(3)))


def test_blocks_before_a_window_may_be_freed_and_others_not():
    case = make_case([100], window=10)
    assert case.block_table[0, 0] < 0
    case.run()
    with pytest.raises(PagesimError, match=r"block_table\[0, 0\] is -2147483648"):
        decode_attention(*case.arguments)
    with pytest.raises(PagesimError, match=r"block_table\[0, 4\] is -2147483648"):
        decode_attention(*case.arguments, variant=Variant(window=27))


def test_a_window_is_planned_for_and_not_the_context():
    case = make_case([100_000 // 16 * 16], kv_heads=1, block_size=256)
    whole = decode_plan(case.q, case.cache, case.context_lens)
    windowed = decode_plan(case.q, case.cache, case.context_lens, window=128)
    assert whole.num_splits > 8
    assert windowed.num_splits * windowed.tokens_per_split <= 128 + windowed.tile
    with pytest.raises(PagesimError, match="window is 0; at least 1 is needed"):
        decode_plan(case.q, case.cache, case.context_lens, window=0)
