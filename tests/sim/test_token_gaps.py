"""Gaps between tokens are counted, however many and long they are, as a list of all would have them."""

from types import SimpleNamespace

import numpy as np
import pytest

import pagesim as ps
from pagesim.accounting.metrics import PERCENTILES, TokenGaps
from pagesim.sim.clock import TICKS_PER_SECOND


def chunk(rng: np.random.Generator, size: int) -> SimpleNamespace:
    """Return what `TokenGaps` looks at in a chunk: short gaps and long ones, of several sequences each."""
    micros = np.where(
        rng.random(size) < 0.5, rng.integers(1, 500, size), rng.integers(2**18, 2**18 + 90, size)
    )
    return SimpleNamespace(
        ticks=micros * (TICKS_PER_SECOND // 10**6),
        rows=SimpleNamespace(spread={"continuing": rng.integers(0, 9, size)}.__getitem__),
        late=rng.integers(2**18, 2**21, 3) * (TICKS_PER_SECOND // 10**6),
        late_counts=rng.integers(1, 4, 3),
    )


@pytest.mark.parametrize("seed", [5, 10**6])
def test_mean_and_percentiles_are_those_of_all_gaps(seed):
    rng = np.random.default_rng(seed)
    engines = [TokenGaps() for _ in range(3)]
    every = []
    for number in range(24):
        taken = chunk(rng, 40)
        engines[number % 3].add(taken)
        every += [
            np.repeat(taken.ticks, taken.spread("continuing")),
            np.repeat(taken.late, taken.late_counts),
        ]
    whole = TokenGaps()
    for engine in engines:
        whole.include(engine)
    gaps = np.sort(np.concatenate(every)) / TICKS_PER_SECOND
    expected = {"mean": gaps.mean()}
    expected |= {f"p{p}": gaps[-(-p * len(gaps) // 100) - 1] for p in PERCENTILES}
    assert whole.summary() == pytest.approx(expected, rel=1e-12)


def test_where_nobody_has_two_tokens_there_is_no_gap():
    assert set(TokenGaps().summary().values()) == {None}


def test_a_request_that_is_swapped_out_right_after_its_prompt_has_one_long_gap():
    # Two samples each share one of three blocks. Their second tokens need copies: the later request leaves
    # room for those of the earlier one, and comes back when that is over.
    trace = ps.Trace(np.zeros(3), np.array([2, 1, 1]), np.array([2, 2, 1]), np.full(3, 2))
    result = ps.simulate(
        trace, "vllm-v0", vllm_version="0.1.7", num_blocks=3, block_size=16, cpu_blocks=1, watermark=0.0
    )
    requests = result.requests
    assert requests["swaps"].tolist() == [0, 1, 0]
    gaps = (requests["finish_s"] - requests["first_token_s"])[:2]
    assert result.summary["itl"]["mean"] == pytest.approx(gaps.mean(), rel=1e-12)
