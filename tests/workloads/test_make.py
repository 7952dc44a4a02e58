"""One call makes a trace from a bundled workload, a distribution or a file."""

import hashlib
import subprocess
import sys

import numpy as np
import pytest

from pagesim.errors import PagesimError, TraceError
from pagesim.workloads import (
    DEFAULT_REQUESTS,
    NO_ARRIVALS,
    Provenance,
    arrival_rate,
    fit,
    gap_cv,
    has_recorded_arrivals,
    load,
    make_trace,
    workload,
    workloads,
)
from pagesim.workloads.bundled import DATA, NAMES
from pagesim.workloads.trace import Trace


@pytest.mark.parametrize("name", NAMES)
def test_a_bundled_model_is_as_close_to_its_source_as_promised(name):
    model = workload(name)
    for column, source in model.source_stats.items():
        fitted = model.model_stats[column]
        assert fitted["mean"] == pytest.approx(source["mean"], rel=0.01), column
        assert fitted["median"] == pytest.approx(source["median"], rel=0.02, abs=1), column
        assert fitted["p99"] == pytest.approx(source["p99"], rel=0.03), column


@pytest.mark.parametrize("name", NAMES)
def test_a_bundled_model_is_small_and_says_where_it_comes_from(name):
    assert (DATA / f"{name}.json").stat().st_size < 60_000
    provenance = workload(name).provenance
    assert provenance.source
    assert provenance.licence
    assert workloads()[name] == provenance.description


def test_the_sharegpt_model_has_the_papers_means():
    stats = workload("sharegpt").model_stats
    assert stats["prompt_tokens"]["mean"] == pytest.approx(161.31, rel=0.01)
    assert stats["output_tokens"]["mean"] == pytest.approx(337.99, rel=0.01)


PUBLISHED = {
    "sharegpt": "sharegpt_sosp23_opt.parquet",
    "alpaca": "alpaca_sample_gpt2bpe.parquet",
    "azure-conv": "raw/AzureLLMInferenceTrace_conv.csv",
}


@pytest.mark.parametrize("name", NAMES)
def test_a_bundled_model_is_what_the_published_trace_gives(name, shared):
    bundled = workload(name)
    trace = load(shared / "data" / PUBLISHED[name])
    made = fit(trace, name, bundled.provenance, total_below=bundled.total_below)
    assert made.to_json() == (DATA / f"{name}.json").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", [*NAMES, "fixed:512,128", "lognormal:100,1,50,1"])
def test_a_model_gives_a_thousand_requests_when_nothing_is_asked(name):
    assert len(make_trace(name)) == DEFAULT_REQUESTS


def test_a_fitted_workload_arrives_as_it_was_recorded():
    trace = make_trace("azure-conv", num_requests=20_000)
    assert arrival_rate(trace.arrival_s) == pytest.approx(5.53, rel=0.03)
    assert gap_cv(trace.arrival_s) == pytest.approx(1.094, rel=0.03)
    assert has_recorded_arrivals(trace)


def test_a_model_without_arrivals_says_that_all_arrive_at_once():
    trace = make_trace("alpaca")
    assert not trace.arrival_s.any()
    assert NO_ARRIVALS in trace.notes


def test_a_rate_alone_means_poisson_and_a_cv_means_gamma():
    assert any("arrivals: poisson" in note for note in make_trace("alpaca", rate=2.0).notes)
    assert any("arrivals: gamma" in note for note in make_trace("alpaca", rate=2.0, cv=2.0).notes)


def test_the_papers_generator_runs_on_a_bundled_workload():
    trace = make_trace("sharegpt", arrivals="sosp", rate=4.0, duration=900)
    assert len(trace) == 3604
    assert (trace.prompt_tokens + trace.output_tokens).max() < 2048


def test_lengths_do_not_depend_on_how_requests_arrive():
    slow = make_trace("sharegpt", rate=1.0, num_requests=50, seed=9)
    bursty = make_trace("sharegpt", rate=5.0, cv=4.0, num_requests=50, seed=9)
    assert slow.prompt_tokens.tolist() == bursty.prompt_tokens.tolist()


def digest(name: str, seed: int) -> str:
    trace = make_trace(name, rate=2.0, duration=60, seed=seed)
    columns = (trace.arrival_s, trace.prompt_tokens, trace.output_tokens)
    return hashlib.sha256(b"".join(column.tobytes() for column in columns)).hexdigest()


def test_the_same_seed_gives_the_same_trace_in_another_process():
    code = (
        "import hashlib; from pagesim.workloads import make_trace\n"
        "t = make_trace('azure-conv', rate=2.0, duration=60, seed=7)\n"
        "c = (t.arrival_s, t.prompt_tokens, t.output_tokens)\n"
        "print(hashlib.sha256(b''.join(x.tobytes() for x in c)).hexdigest())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == digest("azure-conv", 7)
    assert digest("azure-conv", 8) != digest("azure-conv", 7)


def test_a_file_is_read_with_its_arrivals(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n0.5,10,20\n2,11,21\n")
    assert make_trace(path).arrival_s.tolist() == [0.5, 2.0]
    assert make_trace(str(path), duration=1).prompt_tokens.tolist() == [10]
    assert len(make_trace(path, rate=3.0, num_requests=5)) == 5


def test_a_file_without_arrivals_is_read_with_a_note(tmp_path):
    path = tmp_path / "t"
    path.write_text("[[5, 6], [7, 8]]")
    trace = make_trace(path)
    assert trace.prompt_tokens.tolist() == [5, 7]
    assert NO_ARRIVALS in trace.notes


@pytest.mark.parametrize("name", ["sharegtp", "ShareGPT", "share-gpt"])
def test_a_name_that_is_nearly_right_gets_a_hint(name):
    with pytest.raises(TraceError, match=r"alpaca, azure-conv; did you mean sharegpt\?"):
        make_trace(name)


@pytest.mark.parametrize("name", ["nothing", "no/such/trace.csv", "x" * 5000, "a\0b", ""])
def test_a_name_of_nothing_is_refused_in_a_sentence(name):
    with pytest.raises(TraceError) as caught:
        make_trace(name)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("alpaca", {"arrivals": "recorded"}, "arrivals recorded need a file that recorded them"),
        ("alpaca", {"arrivals": "replay", "rate": 2.0}, "arrivals replay need a file that recorded them"),
        ("alpaca", {"duration": 5.0}, "alpaca has no arrivals to cut at 5 s; give a rate as well"),
        ("alpaca", {"arrivals": "poisson"}, "arrivals poisson need a rate"),
        ("alpaca", {"arrivals": "sosp", "rate": 2.0}, "arrivals sosp need a duration"),
        ("alpaca", {"cv": 2.0}, "arrivals gamma need a rate"),
        ("alpaca", {"seed": -1}, "seed is -1; it must be a whole number from 0"),
        ("fixed:0,5", {}, "lengths 'fixed:0,5': a length is 0"),
        ("fixed:2000,500", {"arrivals": "sosp", "rate": 2.0, "duration": 9.0}, "arrivals sosp keep requests"),
    ],
)
def test_options_that_do_not_fit_are_refused_in_a_sentence(name, options, said):
    with pytest.raises(PagesimError) as caught:
        make_trace(name, **options)
    assert str(caught.value).startswith(said)


def test_an_unknown_bundled_workload_is_refused_with_the_names():
    with pytest.raises(PagesimError, match="the bundled ones are sharegpt, alpaca, azure-conv"):
        workload("nothing")


@pytest.mark.slow
def test_a_long_trace_is_sampled_without_delay():
    assert np.isfinite(make_trace("sharegpt", rate=100.0, num_requests=1_000_000).arrival_s).all()


def test_a_file_that_fit_made_is_sampled_like_a_bundled_workload(tmp_path):
    trace = Trace(np.zeros(500), np.arange(1, 501), np.full(500, 7))
    path = tmp_path / "mine.json"
    path.write_text(fit(trace, "mine", Provenance("a ramp", "this test", "none")).to_json(), encoding="utf-8")
    sampled = make_trace(path, num_requests=200)
    assert len(sampled) == 200
    assert set(sampled.output_tokens) == {7}
    assert sampled.prompt_tokens.max() <= 500
