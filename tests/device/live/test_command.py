"""``pagesim run --device``: what it prints, what it stores, and one sentence for whatever cannot be done."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import pagesim as ps  # noqa: E402
from pagesim.device.live import pools, preflight, run_live  # noqa: E402
from pagesim.models import model  # noqa: E402
from pagesim.setup.presets import POLICIES  # noqa: E402


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")


FEW = (
    "--model",
    "tiny",
    "--num-blocks",
    "200",
    "--trace",
    "fixed:30,6",
    "--num-requests",
    "5",
    "--device",
    "cpu",
)


def test_a_run_is_shown_checked_and_stored(succeeds, tmp_path):
    shown = succeeds("run", "--device", "auto", *FEW, "--check", "--out", tmp_path / "out").out
    for part in ("5 of 5 requests finished", ": fp32", "whole iteration", "all within 0.001"):
        assert part in shown
    result = ps.load(tmp_path / "out")
    assert result.summary["clock"] == "measured"
    assert len(result.steps) == result.summary["iterations"]


def test_json_is_all_that_is_printed(succeeds):
    outcome = succeeds("run", "--device", "auto", *FEW, "--policy", "vllm-v1", "--json")
    assert outcome.json["live"]["dtype"] == "fp32"


def test_a_check_that_fails_is_an_exit_code(cli, monkeypatch):
    monkeypatch.setattr(pools.KvPools, "copy", lambda self, copies: None)
    outcome = cli("run", "--device", "auto", *FEW, "--policy", "vllm-sosp", "--n", 2, "--check")
    assert outcome.code == 1
    assert "NOT RIGHT: iteration " in outcome.out


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (
            ("--tensor-parallel-size", "2"),
            "tensor_parallel_size is 2; a live run runs on one device, so it must be 1",
        ),
        (("--model", "deepseek-v3"), "model deepseek-v3 is a mixture of experts"),
        (("--policy", "virtual-contiguous"), "policy virtual-contiguous maps pages into virtual addresses"),
        (("--kv-cache-dtype", "fp8"), "kv_cache_dtype is fp8"),
        (("--kv-cache-dtype", "int8_per_token_head"), "kv_cache_dtype is int8_per_token_head"),
        (("--swap", "teleport"), "swap is 'teleport'; it must be one of copy-each"),
        (("--device", "tpu"), "device is 'tpu'; it must be one of cpu, cuda"),
        (("--cuda-graphs",), "cuda_graphs needs device cuda"),
        (("--block-size", "24"), "block_size is 24; live runs take powers of two from 1 to 4096"),
        (("--num-blocks", "9000000"), "num_blocks is 9000000: with the model's "),
        (("--model", "opt-175b"), "model opt-175b takes "),
        (("--num-block", "9"), "--num-block"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(flags, said, cli):
    outcome = cli("run", "--device", "auto", *FEW, *flags)
    assert outcome.code == 2
    assert outcome.out == ""
    assert said in outcome.err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_gpu_is_one_sentence(refused):
    assert refused("run", *FEW, "--device", "cuda").startswith("device is 'cuda', but torch ")


def test_heads_that_the_kernels_do_not_take_are_refused(system_of):
    odd = replace(model("tiny"), head_dim=48)
    with pytest.raises(ps.PagesimError, match="has heads of 48; the kernels take 32, 64, "):
        preflight.check_options(
            system_of(), odd, POLICIES["vllm-sosp"],
            device="cpu", cuda_graphs=False, swap="gather",
        )  # fmt: skip


def test_the_size_that_is_proposed_fits(monkeypatch, make_trace, system_of):
    monkeypatch.setattr(preflight, "available_bytes", lambda: 64 << 20)
    with pytest.raises(ps.CapacityError) as caught:
        run_live(system_of(num_blocks=100_000, cpu_blocks=0), make_trace(2), device="cpu")
    proposed = int(re.search(r"set num_blocks to at most (\d+)", str(caught.value))[1])
    result = run_live(system_of(num_blocks=proposed, cpu_blocks=0), make_trace(2), device="cpu")
    assert result.summary["requests"]["finished"] == 2
    with pytest.raises(ps.CapacityError):
        run_live(system_of(num_blocks=proposed + 1, cpu_blocks=0), make_trace(2), device="cpu")
