"""ServeGen's pools: each client sends at its own rate, in its own bursts, with its own lengths."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pagesim as ps
from pagesim.errors import PagesimError, TraceError
from pagesim.workloads.servegen import generate, parse_servegen, read_pool

STEADY = "0,2.0,1.0,Gamma,1.0,0.5\n600,0.5,1.0,Gamma,1.0,2.0\n1200,0.0,0.0,,0,0\n"
BURSTY = "0,1.0,4.0,Gamma,0.0625,16.0\n600,1.0,2.0,Weibull,0.54,0.57\n1200,1.0,2.0,Weibull,0.54,0.57\n"
SHORT = {"0": {"input_tokens": "{10: 0.5, 20: 0.5}", "output_tokens": "{1: 0.5, 2: 0.5}"}}
LONG = {
    "0": {"input_tokens": "{1000: 1.0}", "output_tokens": "{100: 1.0}"},
    "600": {"input_tokens": "{2000: 1.0}", "output_tokens": "{100: 1.0}"},
    "1200": {"input_tokens": "{}", "output_tokens": "{}"},
}


@pytest.fixture
def pool(tmp_path: Path) -> Path:
    for number, (trace, dataset) in enumerate([(STEADY, SHORT), (BURSTY, LONG)], 1):
        (tmp_path / f"chunk-{number}-trace.csv").write_text(trace)
        (tmp_path / f"chunk-{number}-dataset.json").write_text(json.dumps(dataset))
    return tmp_path


def made(pool: Path, at: str = "", **options: object) -> ps.Trace:
    return ps.make_trace(f"servegen:{pool}{at}", **{"duration": 600, **options})


def test_each_client_sends_as_much_as_its_rate_says(pool: Path) -> None:
    trace = made(pool)
    short = trace.prompt_tokens < 1000
    assert short.sum() == 1200
    assert (~short).sum() == 600
    assert set(trace.prompt_tokens[short].tolist()) == {10, 20}
    assert trace.arrival_s[-1] < 600
    assert (np.diff(trace.arrival_s) >= 0).all()


def test_gaps_are_as_bursty_as_the_clients(pool: Path) -> None:
    trace = made(pool)
    for part, cv in ((trace.prompt_tokens < 1000, 1.0), (trace.prompt_tokens >= 1000, 4.0)):
        gaps = np.diff(trace.arrival_s[part])
        assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.25)


def test_both_lengths_of_a_request_have_the_same_rank(pool: Path) -> None:
    trace = made(pool)
    short = trace.prompt_tokens < 1000
    assert (trace.output_tokens[short] == trace.prompt_tokens[short] // 10).all()


def test_a_workload_may_begin_later_and_lengths_are_those_that_hold_then(pool: Path) -> None:
    trace = made(pool, "@600")
    assert (trace.prompt_tokens < 1000).sum() == 300
    assert set(trace.prompt_tokens[trace.prompt_tokens >= 1000].tolist()) == {2000}
    late = made(pool, "@1200")
    assert set(late.prompt_tokens.tolist()) == {2000}, "where nothing is known, what was known last holds"
    assert len(late) == 600


def test_a_rate_is_that_of_all_clients_in_each_window(pool: Path) -> None:
    assert len(made(pool, rate=6.0)) == 3600
    assert len(made(pool, "@600", rate=6.0)) == pytest.approx(3600, abs=2)
    assert len(made(pool, num_requests=50)) == 50


def test_the_same_seed_gives_the_same(pool: Path) -> None:
    again = made(pool, seed=3).arrival_s
    assert (made(pool, seed=3).arrival_s == again).all()
    assert not np.array_equal(made(pool, seed=4).arrival_s, again)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"duration": None}, "give a duration"),
        ({"arrivals": "poisson", "rate": 1.0}, "has arrivals of its own"),
        ({"turns": "all"}, "has arrivals of its own"),
        ({"duration": float("nan")}, "duration is nan"),
    ],
)
def test_options_that_a_pool_has_itself_are_refused(pool: Path, options: dict, sentence: str) -> None:
    with pytest.raises(PagesimError, match=sentence):
        made(pool, **options)


@pytest.mark.parametrize("text", ["servegen:", "servegen:x@", "servegen:x@-1", "servegen:x@inf"])
def test_a_text_that_names_no_pool_is_refused(text: str) -> None:
    with pytest.raises(PagesimError, match="write servegen:FOLDER"):
        parse_servegen(text)
    assert parse_servegen("sharegpt") is None


@pytest.mark.parametrize(
    ("file", "content", "sentence"),
    [
        ("chunk-1-trace.csv", "0,1\n", "line 1: has 2 fields"),
        ("chunk-1-trace.csv", "0,1,1,Pareto,1,1\n", "pattern is 'Pareto'"),
        ("chunk-1-trace.csv", "0,x,1,Gamma,1,1\n", "rate is 'x'"),
        ("chunk-1-trace.csv", "0,1,1,Gamma,0,1\n600,1,1,Gamma,1,1\n", "shape is 0"),
        ("chunk-1-trace.csv", "0,1,1,Gamma,1,1\n0,1,1,Gamma,1,1\n", "times must rise"),
        ("chunk-1-trace.csv", "0,1,1,Gamma,1,1\n", "two or more say how long"),
        ("chunk-1-dataset.json", "[]", "is no table of lengths"),
        ("chunk-1-dataset.json", '{"0": {"image_tokens": "{}"}}', "a pool of text requests is needed"),
        ("chunk-1-dataset.json", '{"0": {"input_tokens": "os", "output_tokens": "{}"}}', "shares by tokens"),
        ("chunk-1-dataset.json", '{"0": {"input_tokens": "{1: 0}", "output_tokens": "{1: 1}"}}', "above 0"),
        ("chunk-1-dataset.json", "{", "cannot be read"),
    ],
)
def test_a_damaged_pool_is_named_with_what_is_wrong(
    pool: Path, file: str, content: str, sentence: str
) -> None:
    (pool / file).write_text(content)
    with pytest.raises(TraceError, match=sentence) as error:
        made(pool)
    assert file in str(error.value)


def test_a_folder_without_a_pool_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="name a folder of one model"):
        made(tmp_path)


@given(
    trace=st.text("0123456789.,GammaWeibull\n-e", max_size=60),
    lengths=st.text('{}":0123456789., ', max_size=40),
)
def test_whatever_a_file_holds_it_is_read_or_refused(
    trace: str, lengths: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("pool")
    (folder / "chunk-1-trace.csv").write_text(trace)
    dataset = {"0": {"input_tokens": lengths, "output_tokens": "{5: 1}"}}
    (folder / "chunk-1-dataset.json").write_text(json.dumps(dataset))
    with suppress(TraceError):
        assert len(read_pool(folder)) == 1


def test_a_run_of_a_pool_is_repeated_from_its_scenario(
    pool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pagesim.setup.scenario import Scenario
    from pagesim.setup.scenario_files import absolute_paths

    monkeypatch.chdir(pool.parent)
    found = absolute_paths(Scenario(trace=f"servegen:{pool.name}@600", duration=60.0))
    assert found == {"trace": f"servegen:{pool}@600"}


def test_more_requests_than_a_run_can_have_are_refused(pool: Path) -> None:
    asked = parse_servegen(f"servegen:{pool}")
    assert asked is not None
    with pytest.raises(TraceError, match="take a shorter time"):
        generate(*asked, 600, rate=1e6)
