"""Each format of a recorded run gives the same run, and what is wrong with a file is said in a sentence."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pagesim.errors import PagesimError
from pagesim.experiments.recorded.catalogue import known, of_another_gpu
from pagesim.experiments.recorded.find import read, read_all

from .samples import (
    ARRIVAL_S,
    E2E_S,
    GAP_S,
    LOG,
    METRICS,
    MODEL,
    OUTPUT,
    PROMPT,
    TABLE,
    TTFT_S,
    guidellm,
    inference_perf,
    llmservingsim,
    sampled,
    sglang,
    vllm,
)

FORMATS: dict[str, Callable[[], Any]] = {
    "vllm": vllm,
    "guidellm": guidellm,
    "inference-perf": inference_perf,
    "llmservingsim": llmservingsim,
}


def written(folder: Path, data: Any, name: str = "run.json") -> Path:
    file = folder / name
    file.write_text(data if isinstance(data, str) else json.dumps(data))
    return file


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_tells_the_same_run(tmp_path: Path, form: str) -> None:
    (run,) = read(written(tmp_path, FORMATS[form]()))
    assert run.arrival_s == pytest.approx(ARRIVAL_S)
    assert run.prompt_tokens.tolist() == PROMPT
    assert run.output_tokens.tolist() == OUTPUT
    assert run.ttft_s == pytest.approx(TTFT_S)
    assert run.e2e_s == pytest.approx(E2E_S)
    assert (run.e2e_s - run.ttft_s) == pytest.approx([GAP_S * (tokens - 1) for tokens in OUTPUT])
    assert run.max_concurrency is None
    if run.itl_s is not None:
        assert np.concatenate(run.itl_s) == pytest.approx(np.full(sum(OUTPUT) - len(OUTPUT), GAP_S))


@pytest.mark.parametrize("form", ["vllm", "inference-perf"])
def test_gaps_between_tokens_are_kept_where_clients_keep_them(tmp_path: Path, form: str) -> None:
    (run,) = read(written(tmp_path, FORMATS[form]()))
    assert run.itl_s is not None
    assert [len(gaps) for gaps in run.itl_s] == [tokens - 1 for tokens in OUTPUT]


def test_sglangs_lines_are_runs_of_closed_loops(tmp_path: Path) -> None:
    runs = read(written(tmp_path, "\n".join(json.dumps(sglang(clients)) for clients in (1, 2))))
    assert [run.max_concurrency for run in runs] == [1, 2]
    assert runs[0].ttft_s == pytest.approx(TTFT_S)
    assert runs[0].server == {
        "model": "llama-3.1-8b",
        "tensor_parallel_size": 2,
        "max_running_requests": 64,
        "chunked_prefill_size": 8192,
        "policy": "sglang",
    }


def test_a_rate_without_a_bound_is_read_as_python_writes_it(tmp_path: Path) -> None:
    text = json.dumps(sglang(2)).replace('"request_rate": "inf"', '"request_rate": Infinity')
    assert "Infinity" in text
    (run,) = read(written(tmp_path, text))
    assert run.max_concurrency == 2


def test_a_concurrent_strategy_of_guidellm_is_a_closed_loop(tmp_path: Path) -> None:
    data = guidellm()
    data["benchmarks"].append(copy.deepcopy(data["benchmarks"][0]))
    data["benchmarks"][1]["config"]["strategy"] = {"type_": "concurrent", "streams": 2}
    first, second = read(written(tmp_path, data))
    assert (first.max_concurrency, second.max_concurrency) == (None, 2)
    assert first.name.endswith("run.json#1")


def test_a_table_of_closed_loops_has_a_run_a_row(tmp_path: Path) -> None:
    qwen, llama = read(written(tmp_path, TABLE, "runs.csv"))
    assert qwen.means == pytest.approx({"ttft": 0.25, "tpot": 0.0125})
    assert qwen.server["vllm_version"] == "0.11.2"
    assert (qwen.server["model"], qwen.server["gpu"], qwen.server["tensor_parallel_size"]) == (
        "qwen3-32b",
        "h100",
        2,
    )
    assert len(qwen) == 40
    assert qwen.prompt_tokens.min() >= 800
    assert qwen.prompt_tokens.max() <= 1200
    assert 0.9 < llama.prompt_tokens.mean() / 1000 / 0.9 < 1.1
    assert "max_num_batched_tokens" not in qwen.server
    assert llama.server["max_num_batched_tokens"] == 8192


def test_a_servers_log_and_its_metrics_say_what_it_is(tmp_path: Path) -> None:
    data = vllm()
    del data["model_id"]
    run = written(tmp_path, data)
    log, dump = written(tmp_path, LOG, "server.log"), written(tmp_path, METRICS, "metrics.txt")
    (found,) = read_all([run, log])
    assert found.server == {
        "model": "llama-3.1-8b",
        "vllm_version": "0.19.0",
        "num_blocks": 2588,
        "max_num_batched_tokens": 2048,
        "max_num_seqs": 64,
        "moe_backend": "triton",
        "tensor_parallel_size": 1,
        "max_model_len": 32768,
        "enable_prefix_caching": True,
        "async_scheduling": True,
    }
    (found,) = read_all([run, dump])
    assert found.preemptions == 12
    assert found.server == {
        "model": "llama-3.1-8b",
        "num_blocks": 2588,
        "block_size": 16,
        "enable_prefix_caching": True,
    }
    with pytest.raises(PagesimError, match="holds no request"):
        read_all([log])


def test_an_engines_log_has_a_series(tmp_path: Path) -> None:
    file = written(tmp_path, llmservingsim(), "requests.jsonl")
    series = tmp_path / "timeseries.csv"
    series.write_text("t,running,waiting,kv_cache_pct\n1.0,3,1,25\n2.0,2,0,12.5\n")
    (run,) = read(file)
    assert run.series is not None
    assert run.series.kv_use.tolist() == [0.25, 0.125]
    assert run.series.waiting.tolist() == [1, 0]
    series.write_text("t,running,waiting,kv_cache_pct\n2.0,3,1,25\n1.0,2,0,12.5\n")
    with pytest.raises(PagesimError, match="t does not rise"):
        read(file)
    series.write_text("t,running,waiting\n")
    with pytest.raises(PagesimError, match="has no column kv_cache_pct"):
        read(file)


@pytest.mark.parametrize("form", FORMATS)
def test_a_file_that_was_cut_off_is_refused(tmp_path: Path, form: str) -> None:
    data = FORMATS[form]()
    text = data if isinstance(data, str) else json.dumps(data)
    with pytest.raises(PagesimError, match="it may be cut off"):
        read(written(tmp_path, text[:-20]))


def test_a_clock_that_runs_backwards_is_refused(tmp_path: Path) -> None:
    late = guidellm()
    late["benchmarks"][0]["requests"]["successful"][1]["info"]["timings"]["first_token_iteration"] = 101.0
    with pytest.raises(PagesimError, match="request 1: its first token came before it was sent"):
        read(written(tmp_path, late))
    falling = inference_perf()
    falling[0]["info"]["response_metrics"]["output_token_times"][1] -= 0.5
    with pytest.raises(PagesimError, match=r"output_token_times is .* a clock that never runs backwards"):
        read(written(tmp_path, falling))


def test_failed_requests_are_left_out_and_counted(tmp_path: Path) -> None:
    rows = inference_perf() * 5
    rows.append({**rows[0], "error": {"error_type": "Timeout", "error_msg": ""}})
    (run,) = read(written(tmp_path, rows))
    assert len(run) == 20
    assert "1 of 21 requests failed and are left out" in run.notes[0]
    data = guidellm()
    data["benchmarks"][0]["requests"]["errored"] = [{}]
    with pytest.raises(PagesimError, match="1 of 5 requests failed"):
        read(written(tmp_path, data))


def test_what_a_client_did_not_keep_is_named(tmp_path: Path) -> None:
    data = guidellm()
    del data["benchmarks"][0]["requests"]["successful"][2]["info"]["timings"]["last_token_iteration"]
    with pytest.raises(PagesimError, match="request 2: has no last_token_iteration; run guidellm"):
        read(written(tmp_path, data))
    rows = inference_perf()
    rows[1]["info"]["response_metrics"]["output_token_times"] = []
    with pytest.raises(PagesimError, match="request 1: output_token_times"):
        read(written(tmp_path, rows))
    short = sglang(1)
    del short["itls"]
    with pytest.raises(PagesimError, match="--output-details"):
        read(written(tmp_path, short))


def test_aiperfs_samples_of_a_server_say_what_it_was_over_time(tmp_path: Path) -> None:
    data = sampled(
        {
            "vllm:num_requests_running": (3.0, [2.0, 4.0]),
            "vllm:num_requests_waiting": (0.5, [0.0, 1.0]),
            "vllm:kv_cache_usage_perc": (0.3, [0.2, 0.4]),
        }
    )
    labels = {"block_size": "16", "num_gpu_blocks": "2588", "model_name": MODEL}
    data["metrics"]["vllm:cache_config_info"] = {"series": [{"labels": labels, "stats": {"avg": 1.0}}]}
    totals = [{"labels": {"engine": str(rank)}, "stats": {"total": 5.0 + rank}} for rank in range(2)]
    data["metrics"]["vllm:num_preemptions"] = {"series": totals}
    (run,) = read_all([written(tmp_path, vllm()), written(tmp_path, data, "server_metrics_export.json")])
    assert run.preemptions == 11
    assert (run.server["num_blocks"], run.server["block_size"]) == (2588, 16)
    assert run.series is not None
    assert [column.tolist() for column in run.series] == [[1.0, 3.0], [2.0, 4.0], [0.0, 1.0], [0.2, 0.4]]
    data["metrics"]["vllm:num_preemptions"]["series"][0]["stats"]["total"] = "many"
    with pytest.raises(PagesimError, match="vllm:num_preemptions is 'many'; a number from 0"):
        read_all([written(tmp_path, vllm()), written(tmp_path, data, "server_metrics_export.json")])


def test_sglangs_metrics_say_how_much_its_cache_holds(tmp_path: Path) -> None:
    text = 'sglang:max_total_num_tokens{tp_rank="0"} 40000\nsglang:num_retracted_requests_total 4\n'
    text += 'sglang:num_retracted_requests_total{dp_rank="1"} 3\n'
    (run,) = read_all([written(tmp_path, vllm()), written(tmp_path, text, "metrics.txt")])
    assert (run.preemptions, run.server["max_total_tokens"], run.server["policy"]) == (7, 40_000, "sglang")
    wrong = written(tmp_path, text.replace("total 4", "total many"), "metrics.txt")
    with pytest.raises(PagesimError, match="sglang:num_retracted_requests_total is 'many'; a number from 0"):
        read_all([written(tmp_path, vllm()), wrong])


@pytest.mark.parametrize("place", [(), ("backend",), ("spec", "backend")])
def test_a_report_of_guidellm_names_the_model(tmp_path: Path, place: tuple[str, ...]) -> None:
    args: dict[str, Any] = {"model": MODEL}
    for name in reversed(place):
        args = {name: args}
    (run,) = read(written(tmp_path, {**guidellm(), "args": args}))
    assert run.server == {"model": "llama-3.1-8b"}


@pytest.mark.parametrize(
    ("device", "name", "another"),
    [
        ("NVIDIA L40", "l40", False),
        ("NVIDIA L40S", "l40s", False),
        ("NVIDIA H100 80GB HBM3", "h100", False),
        ("NVIDIA H100 PCIe", "h100-pcie", False),
        ("NVIDIA H100 NVL", "h100-nvl", False),
        ("NVIDIA GH200 480GB", "gh200", False),
        ("NVIDIA H20-3e", "h20-3e", False),
        ("NVIDIA GeForce RTX 4090 D", "rtx-4090-d", False),
        ("NVIDIA GB300", "gb300", False),
        ("NVIDIA A100-SXM4-40GB", "a100-40gb", False),
        ("RTX4090", "rtx-4090", False),
        ("NVIDIA A100 80GB PCIe", "a100-80gb", True),
        ("NVIDIA H200 NVL", "h200", True),
        ("Tesla V100-SXM2-32GB", "v100", True),
    ],
)
def test_a_device_is_the_gpu_of_its_name_or_a_note_says_that_it_is_another(device, name, another):
    assert known({"gpu": device})["gpu"] == name
    assert bool(of_another_gpu(device, name)) is another
    if another:
        assert f"simulated as {name}" in of_another_gpu(device, name)


def test_what_no_log_of_a_release_shows_is_simulated_as_a_release_of_which_one_does(tmp_path):
    head = "model,system,dtype,release,isl,osl,concurrency,tp,ep,ttft_ms,tpot_ms,note\n"
    file = tmp_path / "runs.csv"
    file.write_text(head + "meta-llama/Llama-3.1-70B,h100_sxm,fp8,0.10.2,1000,50,4,2,1,250,10.4,\n")
    (run,) = read(file)
    assert run.server["async_scheduling"]
    assert run.server["vllm_version"] == "0.19.0"
    assert any("vLLM '0.10.2', which is simulated as 0.19.0" in note for note in run.notes)
    file.write_text(head + "MiniMaxAI/MiniMax-M2.5,b200_sxm,fp8,0.19.0,1000,50,4,2,1,250,10.4,\n")
    (run,) = read(file)
    assert "weight_dtype" not in run.server, "the checkpoint has its scales by block"
