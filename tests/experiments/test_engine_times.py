"""An engine's own time is found again in the runs that it shaped."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import pagesim as ps
from pagesim.costs import EngineTime
from pagesim.errors import PagesimError
from tests.experiments.test_accuracy import PAGE

Means, MeasuredRun = PAGE.Means, PAGE.MeasuredRun
fit_engine_time, fit_frontend = PAGE.fit_engine_time, PAGE.fit_frontend

TRUE = EngineTime(1.7e-3, 4.2e-5)


def closed_loop(concurrency: int) -> Callable[[EngineTime], Means]:
    trace = ps.make_trace("fixed:500,100", num_requests=3 * concurrency, arrivals="all-at-once")

    def simulate(engine: EngineTime) -> Means:
        cost = f"roofline:overhead_s={engine.iteration_s},sequence_s={engine.sequence_s}"
        summary = ps.simulate(
            trace,
            "vllm-v1",
            model="llama-3-8b",
            gpu="h100",
            kv_cache_dtype="bf16",
            max_concurrency=concurrency,
            cost=cost,
            steps="none",
        ).summary
        return Means(summary["tpot"]["mean"], summary["ttft"]["mean"])

    return simulate


def measured(*concurrencies: int, frontend_s: float = 0.0, noise: float = 0.0) -> list[MeasuredRun]:
    runs = []
    for place, concurrency in enumerate(concurrencies):
        simulate = closed_loop(concurrency)
        tpot, ttft = simulate(TRUE)
        factor = 1 + noise * (-1) ** place
        runs.append(MeasuredRun(str(concurrency), Means(tpot * factor, ttft + frontend_s), simulate))
    return runs


def test_both_numbers_are_found_again():
    found = fit_engine_time(measured(4, 16, 64, 128))
    assert found.iteration_s == pytest.approx(TRUE.iteration_s, rel=0.01)
    assert found.sequence_s == pytest.approx(TRUE.sequence_s, rel=0.01)
    assert found.source == "fitted to 4 runs"


def test_noise_of_a_percent_moves_them_by_little():
    found = fit_engine_time(measured(4, 8, 16, 32, 64, 128, noise=0.01))
    assert found.iteration_s == pytest.approx(TRUE.iteration_s, rel=0.1)
    assert found.sequence_s == pytest.approx(TRUE.sequence_s, rel=0.1)


def test_what_first_tokens_take_beyond_the_engine_is_the_front_end():
    assert fit_frontend(measured(4, 16, 64, frontend_s=0.013), TRUE) == pytest.approx(0.013)
    assert fit_frontend(measured(4, 16, 64, frontend_s=-0.01), TRUE) == 0


def test_a_server_that_is_faster_than_its_kernels_gets_no_time_of_its_own():
    faster = [
        MeasuredRun(run.name, Means(run.measured.tpot_s / 3, 1.0), run.simulate) for run in measured(4, 64)
    ]
    assert fit_engine_time(faster).iteration_s == 0


@pytest.mark.parametrize("concurrencies", [(16,), (16, 16, 16)])
def test_runs_of_one_load_do_not_tell_the_two_apart(concurrencies):
    with pytest.raises(PagesimError, match="tell seconds an iteration from seconds a sequence"):
        fit_engine_time(measured(*concurrencies))
