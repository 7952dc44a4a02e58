"""Profiles of Frontier's attention, for any block size."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from pagesim.costs import Profiled, step_shape
from pagesim.costs.profiles import ANY_BLOCK, LAUNCH_S, Profile, analytic_profile, import_vidur
from pagesim.hardware import gpu
from pagesim.models import model

LLAMA, A80 = model("llama-2-7b"), gpu("a100-80gb")


def frontier(linear: Path | None, attention: Path, tp: int = 1) -> Profile:
    """Return the profile of files in Frontier's schema."""
    return import_vidur(
        linear, attention, model=LLAMA, gpu=A80, tp=tp, name="x", source="a test", any_block=True
    )


@pytest.fixture
def files(vidur_files) -> tuple[Path, Path]:
    """Return linear layers and attention, with chunks behind histories."""
    linear, attention, _ = vidur_files()
    rows = pd.read_csv(attention)
    chunks = rows[rows.is_prefill]
    behind = chunks.assign(kv_cache_size=1024)
    behind["time_stats.attn_prefill.median"] += 1e-7 * 1024 * behind.prefill_chunk_size
    pd.concat([rows, behind]).to_csv(attention, index=False)
    return linear, attention


def test_attention_is_what_was_measured_and_serves_any_block_size(files) -> None:
    linear, attention = files
    profile = frontier(linear, attention)
    decode, prefill = profile.terms.decode[ANY_BLOCK], profile.terms.prefill[ANY_BLOCK]
    assert decode(4, 1025) == pytest.approx(32e-3 * (0.01 + 1e-5 * 4 * 1025), rel=1e-5)
    pairs = 512 * 1024 + 512 * 513 // 2
    assert prefill(512, pairs / 512) == pytest.approx(32e-3 * (0.02 + 1e-7 * pairs), rel=1e-5)
    assert profile.origins["decode"] == profile.origins["linear"] == "imported"
    assert Profiled(profile, LLAMA, block_size=1).iteration(step_shape(4, 4100)) == Profiled(
        profile, LLAMA, block_size=64
    ).iteration(step_shape(4, 4100))


def test_a_division_shares_the_heads_and_not_the_launches(files) -> None:
    whole, half = (frontier(None, files[1], tp=tp).terms for tp in (1, 2))
    launches = LLAMA.layers * LAUNCH_S
    one, two = (terms.decode[ANY_BLOCK](16, 1025) for terms in (whole, half))
    assert two - launches == pytest.approx((one - launches) / 2, rel=1e-4)
    datasheet = analytic_profile(A80, LLAMA, tp=2).terms
    assert half.linear == datasheet.linear, "no linear layers were given"
    assert half.all_reduce == datasheet.all_reduce


def test_several_prompts_at_once_are_points_like_any_other(files) -> None:
    """Four prompts of 512 attend to as many keys a token as one of them, and to four times the pairs."""
    attention = files[1]
    rows = pd.read_csv(attention)
    several = rows[rows.is_prefill & (rows.kv_cache_size == 0)].assign(batch_size=4)
    several["time_stats.attn_prefill.median"] = (
        0.02 + 4e-7 * several.prefill_chunk_size * (several.prefill_chunk_size + 1) / 2
    )
    pd.concat([rows, several]).to_csv(attention, index=False)
    prefill = frontier(None, attention).terms.prefill[ANY_BLOCK]
    assert prefill(4 * 512, 513 / 2) == pytest.approx(32e-3 * (0.02 + 4e-7 * 512 * 513 / 2), rel=1e-4)


def test_the_published_attention_is_within_its_bars(shared: Path) -> None:
    attention = shared / "data" / "profiles" / "a800_llama2_7b_attention.csv"
    profile = frontier(None, attention)
    for term, bar in (("decode", 0.02), ("prefill", 0.06)):
        assert profile.errors[term].points > 100
        assert profile.errors[term].mean < bar
    assert max(map(len, profile.terms.decode[ANY_BLOCK].knots)) <= 16
