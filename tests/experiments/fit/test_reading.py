"""Logs of clients and of engines are read, and what is wrong with one is said in a sentence."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pagesim.errors import PagesimError
from pagesim.experiments.fit.reading import one_server
from pagesim.experiments.recorded.find import read_all
from pagesim.experiments.recorded.recording import RecordedRun
from pagesim.setup.system import System

from .conftest import AFFINE, bench_json, cost_of, served

Write = Callable[..., Path]


def read(logs: list[Path], flags: dict[str, Any]) -> tuple[System, tuple[RecordedRun, ...]]:
    """Return the server of these logs and its loads."""
    return one_server(read_all(logs), flags)


FLAGS = {"model": "llama-3.1-8b", "gpu": "h100"}


@pytest.fixture(scope="module")
def load() -> RecordedRun:
    """Return a small load of a closed loop."""
    return served(8, cost_of(AFFINE), requests=40, noise=0.0)


@pytest.fixture
def write(tmp_path: Path, load: RecordedRun) -> Write:
    """Return what writes the load as a client's file, some of its fields replaced, or left out where None."""

    def writing(name: str = "c8.json", **fields: Any) -> Path:
        whole = {**bench_json(load), **fields}
        file = tmp_path / name
        file.write_text(json.dumps({key: value for key, value in whole.items() if value is not None}))
        return file

    return writing


def test_a_clients_file_is_the_load(write: Write, load: RecordedRun) -> None:
    system, (found,) = read([write()], {"gpu": "h100"})
    assert (system.model, system.policy) == ("llama-3.1-8b", "vllm-v1")
    assert (found.name, found.max_concurrency, found.notes) == ("c8", 8, ())
    for name in ("arrival_s", "prompt_tokens", "output_tokens", "first_s", "last_s"):
        assert getattr(found, name) == pytest.approx(getattr(load, name)), name


def test_a_closed_loop_without_starts_is_dealt_out_to_its_clients(write: Write, load: RecordedRun) -> None:
    _, (found,) = read([write(start_times=None)], FLAGS)
    assert found.arrival_s == pytest.approx(load.arrival_s)


def test_requests_at_a_rate_without_starts_are_refused(write: Write) -> None:
    with pytest.raises(PagesimError, match=r"has no start_times, and request_rate is 4.0"):
        read([write(start_times=None, request_rate=4.0)], FLAGS)


def test_halved_gaps_are_refused_by_the_files_own_summary(write: Write, load: RecordedRun) -> None:
    halved = [[gap / 2 for gap in gaps] for gaps in bench_json(load)["itls"]]
    with pytest.raises(PagesimError, match=r"mean_tpot_ms is .* 0\.50 times that: the lists are not whole"):
        read([write(itls=halved)], FLAGS)
    with pytest.raises(
        PagesimError, match=r"its last of start_times is .* 0\.\d\d times that: the lists are not whole"
    ):
        read([write(itls=halved, mean_tpot_ms=None)], FLAGS)


def test_gaps_of_empty_chunks_change_nothing_and_are_noted(write: Write, load: RecordedRun) -> None:
    doubled = [[part for gap in gaps for part in (gap / 2, gap / 2)] for gaps in bench_json(load)["itls"]]
    _, (found,) = read([write(itls=doubled)], FLAGS)
    assert "itls has 2.00 gaps a token" in found.notes[0]
    assert found.last_s == pytest.approx(load.last_s)


@pytest.mark.parametrize("field", ["ttfts", "itls", "input_lens", "output_lens"])
def test_a_missing_field_is_named(write: Write, field: str) -> None:
    with pytest.raises(
        PagesimError, match=rf"has no {field}; keep the times of single requests: run vllm bench serve"
    ):
        read([write(**{field: None})], FLAGS)


def test_failed_requests_are_left_out_and_many_of_them_refused(write: Write, load: RecordedRun) -> None:
    def failing(count: int) -> dict[str, Any]:
        whole = bench_json(load)
        for row in range(count):
            whole["errors"][row], whole["ttfts"][row], whole["itls"][row] = "Bad gateway", 0.0, []
            whole["output_lens"][row] = 0
        return {**whole, "mean_ttft_ms": None, "mean_tpot_ms": None, "duration": None}

    _, (found,) = read([write(**failing(2))], FLAGS)
    assert len(found) == len(load) - 2
    assert "2 of 40 requests failed and are left out" in found.notes[0]
    with pytest.raises(PagesimError, match="8 of 40 requests failed; at most 10% may"):
        read([write(**failing(8))], FLAGS)


@pytest.mark.parametrize("field", ["ttfts", "itls", "start_times"])
def test_a_clock_that_runs_backwards_is_refused(write: Write, load: RecordedRun, field: str) -> None:
    values = bench_json(load)[field]
    values[3] = [-0.01, *values[3]] if field == "itls" else -0.01
    with pytest.raises(PagesimError, match=rf"request 3: {field} is .*a clock that never runs backwards"):
        read([write(**{field: values})], FLAGS)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"ttfts": "soon"}, "ttfts is 'soon'; a list with a value a request is needed"),
        ({"ttfts": []}, r"ttfts is \[\]; a list"),
        ({"input_lens": [3]}, "input_lens has 1 values, and ttfts has 40"),
        ({"itls": [[0.1]]}, "itls has 1 values, and ttfts has 40"),
        ({"ttfts": [True] * 40}, "request 0: ttfts is True; a number"),
        ({"itls": ["x"] * 40}, "request 0: itls is 'x'; a list of seconds"),
    ],
)
def test_a_field_that_is_off_is_named(write: Write, fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(PagesimError, match=sentence):
        read([write(**fields)], FLAGS)


def test_what_the_logs_do_not_say_of_the_server_is_asked_for(write: Write) -> None:
    with pytest.raises(PagesimError, match="neither gpu nor num_blocks is said by the logs; give --gpu"):
        read([write()], {})
    with pytest.raises(PagesimError, match="model is not said by the logs; give --model"):
        read([write(model_id="my/own-finetune")], {"gpu": "h100"})


def test_logs_of_two_models_are_refused(write: Write) -> None:
    both = [write(), write("other.json", model_id="meta-llama/Llama-3.1-70B")]
    with pytest.raises(PagesimError, match=r"model is llama-3.1-8b and llama-3.1-70b, by the logs"):
        read(both, {"gpu": "h100"})


def test_another_file_is_no_log(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    wrong = {"[1, 2]": "is no log that pagesim reads", '{"a": ': "is no JSON", "  \n": "is empty"}
    for text, sentence in wrong.items():
        file.write_text(text)
        with pytest.raises(PagesimError, match=sentence):
            read([file], FLAGS)
    with pytest.raises(PagesimError, match="cannot be read"):
        read([tmp_path / "none.json"], FLAGS)


def rows(load: RecordedRun) -> list[dict[str, Any]]:
    """Return a load as an engine's own log."""
    times = zip(
        load.arrival_s, load.first_s, load.last_s, load.prompt_tokens, load.output_tokens, strict=True
    )
    return [
        {
            "queued_ts": 500 + arrival,
            "first_token_ts": 500 + first,
            "last_token_ts": 500 + last,
            "input_toks": int(prompt),
            "output_toks": int(output),
        }
        for arrival, first, last, prompt, output in times
    ]


def test_an_engines_log_has_its_settings_and_prefixes(tmp_path: Path, load: RecordedRun) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    meta = {
        "model": "meta-llama/Llama-3.1-8B",
        "vllm_version": "0.19.1",
        "dataset_path": "somewhere/prompts.jsonl",
        "engine_kwargs": {"max_num_seqs": 64},
        "kv_cache": {"num_gpu_blocks": 2000, "block_size": 16, "enable_prefix_caching": True},
        "hardware": {"device_name": "NVIDIA A100-SXM4-80GB"},
    }
    (folder / "meta.json").write_text(json.dumps(meta))
    (folder / "requests.jsonl").write_text("\n".join(json.dumps(row) for row in rows(load)))
    _, (found,) = read([folder / "requests.jsonl"], {})
    assert "the server caches prefixes" in found.notes[0]
    shared = list(range(32))
    prompts = [[*shared, *range(row, row + 20)] for row in range(len(load))]
    text = "\n".join(
        json.dumps(
            {"arrival_time_ns": 0, "input_toks": len(prompt), "output_toks": 1, "input_tok_ids": prompt}
        )
        for prompt in prompts
    )
    (tmp_path / "prompts.jsonl").write_text(text)
    system, (found,) = read([folder / "requests.jsonl"], {})
    assert (system.model, system.gpu, system.vllm_version) == ("llama-3.1-8b", "a100-80gb", "0.19.0")
    of_load = {"max_num_seqs": 64, "num_blocks": 2000, "enable_prefix_caching": True}
    assert found.server == {**of_load, "frontend": "0"}, "the engine's own times have no front end"
    assert found.name == "run"
    assert found.notes == ("recorded of vLLM '0.19.1', which is simulated as 0.19.0",)
    assert found.first_s == pytest.approx(load.first_s)
    ids = found.trace().hash_ids or []
    assert len({own[:2] for own in ids}) == 1
    assert len({own[2] for own in ids}) == len(load)


def test_an_engines_log_that_is_off_is_refused(tmp_path: Path, load: RecordedRun) -> None:
    file = tmp_path / "requests.jsonl"
    whole = rows(load)
    whole[4]["last_token_ts"] = 1.0
    file.write_text("\n".join(json.dumps(row) for row in whole))
    with pytest.raises(PagesimError, match="request 4: its last token came before its first one"):
        read([file], FLAGS)
    del whole[4]["last_token_ts"]
    file.write_text("\n".join(json.dumps(row) for row in whole))
    with pytest.raises(PagesimError, match="request 4: has no last_token_ts"):
        read([file], FLAGS)


def test_flags_win_over_logs(write: Write) -> None:
    system, _ = read([write()], {"model": "llama-3-8b", "gpu": "h200", "num_blocks": 500})
    assert (system.model, system.gpu, system.num_blocks) == ("llama-3-8b", "h200", 500)


def test_a_servers_own_log_says_what_clients_do_not(write: Write, tmp_path: Path) -> None:
    file = tmp_path / "server.log"
    file.write_text(
        "INFO vLLM API server version 0.19.0\nINFO GPU KV cache size: 32,000 tokens\n"
        "INFO Chunked prefill is enabled with max_num_batched_tokens=4096.\n"
    )
    system, (found,) = read([write(), file], {})
    assert found.name == "c8"
    assert system.vllm_version == "0.19.0"
    assert found.server == {"num_blocks": 2000, "max_num_batched_tokens": 4096}
    with pytest.raises(PagesimError, match="holds no request; give a run, too"):
        read_all([file])
