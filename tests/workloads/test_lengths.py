"""Length distributions have the moments they are named by; a fitted model keeps its source's shape."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagesim.errors import PagesimError
from pagesim.workloads import (
    Fixed,
    LengthModel,
    Lognormal,
    Provenance,
    Uniform,
    fit,
    parse_lengths,
)
from pagesim.workloads import model as models
from pagesim.workloads.trace import Trace

SOURCE = Provenance("a test", "made up", "none")


def skewed(size: int, seed: int = 0) -> Trace:
    """Lengths like a chat's: short prompts are common, long prompts go with long outputs."""
    rng = np.random.default_rng(seed)
    prompts = np.clip(rng.lognormal(4, 1.5, size).astype(int), 1, 1500)
    return Trace(np.zeros(size), prompts, np.clip(prompts // 3 + rng.integers(1, 40, size), 1, 500))


def test_distributions_are_spelt_in_text():
    assert parse_lengths("fixed:512,128") == Fixed(512, 128)
    assert parse_lengths("uniform:1-9, 20-30") == Uniform((1, 9), (20, 30))
    assert parse_lengths("lognormal:161.3,1.5,338,0.8") == Lognormal(161.3, 1.5, 338, 0.8)


@pytest.mark.parametrize(
    "spec",
    [
        "",
        "fixed",
        "fixed:",
        "fixed:1",
        "fixed:1,2,3",
        "fixed:0,5",
        "fixed:2.5,5",
        "fixed:-1,5",
        "fixed:nan,5",
        "fixed:99999999,1",
        f"fixed:{'9' * 400},1",
        "uniform:9-3,1-2",
        "uniform:0-3,1-2",
        "uniform:1,2",
        "lognormal:100,1,50",
        "lognormal:0,1,50,1",
        "lognormal:100,1e3,50,1",
        "lognormal:100,500,50,1",
        "zipf:1,2",
    ],
)
def test_a_text_that_names_no_distribution_is_refused_in_a_sentence(spec):
    with pytest.raises(PagesimError, match=r"^lengths '.*(write|must be|from|ends before)") as caught:
        parse_lengths(spec)
    assert "\n" not in str(caught.value)


def test_fixed_lengths_are_all_the_same():
    prompts, outputs = Fixed(512, 128).sample(3, np.random.default_rng(0))
    assert prompts.tolist() == [512] * 3
    assert outputs.tolist() == [128] * 3


def test_uniform_lengths_reach_both_ends():
    prompts, outputs = Uniform((2, 4), (7, 7)).sample(500, np.random.default_rng(0))
    assert set(prompts.tolist()) == {2, 3, 4}
    assert set(outputs.tolist()) == {7}


def test_lognormal_lengths_have_their_mean_and_cv():
    prompts, outputs = Lognormal(1000, 0.8, 300, 0.0).sample(200_000, np.random.default_rng(0))
    assert prompts.mean() == pytest.approx(1000, rel=0.01)
    assert prompts.std() / prompts.mean() == pytest.approx(0.8, rel=0.02)
    assert set(outputs.tolist()) == {300}


def test_a_fitted_model_is_close_to_its_source_in_mean_median_and_tail():
    model = fit(skewed(20_000), "skewed", SOURCE)
    for name, source in model.source_stats.items():
        fitted = model.model_stats[name]
        assert fitted["mean"] == pytest.approx(source["mean"], rel=0.01), name
        assert fitted["median"] == pytest.approx(source["median"], rel=0.02, abs=1), name
        assert fitted["p99"] == pytest.approx(source["p99"], rel=0.03), name


def test_a_fitted_model_keeps_the_correlation_of_prompt_and_output():
    trace = skewed(20_000)
    prompts, outputs = fit(trace, "skewed", SOURCE).sample(50_000, np.random.default_rng(0))
    wanted = np.corrcoef(trace.prompt_tokens, trace.output_tokens)[0, 1]
    assert np.corrcoef(prompts, outputs)[0, 1] == pytest.approx(wanted, abs=0.02)


@given(
    pairs=st.lists(st.tuples(st.integers(1, 3000), st.integers(1, 3000)), min_size=1, max_size=30),
    bound=st.one_of(st.none(), st.integers(3, 4000)),
)
def test_a_model_samples_only_lengths_within_its_source_and_its_bound(pairs, bound):
    prompts, outputs = map(np.array, zip(*pairs, strict=True))
    trace = Trace(np.zeros(len(pairs)), prompts, outputs)
    if bound is not None and (prompts + outputs >= bound).all():
        with pytest.raises(PagesimError, match="no request to fit"):
            fit(trace, "x", SOURCE, total_below=bound)
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(models, "STATS_SAMPLE", 100)  # its statistics are not what this is about
        model = fit(trace, "x", SOURCE, total_below=bound)
    some_prompts, some_outputs = model.sample(50_000, np.random.default_rng(0))
    assert prompts.min() <= some_prompts.min() <= some_prompts.max() <= prompts.max()
    assert outputs.min() <= some_outputs.min() <= some_outputs.max() <= outputs.max()
    assert bound is None or (some_prompts + some_outputs).max() < bound


def test_a_model_captures_recorded_arrivals():
    trace = Trace(np.arange(100) / 4, np.ones(100), np.ones(100))
    model = fit(trace, "steady", SOURCE)
    assert (model.rate, model.cv) == (4.0, 0.0)


def test_a_model_comes_back_from_its_file(tmp_path):
    model = fit(skewed(500), "skewed", SOURCE, total_below=1000)
    (tmp_path / "m.json").write_text(model.to_json(), encoding="utf-8")
    again = LengthModel.load(tmp_path / "m.json")
    assert again.to_json() == model.to_json()
    assert again.provenance == SOURCE
    left, right = (m.sample(100, np.random.default_rng(4)) for m in (model, again))
    assert np.array_equal(left, right)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schema": "other"}, 'is no length model; one has "schema": "pagesim-lengths"'),
        ({"version": 2}, "schema version is 2; this release reads 1"),
        ({"counts": None}, "the length model is damaged"),
        ({"counts": [[1, 2]]}, "the length model is damaged (counts is no table of"),
        ({"prompt_edges": [5, 4]}, "the length model is damaged (prompt_edges does not ascend"),
        ({"output_edges": "x"}, "the length model is damaged (output_edges is no list"),
        ({"total_below": 2}, "the length model is damaged (counts holds requests of total_below = 2"),
        ({"total_below": "x"}, "the length model is damaged"),
        ({"provenance": {"who": 1}}, "the length model is damaged"),
        ({"stats": 3}, "the length model is damaged"),
        ({"arrivals": {"rate": 1}}, "the length model lacks 'rate_per_s'"),
    ],
)
def test_a_file_that_is_no_model_is_refused_in_a_sentence(tmp_path, change, said):
    path = tmp_path / "m.json"
    path.write_text(json.dumps(json.loads(fit(skewed(50), "s", SOURCE).to_json()) | change))
    with pytest.raises(PagesimError) as caught:
        LengthModel.load(path)
    assert str(caught.value).startswith(f"{path}: {said}")


def test_a_truncated_or_missing_model_is_refused(tmp_path):
    path = tmp_path / "m.json"
    with pytest.raises(PagesimError, match="cannot be read"):
        LengthModel.load(path)
    path.write_text(fit(skewed(50), "s", SOURCE).to_json()[:-20])
    with pytest.raises(PagesimError, match="is not complete JSON"):
        LengthModel.load(path)
