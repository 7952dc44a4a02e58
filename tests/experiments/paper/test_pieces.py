"""What figures are made of: conversations, swaps copy by copy, servers, discrepancies."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import pagesim as ps
from pagesim.experiments.ablations import undo
from pagesim.experiments.paper import FIGURES, PaperSetting, chosen, reproduce
from pagesim.experiments.paper.conversations import PROMPT, as_conversations
from pagesim.experiments.paper.numbers import published
from pagesim.experiments.paper.setting import ENGINES, OPT_13B, SERVERS, SYSTEMS, engine_of
from pagesim.experiments.paper.swaps import (
    READ_AT_1_S,
    READ_AT_256_S,
    SIZES,
    TOKENS,
    blocks_profile,
    copy_by_copy,
)
from pagesim.experiments.paper.values import CONTEXTS, LINKS, MODELS, swap_over_recompute
from pagesim.models import model
from pagesim.setup.scenario import Scenario


def test_rounds_begin_with_what_was_said_before_and_are_cut() -> None:
    trace = ps.make_trace("fixed:100,300", arrivals="constant", rate=0.01, num_requests=7)
    made = as_conversations(trace, Scenario(rate=0.01))
    assert made.prompt_tokens.tolist() == [100, 500, 900, PROMPT, PROMPT, PROMPT, 100]


def test_conversations_that_are_not_cut_begin_anew_and_extend_one_another() -> None:
    trace = ps.make_trace("fixed:100,300", arrivals="constant", rate=0.01, num_requests=5)
    made = as_conversations(trace, Scenario(rate=0.01, policy="vllm-v1", enable_prefix_caching=True))
    assert made.prompt_tokens.tolist() == [100, 500, 900, 100, 500]
    assert made.session_id is not None
    assert made.session_id.tolist() == [0, 0, 0, 1, 1]


def test_conversations_take_turns() -> None:
    trace = ps.make_trace("fixed:10,10", arrivals="constant", rate=0.05, num_requests=9)
    made = as_conversations(trace, Scenario(rate=0.05))
    assert made.session_id is not None
    assert made.session_id.tolist() == [0, 1, 2] * 3
    assert made.prompt_tokens.tolist() == [10] * 3 + [30] * 3 + [50] * 3


def test_swaps_copy_by_copy_go_through_both_ends_of_the_papers_curve() -> None:
    profile = blocks_profile("profile:analytic-a100-40gb", "opt-13b", "a100-40gb", 1)
    found = undo(copy_by_copy(profile), model("opt-13b"), SIZES, TOKENS)
    swaps = {each.block_size: each.swap_s for each in found}
    assert swaps[1] == pytest.approx(READ_AT_1_S)
    assert swaps[256] == pytest.approx(READ_AT_256_S)
    assert all(np.diff([swaps[size] for size in SIZES]) < 0)


@pytest.mark.parametrize("name", ["fig19a", "fig19b"])
def test_a_cost_that_knows_no_block_sizes_is_refused_before_anything_is_replayed(
    name: str, tmp_path: Path
) -> None:
    with pytest.raises(ps.PagesimError, match="'affine:1,0,0', which knows no block sizes"):
        reproduce(chosen(["fig2", name]), PaperSetting(cost="affine:1,0,0"), tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("source", ENGINES)
def test_the_fitted_engine_goes_with_the_layers(source: str) -> None:
    fitted = ENGINES[source]
    for server in SERVERS:
        _, _, text = PaperSetting(cost=source).cost_on(server, "vllm-sosp").partition(",")
        numbers = {name: float(value) for name, value in (part.split("=") for part in text.split(","))}
        layers = model(server.model).layers / 40
        assert numbers["overhead_s"] == pytest.approx(fitted.iteration_s * layers)
        assert numbers["sequence_s"] == pytest.approx(fitted.sequence_s * layers)
    assert PaperSetting(cost="affine:1,0,0").cost_on(OPT_13B, "vllm-sosp") == "affine:1,0,0"


def test_orca_runs_in_the_papers_engine_and_fastertransformer_in_none() -> None:
    times = {policy: engine_of("imported", "opt-13b", policy) for policy in SYSTEMS}
    assert times.pop("static").sequence_s == 0
    assert set(times.values()) == {ENGINES["imported"]}


def test_a_block_size_that_no_measured_profile_knows_takes_the_engine_of_the_analytic_one() -> None:
    cost = PaperSetting(cost="imported").cost_on(OPT_13B, "vllm-sosp", block_sizes=True)
    assert cost == PaperSetting(cost="analytic").cost_on(OPT_13B, "vllm-sosp")
    profile = blocks_profile(cost, "opt-13b", "a100-40gb", 1)
    analytic = ENGINES["analytic"]
    assert profile.terms.overhead(10) == pytest.approx(analytic.iteration_s + 10 * analytic.sequence_s)


def test_a_faster_link_and_a_longer_context_speak_for_swapping() -> None:
    for name in MODELS:
        for tokens in CONTEXTS:
            ratios = [swap_over_recompute(name, tokens, link) for link in LINKS]
            assert ratios == sorted(ratios, reverse=True)
        for link in LINKS:
            ratios = [swap_over_recompute(name, tokens, link) for tokens in CONTEXTS]
            assert ratios == sorted(ratios, reverse=True)


def test_every_figure_has_the_same_loads_with_a_shorter_trace() -> None:
    for each in FIGURES.values():
        assert each.loads(PaperSetting(quick=True)).keys() == each.loads(PaperSetting()).keys()
        assert (each.form is None) == bool(each.missing)
    assert chosen(["all"]) == list(FIGURES.values())
    assert [each.name for each in chosen(["fig2", "table1", "fig2"])] == ["fig2", "table1"]


def test_a_quick_load_is_the_first_twentieth_with_its_windows() -> None:
    whole, quick = (
        FIGURES["fig2"].loads(PaperSetting(quick=quick))["vLLM", ""].scenario for quick in (False, True)
    )
    assert (whole.duration, whole.window, whole.until) == (900, "300:900", 900)
    assert (quick.duration, quick.window, quick.until) == (45, "15:45", 45)


def test_with_costs_of_ones_own_nothing_was_fitted(tmp_path: Path) -> None:
    setting = PaperSetting(cost="affine:0.024,1e-4,8.2e-7", quick=True)
    (made,) = reproduce(chosen(["fig13"]), setting, tmp_path, cores=1)
    assert {number.verdict for number in made.numbers} <= {"holds", "misses", "no bar"}


@pytest.mark.parametrize("name", ["fig2", "fig13", "fig15", "fig18b"])
def test_a_load_stands_for_numbers_of_the_paper(name: str) -> None:
    series = {series for series, _ in published(name)}
    assert {series for series, _ in FIGURES[name].loads(PaperSetting())} <= series
