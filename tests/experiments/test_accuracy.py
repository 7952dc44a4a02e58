"""Half of the runs tell numbers of pagesim, and the other half whether they were right."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from pagesim.experiments.recorded.find import read
from tests.pages import module_of

PAGE = module_of("docs/make_accuracy.py")
HEAD = "model,system,dtype,release,isl,osl,concurrency,tp,ep,ttft_ms,tpot_ms,note\n"


def table(folder: Path, *rows: str) -> Path:
    """Return a file of closed loops."""
    file = folder / "closed.csv"
    file.write_text(HEAD + "".join(f"{row}\n" for row in rows))
    return file


def loads(isl: range = range(1000, 3000, 100), clients: tuple[int, ...] = (8, 64)) -> list[str]:
    return [
        f"Qwen/Qwen3-32B,h100_sxm,bf16,0.12.0,{each},100,{of},2,1,90,9," for each in isl for of in clients
    ]


def test_runs_that_differ_in_their_load_alone_are_of_one_half(tmp_path):
    by_lengths: dict[str, set[bool]] = {}
    for run in read(table(tmp_path, *loads())):
        by_lengths.setdefault(run.name.split()[-2], set()).add(PAGE.fitted(run))
    assert all(len(halves) == 1 for halves in by_lengths.values())
    assert set().union(*by_lengths.values()) == {False, True}


def test_a_run_that_was_measured_as_it_is_simulated_is_not_off(tmp_path):
    (run,) = read(table(tmp_path, *loads()[:1]))
    took = PAGE.simulated(run, "auto")
    row = f"Qwen/Qwen3-32B,h100_sxm,bf16,0.12.0,1000,100,8,2,1,{1e3 * took['ttft']},{500 * took['tpot']},"
    rows, left_out = PAGE.closed_loops(table(tmp_path, row), "auto")
    assert len(left_out) == 0
    assert rows["ttft_error"].tolist() == pytest.approx([0], abs=1e-9)
    assert rows["tpot_error"].tolist() == pytest.approx([1]), "measured twice as fast"
    assert rows.loc[0, ["kind", "model", "weights", "gpu", "release"]].tolist() == [
        *("dense", "Qwen3-32B", "bf16", "h100", "0.12.0")
    ]


def test_numbers_are_found_again_in_the_runs_that_they_shaped(tmp_path):
    text = "roofline:overhead_s=0.004,sequence_s=1e-4"
    runs = read(table(tmp_path, *loads(range(1000, 1400, 100), clients=(2, 12))))
    rows = [
        f"Qwen/Qwen3-32B,h100_sxm,bf16,0.12.0,{run.name.split()[-2].partition('/')[0]},100,"
        f"{run.max_concurrency},2,1,90,{1e3 * PAGE.simulated(run, text)['tpot']},"
        for run in runs
    ]
    found = PAGE.fit(table(tmp_path, *rows), "roofline", ["overhead_s", "sequence_s"], "Qwen3")
    assert found["overhead_s"] == pytest.approx(0.004, rel=0.02)
    assert found["sequence_s"] == pytest.approx(1e-4, rel=0.02)


def test_errors_are_summed_in_percent():
    rows = pd.DataFrame({"kind": "dense", "tpot_error": [0.1, -0.3], "ttft_error": [0.2, 0.4]})
    row = PAGE.summed(rows, ["kind"]).loc["dense"]
    assert row.to_dict() == pytest.approx(
        {"runs": 2, "tpot_mean_abs": 20, "tpot_bias": -10, "ttft_median_abs": 30, "ttft_bias": 30}
    )


@pytest.mark.parametrize(
    ("row", "why"),
    [
        (
            "nvidia/Llama-3.1-8B-Instruct-FP8,h200_sxm,fp8,0.12.0,2000,100,16,1,1,90,9,",
            "faster than its weights",
        ),
        ("Qwen/Qwen3-235B-A22B-FP8,h200_sxm,fp8,0.12.0,2000,100,16,2,1,90,9,", "on how many GPUs it ran"),
        ("Qwen/Qwen3-32B,h100_sxm,fp8,0.12.0,2000,100,16,1,0,90,9,", "ep 0 is no degree"),
        ("who/knows,h100_sxm,bf16,0.12.0,2000,100,16,1,1,90,9,", "is not in the catalogue"),
    ],
)
def test_a_run_that_cannot_be_simulated_is_left_out_with_the_reason(tmp_path, row, why):
    rows, left_out = PAGE.closed_loops(table(tmp_path, row), "auto")
    assert not len(rows)
    (reason,) = left_out.index
    assert why in reason


def test_consumers_gpus_and_single_numbers_are_simulated(tmp_path):
    consumer = tmp_path / "consumer_runs.csv"
    consumer.write_text(
        "model,gpu,gpus,engine,load,request_rate,completed,mean_input_tokens,mean_output_tokens,duration_s,"
        "mean_ttft_ms,mean_tpot_ms,p99_tpot_ms\n"
        "DeepSeek-R1-Distill-Qwen-7B,GeForce-RTX-4090,1,vLLM 0.8.5,ShareGPT,1.0,5,208.2,20,9,33.5,17.9,18\n"
    )
    (row,) = PAGE.consumer(consumer, "auto")
    assert (row["gpu"], row["gpus"], row["model"]) == ("GeForce-RTX-4090", 1, "qwen2.5-7b")
    assert abs(row["tpot_error"]) < 0.15
    points = tmp_path / "single_points.csv"
    points.write_text(
        "model,gpu,gpus,engine,load,metric,measured\n"
        'llama-3.1-8b fp16,H100,1,vLLM 0.21,"4 clients, 128/128",TPOT ms; TTFT ms,6.59; 22.75\n'
    )
    tpot, ttft = PAGE.single_points(points, "auto")
    assert (tpot["metric"], ttft["metric"]) == ("TPOT ms", "TTFT ms")
    assert tpot["error"] == pytest.approx(100 * (tpot["simulated"] / 6.59 - 1), abs=0.1)
