"""The public API is ``import pagesim as ps``: what ``__all__`` names, and what the README shows of it."""

from __future__ import annotations

import inspect
import re
from difflib import unified_diff
from importlib import import_module
from pathlib import Path
from types import ModuleType

import numpy as np
import pandas as pd
import pytest

import pagesim as ps
from tests.pages import module_of


@pytest.fixture(scope="module")
def trace() -> ps.Trace:
    """A load that makes requests queue."""
    return ps.make_trace("sharegpt", arrivals="poisson", rate=2.0, duration=60)


@pytest.mark.parametrize("name", ps.__all__)
def test_what_is_public_exists_and_is_documented(name):
    assert inspect.getdoc(getattr(ps, name))
    assert name in dir(ps)


def test_what_the_task_needs_is_public():
    assert {"Trace", "simulate", "compare", "load", "make_trace", "Result", "PagesimError"} <= set(ps.__all__)


def test_nothing_else_is_public():
    with pytest.raises(AttributeError, match="has no attribute 'nosuch'"):
        ps.nosuch  # noqa: B018
    assert set(dir(ps)) == {*ps.__all__, "__version__"}


def test_the_package_is_typed():
    assert (Path(ps.__file__).parent / "py.typed").exists()


def test_simulate_gives_tables_and_a_summary(trace):
    result = ps.simulate(trace, "orca-max", model="opt-13b", gpu="a100-40gb")
    assert isinstance(result, ps.Result)
    assert result.summary["requests"]["unfinished"] == 0
    assert isinstance(result.requests, pd.DataFrame)
    assert isinstance(result.steps, pd.DataFrame)
    assert len(result.requests) == len(trace)


def test_compare_gives_a_result_a_policy(trace):
    results = ps.compare(trace, ["orca-oracle", "vllm-sosp"], model="opt-13b", gpu="a100-40gb")
    assert list(results) == ["orca-oracle", "vllm-sosp"]
    assert results["vllm-sosp"].summary["ttft"]["p50"] < results["orca-oracle"].summary["ttft"]["p50"]
    alone = ps.simulate(trace, "vllm-sosp", model="opt-13b", gpu="a100-40gb")
    pd.testing.assert_frame_equal(results["vllm-sosp"].requests, alone.requests)


def test_compare_gives_an_option_to_the_policies_that_know_it(trace):
    results = ps.compare(trace, ["static", "vllm-sosp"], max_batch=3)
    assert results["static"].summary["batch"]["mean"] <= 3 < results["vllm-sosp"].summary["batch"]["mean"]


def test_a_result_that_was_saved_is_loaded(trace, tmp_path):
    result = ps.simulate(trace, "static", steps="iterations", max_batch=4)
    folder = result.save(tmp_path / "out")
    loaded = ps.load(folder)
    assert loaded.summary == result.summary
    assert loaded.scenario == result.scenario
    for name in ("requests", "steps", "batches"):
        pd.testing.assert_frame_equal(getattr(loaded, name), getattr(result, name))


def test_a_result_of_the_command_line_is_loaded(tmp_path, monkeypatch, capsys):
    from pagesim.cli.main import app

    flags = ["--trace", "fixed:10,10", "--num-requests", "3", "--steps", "--out", str(tmp_path / "out")]
    monkeypatch.setattr("sys.argv", ["pagesim", "run", *flags])
    with pytest.raises(SystemExit) as end:
        app()
    assert not end.value.code
    assert capsys.readouterr().out
    assert ps.load(tmp_path / "out").summary["requests"]["finished"] == 3


@pytest.mark.parametrize("missing", ["summary.json", "requests.parquet", "scenario.toml"])
def test_a_folder_that_is_no_result_is_refused(missing, trace, tmp_path):
    ps.simulate(trace).save(tmp_path / "out")
    (tmp_path / "out" / missing).unlink()
    with pytest.raises(ps.PagesimError, match=missing):
        ps.load(tmp_path / "out")


def test_a_trace_may_be_an_object_a_table_a_name_or_a_path(tmp_path):
    columns = {"arrival_s": [0.0, 0.5], "prompt_tokens": [100, 200], "output_tokens": [10, 20]}
    table = pd.DataFrame(columns)
    file = tmp_path / "trace.csv"
    table.to_csv(file, index=False)
    own = ps.Trace(**{name: np.array(values) for name, values in columns.items()})
    finished = [ps.simulate(kind).requests["finish_s"].tolist() for kind in (own, table, file, str(file))]
    assert finished[0] == finished[1] == finished[2] == finished[3]
    assert len(ps.simulate("alpaca").requests) == 1000


def test_a_trace_is_a_sequence_of_requests(trace):
    first = trace[0]
    assert isinstance(first, ps.Request)
    assert first.prompt_tokens == trace.prompt_tokens[0]
    assert len(list(trace)) == len(trace)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"num_block": 5}, "there is no option num_block; did you mean num_blocks?"),
        ({"modle": "opt-13b"}, "there is no option modle; did you mean model?"),
        ({"num_blocks": 0}, "num_blocks is 0: input should be greater than or equal to 1"),
        ({"until": float("nan")}, "until is nan: input should be a finite number"),
        ({"cost": "free"}, "cost is 'free'"),
        ({"policy": "vllm"}, "policy is 'vllm'; it must be one of static"),
    ],
)
def test_a_wrong_option_is_said_in_one_sentence(options, said, trace):
    with pytest.raises(ps.PagesimError) as caught:
        ps.simulate(trace, **options)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_numbers_may_be_numpys(trace):
    ours = ps.simulate(trace, num_blocks=np.int64(500), until=np.float64(30)).summary
    assert ours["memory"]["num_blocks"] == 499  # and vLLM's null block
    assert type(ours["memory"]["num_blocks"]) is int


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (pd.DataFrame({"prompt_tokens": [1], "output": [1]}), "'output'"),
        (pd.DataFrame({"prompt_tokens": [0], "output_tokens": [1]}), "prompt_tokens is 0"),
        (pd.DataFrame({"prompt_tokens": [1]}), "output_tokens"),
        (pd.DataFrame({"prompt_tokens": [], "output_tokens": []}), "no requests"),
        (pd.DataFrame({"prompt_tokens": [1, 2], "output_tokens": [1, np.nan]}), "output_tokens is nan"),
        (
            pd.DataFrame({"prompt_tokens": [1], "output_tokens": [1], "arrival_s": [-1.0]}),
            "arrival_s is -1.0",
        ),
        (
            pd.DataFrame({"prompt_tokens": [1, 1], "output_tokens": [1, 1], "request_id": ["a", "a"]}),
            "request_id",
        ),
    ],
)
def test_a_bad_table_is_said_in_one_sentence(table, said):
    with pytest.raises(ps.PagesimError) as caught:
        ps.simulate(table)
    assert said in str(caught.value)


def test_a_table_may_say_what_its_prompts_share():
    columns = {"prompt_tokens": [40, 50], "output_tokens": [9, 9], "hash_ids": [(1, 2), (1,)]}
    table = pd.DataFrame({**columns, "arrival_s": [1.0, 0.0], "hash_block_size": [32, 32]})
    assert len(ps.simulate(table).requests) == 2
    table["hash_block_size"] = [32, 16]
    with pytest.raises(ps.PagesimError, match="hash_block_size is 16 and 32; it must be the same in every"):
        ps.simulate(table)


@pytest.fixture(scope="module")
def api() -> ModuleType:
    """The script that writes the page of the public API."""
    return module_of("docs/make_api.py")


def test_signatures_are_frozen(api):
    then = api.SIGNATURES.read_text(encoding="utf-8").splitlines()
    now = api.frozen().splitlines()
    changed = "\n".join(line for line in unified_diff(then, now, "frozen", "now", n=0, lineterm=""))
    assert not changed, (
        f"{changed}\nThe public API changed. "
        "If that is meant, run python docs/make_api.py, and say so in CHANGELOG.md"
    )


def test_the_page_of_the_api_is_up_to_date(api):
    assert api.PAGE.read_text(encoding="utf-8") == api.page(), "run: python docs/make_api.py"


def test_what_is_public_says_what_it_takes(api):
    for home in ("pagesim", "pagesim.results.plots"):
        for name, part in api.everything()[home].items():
            if inspect.isfunction(part):
                said = inspect.getdoc(part) or ""
                silent = [each for each in inspect.signature(part).parameters if each not in said]
                assert not silent, f"{home}.{name} does not say what {silent} are"
    for name, part in api.everything()["pagesim"].items():
        if inspect.isfunction(part):
            assert "Raises:" in (inspect.getdoc(part) or ""), f"{name} does not say what it raises"


def test_the_list_holds_all_of_pagesim_and_says_of_every_name_what_it_is_for(api):
    assert set(api.PUBLIC["pagesim"]) == set(ps.__all__)
    for home, offered in api.everything().items():
        offers = getattr(import_module(home), "__all__", offered)
        assert set(offered) <= set(offers), f"{home} offers its public names"
        for name, part in offered.items():
            assert api.PUBLIC[home][name]
            if api.is_called(part):
                assert part.__doc__, f"{home}.{name} has no docstring"


UNLISTED = {"eviction.md"}
"""Pages of rooms that PUBLIC does not list yet: pagesim.eviction."""

IMPORTED = re.compile(r"^from (pagesim[\w.]*) import ([\w, ]+)$", re.MULTILINE)


@pytest.mark.parametrize(
    "page",
    [
        page
        for page in sorted((Path(__file__).parents[1] / "docs").rglob("*.md"))
        if page.name not in UNLISTED
    ],
    ids=lambda page: page.stem,
)
def test_programs_of_the_documentation_import_what_is_public(page, api):
    for home, names in IMPORTED.findall(page.read_text(encoding="utf-8")):
        internal = set(names.replace(" ", "").split(",")) - set(api.PUBLIC.get(home, ()))
        assert not internal, f"{page.name} imports {internal} from {home}"
