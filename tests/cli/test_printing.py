"""What commands print: tables that fit, words that are whole, and the names of files that were written."""

from __future__ import annotations

import re

import pytest

from pagesim.cli import show
from pagesim.cli.printing import put_table

LOAD = ("--trace", "sharegpt", "--rate", "4", "--num-requests", "20", "--num-blocks", "300")


PRINTED = (
    *(("list", kind) for kind in ("policies", "options", "models", "gpus", "workloads", "profiles")),
    ("plan", "--model", "gpt-oss-20b", "--gpu", "h100"),
    ("plan", "--model", "llama-3.1-8b", "--grid", "gpu=h100,h200", "--grid", "kv_cache_dtype=fp16,fp8"),
    ("run", *LOAD),
    ("run", *LOAD, "--model", "gpt-oss-20b", "--gpu", "h100"),
    ("run", *LOAD, "--policies", "contiguous-max,orca-max,orca-pow2,orca-oracle,vllm-sosp,vllm-v1,sglang"),
    ("run", *LOAD, "--replicas", "2"),
    ("run", *LOAD, "--prefill", "1", "--decode", "1"),
    ("sweep", *LOAD, "--jobs", "1", "--grid", "policy=orca-max,vllm-sosp", "--grid", "num_blocks=300"),
)


@pytest.mark.parametrize("command", PRINTED, ids=lambda command: " ".join(command[:2]))
def test_a_table_fits_100_columns_and_breaks_no_word(command, succeeds, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    words = {*succeeds(*command).out.split()}
    monkeypatch.setenv("COLUMNS", "100")
    narrow = succeeds(*command).out
    lines = narrow.splitlines()
    # Sentences are a line each, which a terminal wraps; a table begins with a space.
    assert max(len(line.rstrip()) for line in lines if line.startswith(" ")) <= 100
    broken = {word for word in narrow.split() if "─" not in word} - words
    assert not broken


@pytest.mark.parametrize("json", [(), ("--json",)], ids=["tables", "json"])
@pytest.mark.parametrize("grid", [(), ("--grid", "gpu=h100,h200")], ids=["a plan", "plans"])
def test_a_plan_says_which_files_it_wrote(grid, json, succeeds, tmp_path):
    plan = ("plan", "--model", "llama-3.1-8b", *(grid or ("--gpu", "h100")))
    done = succeeds(*plan, "--plot", tmp_path / "plan.png", *json)
    files = [tmp_path / f"plan.{ending}" for ending in ("png", "svg")]
    assert f"wrote {' and '.join(map(str, files))}\n" in (done.err if json else done.out)
    assert sorted(tmp_path.iterdir()) == sorted(files)
    assert not json or done.json


OTHER_NAMES = {
    "n": (("--n", "2"), ("--num-samples", "2")),
    "frontend": (("--frontend", "0.25"), ("--frontend-latency", "0.25")),
    "burstiness": (("--burstiness", "0.25"), ("--cv", "2")),
    "burstiness with a sign": (("--burstiness=0.25",), ("--cv", "2")),
}


@pytest.mark.parametrize("case", OTHER_NAMES)
def test_an_options_other_name_is_taken_and_not_shown(case, succeeds):
    other, shown = OTHER_NAMES[case]
    run = ("run", *LOAD, "--arrivals", "gamma") if "--cv" in shown else ("run", *LOAD)
    told = [succeeds(*run, *flags, "--json").json for flags in (other, shown)]
    for summary in told:
        del summary["sim"]
    assert told[0] == told[1]
    told_by_help = re.findall(r"--[a-z-]+", succeeds("run", "--help").out)
    assert shown[0] in told_by_help
    assert other[0].partition("=")[0] not in told_by_help


@pytest.mark.parametrize("value", ["none", "0", "-1", ""])
def test_a_burstiness_that_is_none_is_refused(value, cli):
    done = cli("run", *LOAD, "--arrivals", "gamma", "--burstiness", value)
    assert done.code == 2
    assert "Traceback" not in done.err


def test_names_between_colons_are_printed_as_they_are(capsys):
    put_table(":smile: of a table", ("", ":smile:"), [(":smile:", "1")])
    show.say("wrote :smile:.png")
    show.say_notes([":smile: was assumed"])
    printed = capsys.readouterr()
    assert (printed.out.count(":smile:"), printed.err.count(":smile:")) == (4, 1)
