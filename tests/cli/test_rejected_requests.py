"""A request that can never be served is no bad input: it is rejected, counted, and the run goes on."""

from __future__ import annotations

import pandas as pd
import pytest

POLICIES = ["static", "contiguous-max", "orca-max", "orca-pow2", "orca-oracle", "vllm-sosp"]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_request_longer_than_the_model_is_rejected_and_the_others_finish(policy, succeeds, trace_file):
    trace = trace_file("a,0,100,10\nb,0,10000000,10000000\nc,1,100,10\n")
    requests = succeeds("run", "--trace", trace, "--policy", policy, "--json").json["requests"]
    assert requests == {
        "total": 3,
        "finished": 2,
        "rejected": 1,
        "unschedulable": 0,
        "aborted": 0,
        "unfinished": 0,
    }


@pytest.mark.parametrize("policy", ["static", "orca-oracle", "vllm-sosp"])
def test_a_request_longer_than_the_memory_is_rejected_and_the_others_finish(policy, succeeds, trace_file):
    trace = trace_file("a,0,100,10\nb,0,1000,10\nc,1,100,10\n")
    flags = ("--policy", policy, "--num-blocks", "16", "--json")
    requests = succeeds("run", "--trace", trace, *flags).json["requests"]
    assert requests == {
        "total": 3,
        "finished": 2,
        "rejected": 1,
        "unschedulable": 0,
        "aborted": 0,
        "unfinished": 0,
    }


@pytest.mark.parametrize("policy", POLICIES)
def test_a_trace_of_which_nothing_can_be_served_ends_in_nulls(policy, cli, trace_file, tmp_path):
    trace = trace_file("a,0,50000,5\nb,1,50000,5\n")
    out = tmp_path / "out"
    done = cli("run", "--trace", trace, "--policy", policy, "--json", "--out", out)
    assert done.code == 1
    assert done.err.startswith("pagesim: 2 of 2 requests were rejected: prompt and output exceed ")
    summary = done.json
    assert summary["requests"]["rejected"] == 2
    assert summary["iterations"] == 0
    assert summary["ttft"]["mean"] is None
    assert summary["throughput"] == {"requests_per_s": None, "tokens_per_s": None}
    assert pd.read_parquet(out / "requests.parquet")["status"].tolist() == ["rejected", "rejected"]
    steps = pd.read_parquet(out / "steps.parquet")
    assert len(steps) == 0
    assert {"step", "clock", "num_running", "used", "free"} <= set(steps.columns)


def test_a_table_without_rows_has_the_columns_of_any_other(cli, trace_file, tmp_path):
    for name, tokens, code in (("none", 50_000, 1), ("some", 50, 0)):
        trace = trace_file(f"a,0,{tokens},5\n")
        run = ("run", "--trace", trace, "--policy", "static", "--steps", "--out", tmp_path / name)
        assert cli(*run).code == code
    for table in ("requests", "steps", "batches"):
        none, some = (pd.read_parquet(tmp_path / name / f"{table}.parquet") for name in ("none", "some"))
        assert none.columns.tolist() == some.columns.tolist()
        if table == "steps":
            assert none.dtypes.tolist() == some.dtypes.tolist()


def test_a_rejection_is_said(succeeds, trace_file):
    trace = trace_file("a,0,100,10\nb,0,50000,5\n")
    assert "1 rejected" in succeeds("run", "--trace", trace).out
    both = ("run", "--policies", "vllm-sosp,orca-max", "--trace", trace)
    assert "vllm-sosp: 1 of 2 requests finished, 1 rejected" in succeeds(*both).out


TP2 = ("--model", "qwen3-14b", "--gpu", "l40s", "--tensor-parallel-size", "2")
"""A server of a model whose config.json has max_position_embeddings 40960."""

LIMITS = {
    # The artifact of the PagedAttention paper batches 2560 tokens at most, and cuts no prompt.
    "vllm-sosp": ((), 8000, "the prompt exceeds max_num_batched_tokens, 2560 tokens, and is not cut"),
    "orca-max": ((), 8000, "the prompt exceeds max_num_batched_tokens, 2560 tokens, and is not cut"),
    "static": ((), 50_000, "exceed 40952 tokens, which is 8 less than max_model_len, 40960"),
    "vllm-v0": (
        ("--max-num-batched-tokens", "4096"),
        8000,
        "the prompt exceeds max_num_batched_tokens, 4096 tokens",
    ),
    "vllm-v1": ((), 50_000, "no room for an output within max_model_len, 40960 tokens"),
    "sglang": ((), 50_000, "the prompt leaves fewer than 7 tokens of max_model_len, 40960 tokens"),
    "trtllm": ((), 50_000, "prompt and output exceed max_model_len, 40960 tokens"),
    "trtllm-max-util": (
        ("--max-num-tokens", "3000", "--no-enable-chunked-prefill"),
        8000,
        "the prompt exceeds max_num_tokens, 3000 tokens, and enable_chunked_prefill is off",
    ),
    "lightllm": (
        ("--batch-max-tokens", "5000"),
        8000,
        "the prompt exceeds batch_max_tokens, 5000 tokens, and is not cut",
    ),
}
"""Of schedulers: options, the tokens of a prompt that is too long, and what it exceeds."""


@pytest.mark.parametrize("policy", LIMITS)
def test_the_reason_names_the_limit_that_was_hit_its_value_and_its_option(policy, succeeds, trace_file):
    flags, prompt, limit = LIMITS[policy]
    trace = trace_file(f"a,0,100,10\nb,1,{prompt},10\n")
    done = succeeds("run", *TP2, "--policy", policy, *flags, "--trace", trace)
    assert limit in done.out.splitlines()[0]
    assert "outputs cut" not in done.err


@pytest.mark.parametrize("policy", ["orca-oracle", "vllm-sosp", "vllm-v0", "vllm-v1", "trtllm"])
def test_the_reason_names_the_blocks_where_they_are_too_few(policy, succeeds, trace_file):
    trace = trace_file("a,0,100,10\nb,0,1000,10\n")
    num_blocks = "17" if policy == "vllm-v1" else "16"  # of which one is vLLM's null block
    run = ("run", "--policy", policy, "--num-blocks", num_blocks, "--block-size", "16", "--trace", trace)
    assert "more than the 16 blocks of 16 tokens" in succeeds(*run).out.splitlines()[0]


def test_prompts_that_the_papers_vllm_rejects_are_served_by_the_default(succeeds, trace_file):
    trace = trace_file("a,0,100,10\nb,1,8000,10\n")
    assert "2 of 2 requests finished" in succeeds("run", *TP2, "--trace", trace).out


def test_each_limit_is_said_with_how_many_requests_exceed_it(succeeds, trace_file):
    trace = trace_file("a,0,100,10\nb,0,8000,10\nc,0,8001,9\nd,0,50000,10\n")
    done = succeeds("run", *TP2, "--policy", "vllm-sosp", "--trace", trace, "--json")
    assert list(done.json["rejections"].values()) == [2, 1]
    assert list(done.json["rejections"])[1] == "prompt and output exceed max_model_len, 40960 tokens"


def test_an_output_that_ends_early_is_said_with_the_limit_that_ends_it(succeeds, trace_file):
    trace = trace_file("a,0,40000,5000\nb,1,50000,10\n")
    done = succeeds("run", *TP2, "--trace", trace)
    # vLLM ends a sequence at max_model_len; the second request is rejected, so none of it is cut.
    assert "1 outputs cut: the engine ends a sequence at 40960 tokens, by max_model_len, 40960" in done.err


@pytest.mark.parametrize("flags", [(), ("--policies", "orca-max,vllm-sosp"), ("--replicas", "2")])
def test_a_run_that_rejects_every_request_says_so_first_and_ends_with_1(flags, cli, trace_file):
    trace = trace_file("a,0,8000,10\nb,1,8000,10\n")
    policy = () if "--policies" in flags else ("--policy", "vllm-sosp")
    done = cli("run", *flags, *TP2, *policy, "--trace", trace)
    assert done.code == 1
    assert done.err.startswith("pagesim: 2 of 2 requests were rejected: the prompt exceeds max_num_batched")


def test_a_comparison_in_which_one_policy_serves_ends_with_0(succeeds, trace_file):
    trace = trace_file("a,0,8000,10\n")
    succeeds("run", *TP2, "--policies", "vllm-sosp,vllm-v1", "--trace", trace)


def test_a_sweeps_tables_have_the_same_columns_whatever_is_rejected(succeeds, trace_file, tmp_path):
    trace = trace_file("a,0,100,10\nb,0,50000,5\n")
    succeeds("sweep", "--trace", trace, "--grid", "seed=1", "--jobs", "1", "--out", tmp_path / "out")
    runs = pd.read_parquet(tmp_path / "out" / "runs.parquet")
    assert runs["requests.rejected"].tolist() == [1]
    assert not [name for name in runs.columns if "max_model_len," in name]
