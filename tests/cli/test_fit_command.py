"""``pagesim fit``: logs in, a table of times with their errors and a profile out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pagesim.costs.profiles import load_profile
from tests.experiments.fit.conftest import (
    AFFINE,
    CONTEXT_S,
    STEP_S,
    SYSTEM,
    TOKEN_S,
    bench_json,
    cost_of,
    served,
)

SERVER = ("--gpu", "h100", "--vllm-version", "0.19.0", "--max-num-seqs", "128")
TRUE = {"iteration_s": STEP_S, "sequence_s": TOKEN_S, "context_s": CONTEXT_S, "prompt_token_s": TOKEN_S}


def log(file: Path, concurrency: int) -> Path:
    """Write what clients measure of a server of 7 ms, 50 µs a token and 20 ns a token of context."""
    system = SYSTEM.model_copy(update={"max_num_seqs": 128})
    load = served(concurrency, cost_of(AFFINE, system), system=system)
    file.write_text(json.dumps(bench_json(load, noise=0.03, seed=concurrency)))
    return file


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    """Return logs of one server at several concurrencies, by these."""
    folder = tmp_path_factory.mktemp("logs")
    return {many: str(log(folder / f"c{many}.json", many)) for many in (4, 16, 48, 96)}


def test_three_loads_give_a_profile_that_predicts_a_fourth(
    cli: Any, logs: dict[int, str], tmp_path: Path
) -> None:
    out = tmp_path / "mine.json"
    three = [logs[many] for many in (4, 16, 48)]
    found = cli("fit", *three, "--hold-out", logs[96], *SERVER, "--out", str(out), "--json")
    summary = found.json
    for name, true in TRUE.items():
        of = summary["values"][name]
        assert abs(of["value"] - true) <= max(0.02 * true, 2 * of["standard_error"]), name
    held_out = summary["errors"]["c96, held out"]
    assert set(held_out) == {"ttft", "tpot", "e2e", "itl"}
    assert all(abs(by["mean"]["error"]) < 0.05 for by in held_out.values())
    profile = load_profile(out)
    assert profile.machine["fit"]["values"] == summary["values"]
    assert (profile.gpu, profile.kind) == ("h100", "measured")


def test_tables_show_what_one_load_cannot_tell(cli: Any, logs: dict[int, str], tmp_path: Path) -> None:
    files = ("--out", tmp_path / "one.json", "--plots", tmp_path / "drawn")
    found = cli("fit", logs[16], *SERVER, *files)
    assert "one load alone does not tell a time a sequence from a time a token of context" in found.err
    for text in ("an iteration", "a token of context", "datasheet", "TPOT", "c16"):
        assert text in found.out, text
    assert f"--cost profile:{tmp_path / 'one.json'}" in found.out.replace("\n", "")
    assert {file.suffix for file in (tmp_path / "drawn").iterdir()} == {".png", ".svg"}


def test_a_fitted_profile_runs(cli: Any, logs: dict[int, str], tmp_path: Path) -> None:
    out = tmp_path / "mine.json"
    cli("fit", logs[4], logs[48], *SERVER, "--out", str(out))
    found = cli(
        *(
            "run",
            "--policy",
            "vllm-v1",
            "--model",
            "llama-3.1-8b",
            *SERVER,
            "--trace",
            "uniform:50-200,20-60",
        ),
        *("--num-requests", "20", "--rate", "5", "--cost", f"profile:{out}", "--json"),
    )
    assert found.json["requests"]["finished"] == 20


def test_what_is_off_is_a_sentence(refused: Any, logs: dict[int, str], tmp_path: Path) -> None:
    halved = json.loads(Path(logs[4]).read_text())
    halved["itls"] = [[gap / 2 for gap in gaps] for gaps in halved["itls"]]
    (tmp_path / "halved.json").write_text(json.dumps(halved))
    assert "not whole, or not in seconds" in refused("fit", str(tmp_path / "halved.json"), *SERVER)
    assert "it must end in .json" in refused("fit", logs[4], *SERVER, "--out", "mine")
    assert "give --gpu or --num-blocks" in refused("fit", logs[4])


@pytest.mark.slow
def test_first_requests_of_a_recorded_run_predict_the_others(cli: Any, shared: Path) -> None:
    run = shared / "data" / "seconds" / "runs" / "RTX4090-Llama-3.1-8B" / "requests.jsonl"
    if not run.is_file():
        pytest.skip("the recorded run is not at hand")
    summary = cli("fit", run, "--first", "200", "--json").json
    others = summary["errors"]["RTX4090-Llama-3.1-8B, others"]
    for metric in ("tpot", "e2e", "ttft"):
        assert all(abs(each["error"]) < 0.08 for each in others[metric].values()), metric


def test_runs_of_one_file_are_loads(cli: Any, logs: dict[int, str], tmp_path: Path) -> None:
    both = tmp_path / "both#1.jsonl"
    both.write_text("\n".join(Path(logs[many]).read_text() for many in (4, 48)))
    found = cli("fit", both, "--hold-out", logs[16], *SERVER, "--json").json
    assert [name.rpartition("/")[2] for name in found["errors"]] == [
        "both#1.jsonl#1",
        "both#1.jsonl#2",
        "c16, held out",
    ]
