"""``pagesim calibrate``, ``validate`` and ``ablate``: what they show and store, or say in one sentence."""

from __future__ import annotations

import pandas as pd
import pytest

from pagesim.costs.profiles import analytic_profile
from pagesim.hardware import gpu
from pagesim.models import model

pytest.importorskip("torch", reason="torch is not installed")

LOAD = ("--model", "tiny", "--num-blocks", "40", "--trace", "fixed:60,60", "--num-requests", "12")


@pytest.fixture
def profile(tmp_path):
    """Return the file of a profile that knows three block sizes."""
    file = tmp_path / "p.json"
    made = analytic_profile(gpu("h200"), model("tiny"), block_sizes=(8, 16, 32))
    made.model_copy(update={"kind": "imported", "name": "p"}).save(file)
    return file


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--tensor-parallel-size", 3), "tensor_parallel_size is 3; it must divide the 4 heads of tiny"),
        (("--pipeline-parallel-size", 2), "calibrate times one stage, so it must be 1"),
        (("--device", "tpu"), "device is 'tpu'; it must be one of cpu, cuda"),
        (("--kv-cache-dtype", "nvfp4"), "kv_cache_dtype is nvfp4; calibrate times caches in fp16, bf16, fp8"),
        (("--model", "falcon-h1-7b"), "are 44 full, 44 state; calibrate has kernels of full"),
        (("--block-sizes", "16,24"), "block_size is 24; live runs take powers of two"),
        (("--block-sizes", "16,x"), "block_sizes is '16,x'; whole numbers separated by commas are needed"),
        (("--block-sizes", "16,16"), "block_sizes must be distinct"),
        (("--seconds", 0), "seconds is 0.0; it must be above 0"),
        (("--swap", "teleport"), "swap is 'teleport'"),
        (("--cuda-graphs",), "cuda_graphs needs device cuda"),
        (("--model", "deepseek-v3"), "has weights in fp8_block; calibrate times products of 16 bits"),
        (("--model", "no-such"), "no-such"),
        (("--model", "opt-175b"), "model opt-175b takes "),
    ],
)
def test_what_cannot_be_calibrated_is_one_sentence(flags, said, refused, tmp_path):
    options = ("--model", "tiny", "--device", "cpu", *flags)
    assert said in refused("calibrate", *options, tmp_path / "p.json")
    assert not list(tmp_path.iterdir())


def test_a_profile_needs_a_name_that_commands_find(refused, tmp_path):
    assert "must end in .json" in refused("calibrate", "--device", "cpu", tmp_path / "profile")
    assert "is not a folder" in refused("calibrate", "--device", "cpu", tmp_path / "absent" / "p.json")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--preemptions", "teleport"), "preemptions is 'teleport'; each must be one of default, recompute"),
        (("--policies", "vllm-v9"), "vllm-v9"),
        (("--profile", "nothing"), "there is no profile 'nothing'"),
        (("--profile", "llama-2-7b-a100-tp1"), "is for llama-2-7b, not tiny; calibrate tiny"),
        (("--block-size", 64), "was not measured at block_size 64; it knows 8, 16, 32"),
        (("--device", "tpu"), "device is 'tpu'"),
    ],
)
def test_what_cannot_be_validated_is_one_sentence(flags, said, refused, profile):
    assert said in refused("validate", "--live", *LOAD, "--profile", profile, "--device", "cpu", *flags)


@pytest.mark.slow
def test_validate_says_that_a_profile_was_not_measured_here(succeeds, profile):
    done = succeeds(
        "validate", "--live", *LOAD, "--trace", "fixed:20,10", "--num-requests", 3, "--profile", profile,
        "--device", "cpu", "--policies", "vllm-v1", "--preemptions", "default",
    )  # fmt: skip
    assert "profile p is imported: it was not measured on this machine" in done.err
    assert "Same schedule" in done.out
    assert "vllm-v1: checked sequences" in done.out
    assert "they say nothing of the kernels" in done.out
    assert "nothing was preempted in vllm-v1: fewer num_blocks or a higher rate bring pressure" in done.err


@pytest.mark.slow
def test_validate_says_nothing_of_pressure_where_there_is_some(succeeds, profile):
    done = succeeds(
        "validate", "--live", "--model", "tiny", "--num-blocks", 14, "--trace", "fixed:40,20",
        "--num-requests", 4, "--arrivals", "all-at-once", "--profile", profile, "--device", "cpu",
        "--policies", "vllm-v1",
    )  # fmt: skip
    assert "nothing was preempted" not in done.err


def test_ablate_preemption_names_the_crossover_and_stores_both_figures(succeeds, profile, tmp_path):
    done = succeeds("ablate", "preemption", *LOAD, "--profile", profile, "--out", tmp_path / "out")
    assert "alone: " in done.out
    assert "end to end: " in done.out
    assert "knows no difference between block sizes in attention" in done.err
    alone = pd.read_csv(tmp_path / "out" / "preemption_alone.csv")
    assert alone["block_size"].tolist() == [8, 16, 32]
    assert (alone["swap_s"] == alone["swap_out_s"] + alone["swap_in_s"]).all()
    whole = pd.read_csv(tmp_path / "out" / "preemption.csv")
    assert whole.groupby("preemption")["block_size"].apply(list).to_dict() == {
        way: [8, 16, 32] for way in ("recompute", "swap", "auto")
    }
    assert (whole[["normalized_latency_s", "tokens_per_s", "preemptions"]] > 0).all(axis=None)
    for stem in ("preemption", "preemption_alone"):
        for ending in (".png", ".svg"):
            assert (tmp_path / "out" / stem).with_suffix(ending).stat().st_size > 1000


def test_ablate_block_size_names_the_best(succeeds, profile, tmp_path):
    done = succeeds(
        "ablate", "block-size", *LOAD, "--profile", profile, "--block-sizes", "8,32", "--out", tmp_path
    )
    assert "best block size: " in done.out
    assert pd.read_csv(tmp_path / "block_size.csv")["block_size"].tolist() == [8, 32]
    assert (tmp_path / "block_size.svg").exists()


def test_an_analytic_profile_takes_any_block_size(succeeds):
    done = succeeds("ablate", "block-size", *LOAD, "--profile", "analytic-h200", "--block-sizes", "4,64")
    assert "profile analytic-h200 is analytic; pagesim calibrate measures one" in done.err


@pytest.mark.parametrize("which", ["block-size", "preemption"])
@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ((), "--profile is needed: a profile by name, or the file that pagesim calibrate wrote"),
        (("--profile", "nothing"), "there is no profile 'nothing'"),
        (("--profile", "P", "--num-blocks", "1"), "num_blocks is 1; that many blocks of 16 tokens hold no"),
    ],
)
def test_what_cannot_be_compared_is_one_sentence(which, flags, said, refused, profile):
    given = [profile if flag == "P" else flag for flag in flags]
    assert said in refused("ablate", which, *LOAD, *given)


def test_tokens_must_be_some(refused, profile):
    assert "tokens is 0; it must be at least 1" in refused(
        "ablate", "preemption", *LOAD, "--profile", profile, "--tokens", 0
    )
