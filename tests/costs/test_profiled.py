"""The cost model of a profile: its terms added up, exact in fast-forwards, never silently beyond its data."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import pagesim as ps
from pagesim.costs import EngineTime, IterationShape, Profiled, Target, parse_cost, step_shape
from pagesim.costs.profiles import Launching, Profile, Range, analytic_profile
from pagesim.costs.table import Table
from pagesim.errors import PagesimError
from pagesim.hardware import gpu
from pagesim.models import model
from pagesim.sim.clock import to_ticks

OPT, A100 = model("opt-13b"), gpu("a100-40gb")
ENGINE = EngineTime(2e-3, 3e-5)


@pytest.fixture
def profile() -> Profile:
    """Return one whose decode attention is no single line, and whose measurements end early."""
    analytic = analytic_profile(A100, OPT)
    decode = Table.of(
        {"sequences": (1, 4, 40), "context": (1, 150, 256, 300, 600, 2000)},
        lambda batch, mean: 1e-4 + 1e-6 * batch + 3e-7 * batch * mean**1.2,
    )
    ranges = {
        "linear": Range(least=1, most=64),
        "decode": Range(least=1, most=32, most_context=2000),
        "swap_out": Range(least=1, most=8),
    }
    terms = analytic.terms.model_copy(update={"decode": {16: decode}})
    return analytic.model_copy(update={"terms": terms, "ranges": ranges})


def test_an_iteration_is_the_sum_of_its_terms(profile: Profile) -> None:
    terms = profile.terms
    shape = IterationShape(40, 40, 900, 500, 36 * 37 // 2, 3, 2, 1, 4, 5)
    seconds = (
        terms.linear(40)
        + terms.head(5)
        + terms.write(40)
        + ENGINE.iteration_s
        + 5 * ENGINE.sequence_s
        + terms.decode[16](4, 125)
        + terms.prefill[16](36, 37 / 2)
        + terms.swap_out[16](3)
        + terms.swap_in[16](2)
        + terms.copy_[16](1)
    )
    # A token of context takes whole ticks, so 500 of them may be 250 ticks off.
    assert Profiled(profile, OPT, engine=ENGINE).iteration(shape) == pytest.approx(seconds * 1e12, abs=255)


def test_an_iteration_that_only_swaps_takes_the_transfers_alone(profile: Profile) -> None:
    shape = IterationShape(0, 0, 0, 0, 0, 7, 0, 0, 0, 0)
    assert Profiled(profile, OPT).iteration(shape) == to_ticks(profile.terms.swap_out[16](7))


def test_fast_forward_changes_nothing_under_a_profile(profile: Profile, tmp_path) -> None:
    profile.save(tmp_path / "p.json")
    rng = np.random.default_rng(1)
    trace = ps.Trace(np.cumsum(rng.exponential(2, 40)), rng.integers(1, 600, 40), rng.integers(1, 400, 40))
    fast, stepping = (
        ps.simulate(
            trace,
            "vllm-sosp",
            num_blocks=300,
            cost=f"profile:{tmp_path / 'p.json'}",
            fast_forward=forward,
            steps="iterations",
        )
        for forward in (True, False)
    )
    pd.testing.assert_frame_equal(fast.steps, stepping.steps, check_exact=True)
    assert fast.summary["extrapolated"] == stepping.summary["extrapolated"] != {}
    assert fast.summary["sim"]["rows"] < stepping.summary["sim"]["rows"] / 2


def test_what_lies_beyond_the_measurements_is_said_with_its_axis(profile: Profile) -> None:
    cost = Profiled(profile, OPT)
    cost.iteration(step_shape(32, 32 * 2000))
    assert not cost.beyond
    cost.iteration(step_shape(33, 33 * 2001))
    cost.iteration(step_shape(50, 50 * 10))
    cost.iteration(IterationShape(100, 100, 100, 0, 5050, 9, 0, 0, 0, 1))
    assert dict(cost.beyond) == {
        "decode: sequences that decode": 50,
        "decode: tokens of mean context": 2001,
        "linear: tokens in an iteration": 100,
        "swap_out: blocks swapped out at once": 9,
    }


def test_a_run_beyond_the_measurements_ends_with_a_note(profile: Profile, tmp_path) -> None:
    profile.save(tmp_path / "p.json")
    trace = ps.Trace(np.zeros(1), np.array([100]), np.array([3]))
    result = ps.simulate(trace, "vllm-sosp", cost=f"profile:{tmp_path / 'p.json'}")
    (note,) = [note for note in result.notes if "extrapolated" in note]
    assert note.endswith("is extrapolated beyond what was measured of linear, to 100 tokens in an iteration")
    assert result.summary["extrapolated"] == {"linear: tokens in an iteration": 100}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model": model("opt-66b")}, "is for opt-13b, not opt-66b; calibrate opt-66b"),
        ({"tp": 2}, "is for tp 1, not 2"),
        ({"kv_dtype": "fp8"}, "measured with kv_dtype fp16, not fp8"),
        ({"block_size": 32}, "was not measured at block_size 32; it knows 16"),
    ],
)
def test_a_profile_of_something_else_is_refused(change, said, profile: Profile) -> None:
    with pytest.raises(PagesimError, match=said):
        Profiled(profile, **{"model": OPT, **change})


def test_an_overhead_that_was_not_measured_can_be_given() -> None:
    def cost(text: str) -> Profiled:
        return parse_cost(text, Target(model=OPT, gpu=A100, tp=1, block_size=16, kv_dtype="fp16"))

    more = cost("profile:analytic-a100-40gb,overhead_s=0.013").iteration(step_shape(1, 10))
    assert more - cost("profile:analytic-a100-40gb").iteration(step_shape(1, 10)) == pytest.approx(1e10)
    for text, said in (
        ("profile:analytic-a100-40gb,overhead_s=99", "from 0 to 10 s"),
        ("profile:analytic-a100-40gb,speed=1", "takes overhead_s, sequence_s, max_error, not 'speed'"),
        ("profile:analytic-a100-40gb,overhead_s=fast", "'fast' is not a number"),
        ("profile:analytic-a100-40gb,overhead_s=0.001,sequence_s=-1", "from 0 to 1 s"),
    ):
        with pytest.raises(PagesimError, match=said):
            cost(text)


def test_the_engines_own_time_of_each_sequence_that_gets_a_token_can_be_given() -> None:
    def ticks(options: str, sequences: int) -> int:
        text = f"profile:analytic-a100-40gb{options}"
        cost = parse_cost(text, Target(model=OPT, gpu=A100, tp=1, block_size=16, kv_dtype="fp16"))
        return cost.iteration(step_shape(sequences, 10 * sequences))

    both = ",overhead_s=0.001,sequence_s=2e-4"
    for sequences in (1, 7, 300):
        more = ticks(both, sequences) - ticks(",overhead_s=0", sequences)
        assert more == pytest.approx((1e-3 + 2e-4 * sequences) * 1e12)
        alone = ticks(",sequence_s=2e-4", sequences) - ticks("", sequences)
        assert alone == pytest.approx(2e-4 * sequences * 1e12), "the time an iteration stays"


def test_where_the_host_launches_for_longer_than_the_device_computes_the_host_counts(profile):
    terms = profile.terms
    device = terms.linear(4) + terms.head(4) + terms.write(4)
    host = device + terms.decode[16](4, 300)
    launching = Launching(decode_s=host, prompt_s=2 * host, mixed_s=3 * host)
    slow = profile.model_copy(update={"terms": terms.model_copy(update={"launching": launching})})
    cost, free = (Profiled(each, OPT, engine=ENGINE) for each in (slow, profile))
    overhead = to_ticks(ENGINE.iteration_s + 4 * ENGINE.sequence_s)
    assert cost.iteration(step_shape(4, 400)) == to_ticks(host) + overhead
    assert cost.iteration(step_shape(4, 4 * 600)) == free.iteration(step_shape(4, 4 * 600))
    prompt = IterationShape(8, 8, 8, 0, 36, 0, 0, 0, 0, 4)
    assert cost.iteration(prompt) == to_ticks(2 * host) + overhead
    mixed = IterationShape(12, 12, 412, 400, 36, 3, 0, 0, 4, 4)
    assert cost.iteration(mixed) == to_ticks(3 * host) + overhead + to_ticks(terms.swap_out[16](3))


def test_a_quantized_release_takes_profiles_of_its_base_in_its_weight_dtype() -> None:
    base, release = model("llama-3.1-8b"), model("llama-3.1-8b-fp8")
    of_base = analytic_profile(A100, base.with_weights("fp8")).model_copy(update={"kind": "measured"})
    shape = step_shape(8, 4000)
    assert Profiled(of_base, release).iteration(shape) == Profiled(
        of_base, base.with_weights("fp8")
    ).iteration(shape)
    with pytest.raises(PagesimError, match="is of weights in fp8, not bf16"):
        Profiled(of_base, base)


def test_the_host_launches_a_prompt_that_no_graph_does(profile: Profile) -> None:
    launching = Launching(prompt_s=0.5, mixed_s=0.5, unless_graphed=True)
    terms = profile.terms.model_copy(update={"launching": launching})
    slow = profile.model_copy(update={"terms": terms})
    graphed = EngineTime(2e-3, 3e-5, graphs_to=48)
    with_graphs, without = Profiled(slow, OPT, engine=graphed), Profiled(slow, OPT, engine=ENGINE)
    plain = Profiled(profile, OPT, engine=ENGINE)
    own = to_ticks(ENGINE.iteration_s + ENGINE.sequence_s)
    graphed_prompt, longer = step_shape(0, 0, prompt=48), step_shape(0, 0, prompt=49)
    assert with_graphs.iteration(graphed_prompt) == plain.iteration(graphed_prompt)
    assert with_graphs.iteration(longer) == without.iteration(longer) == own + to_ticks(0.5)
    assert with_graphs.iteration(step_shape(4, 400)) == plain.iteration(step_shape(4, 400))
    always = profile.model_copy(
        update={"terms": profile.terms.model_copy(update={"launching": Launching(prompt_s=0.5)})}
    )
    assert Profiled(always, OPT, engine=graphed).iteration(graphed_prompt) == own + to_ticks(0.5), (
        "a machine that was measured without such graphs has none"
    )


def test_a_profile_that_timed_the_sampler_does_not_pay_it_again() -> None:
    profile = analytic_profile(A100, OPT)
    timed = profile.model_copy(update={"machine": {**profile.machine, "sampler": "timed with the LM head"}})
    hidden, shape = EngineTime(2e-3, 3e-5, of_sampler=True), step_shape(4, 800)
    plain = Profiled(profile, OPT, engine=hidden).iteration(shape)
    assert plain - Profiled(timed, OPT, engine=hidden).iteration(shape) == to_ticks(2e-3)
    # A loop that is not hidden is the host's, whatever was timed of the device.
    assert Profiled(timed, OPT, engine=ENGINE).iteration(shape) == plain
