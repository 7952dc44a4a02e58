"""vLLM's native offloading beyond its logs: limits, a run by hand, aborts, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pagesim as ps
from pagesim.experiments.golden import read_manifest
from pagesim.experiments.golden.replay import trace_of
from pagesim.scheduling.batch import Batch
from pagesim.scheduling.vllm_v1 import VllmV1
from pagesim.workloads.trace import Trace

GOLDEN = Path(__file__).resolve().parent.parent / "golden"
CONVERSATIONS = trace_of(next(log for log in read_manifest(GOLDEN / "offload.toml") if log.name == "d_big"))
SYSTEM = {
    "policy": "vllm-v1",
    "model": "llama-3.1-8b",
    "gpu": "h100",
    "cost": "affine:0.010,1e-5,1e-7",
    "num_blocks": 400,
    "max_num_batched_tokens": 512,
    "max_model_len": 4096,
}


def run(trace: Trace = CONVERSATIONS, **options: Any) -> Any:
    return ps.simulate(trace, **{**SYSTEM, **options}, steps="iterations")


@pytest.mark.slow
def test_auto_loads_less_than_vllm_and_is_never_later_for_it() -> None:
    always, auto = (
        run(
            kv_offloading_chunks=100_000,
            kv_offloading_load=load,
            kv_offloading_link="25GB/s",
            cost="roofline",
        )
        for load in ("always", "auto")
    )
    assert 0 < auto.requests["loaded_tokens"].sum() < always.requests["loaded_tokens"].sum()
    assert auto.summary["ttft"]["mean"] < always.summary["ttft"]["mean"]


SMALL_FULL = '{ kind = "full", kv_heads = 1, head_dim = 64 }'
FULL = '{ kind = "full", kv_heads = 2, head_dim = 64 }'
SMALL_WINDOW = '{ kind = "window", kv_heads = 1, head_dim = 64, window = 200 }'
WINDOW = '{ kind = "window", kv_heads = 2, head_dim = 64, window = 200 }'


@pytest.mark.parametrize(
    ("layers", "blocks", "stored"),
    [
        # Windows in blocks of 32 beside full attention in blocks of 16: no load need end at a window's block.
        pytest.param([FULL, SMALL_WINDOW], 1, 512 // 16 + 512 // 32, id="no divisor, chunks of 16"),
        pytest.param([FULL, SMALL_WINDOW], 3, 512 // 48 + 512 // 96, id="no divisor, chunks of 48"),
        # Blocks 8 to 14 hold the 199 tokens before 480, the last multiple of 32 before the prompt's last
        # token: they are in chunks 4 to 7 of two blocks.
        pytest.param([FULL, SMALL_WINDOW], 2, 512 // 32 + 4, id="a divisor, chunks of 32"),
        # Of equal blocks the 13 before 496.
        pytest.param([FULL, WINDOW], 1, 512 // 16 + 13, id="equal blocks"),
        # No one length at which loads end.
        pytest.param(
            *([FULL, SMALL_FULL, WINDOW], 1, 512 // 16 + 512 // 32 + 512 // 16),
            id="two kinds of full attention",
        ),
    ],
)
def test_of_a_window_every_chunk_is_stored_where_its_block_is_no_divisor_of_the_full_groups_chunk(
    tmp_path: Path, layers: list[str], blocks: int, stored: int
) -> None:
    """As vLLM 0.33.0's ``SlidingWindowManager.reachable_block_mask`` has it."""
    model = tmp_path / "model.toml"
    model.write_text(f"max_model_len = 4096\nlayers = [{', '.join(layers)}]\n", encoding="utf-8")
    result = run(
        Trace(np.array([0.0]), np.array([512]), np.array([2])),
        model=str(model),
        kv_offloading_chunks=1000,
        kv_offloading_chunk_blocks=blocks,
        kv_offloading_link="1GB/s",
    )
    assert result.summary["tiers"]["host"]["chunks"]["stored"] == stored


def test_where_prefixes_are_not_cached_a_chunk_is_loaded_for_several_requests_at_once() -> None:
    """As vLLM 0.33.0's ``_chunks_being_loaded``, None without prefix caching, defers none of them."""
    trace = Trace(
        np.array([0.0, 10.0, 10.0]), np.full(3, 64), np.full(3, 2), hash_ids=[(1,)] * 3, hash_block_size=64
    )
    result = run(
        trace,
        async_scheduling=False,
        enable_prefix_caching=False,
        kv_offloading_chunks=100,
        kv_offloading_link="1GB/s:1ms",
    )
    assert result.requests["loaded_tokens"].tolist() == [0, 64, 64]
    assert result.steps["loading"].max() == 2 * 64


def test_what_a_running_request_shares_of_a_window_with_one_that_was_aborted_counts_once() -> None:
    """The aborted one keeps its names of the blocks until the batch is over that it was in."""
    trace = ps.make_trace("sharegpt", rate=3.0, num_requests=40, shared_prefix="300:0.9")
    done = ps.simulate(
        trace,
        policy="vllm-v1",
        model="gpt-oss-20b",
        gpu="h100",
        cost="affine:0.02,1e-4,1e-6",
        num_blocks=120,
        max_model_len=1024,
        kv_offloading_chunks=600,
        kv_offloading_link="0.2GB/s",
        client_timeout=8.0,
        steps="iterations",
    )
    assert (done.requests["status"] == "aborted").any()
    assert done.steps["fenced"].max() > 0
    assert done.steps["out_of_window"].min() >= 0


def test_what_a_request_that_is_loaded_shares_with_one_that_was_aborted_is_loading() -> None:
    """The aborted third holds five blocks in its last batch. The fourth holds four, two of them the third's.

    The second evicted the first's blocks from the device, so blocks 3 and 4 of the fourth are loaded.
    """
    trace = Trace(
        np.array([0.0, 10.0, 20.0, 20.1]),
        np.array([64, 112, 48, 80]),
        np.array([2, 2, 60, 2]),
        abort_s=np.array([100.0, 100.0, 20.305, 100.0]),
        hash_ids=[(1, 2, 3, 4), tuple(range(11, 18)), (1, 2, 23), (1, 2, 3, 4, 35)],
        hash_block_size=16,
    )
    result = run(
        trace,
        num_blocks=9,
        max_model_len=128,
        max_num_seqs=1,
        async_scheduling=True,
        kv_offloading_chunks=100,
        kv_offloading_link="1GB/s:1ms",
    )
    steps = result.steps
    shared = steps[steps["fenced"] > 0]
    assert shared[["used", "loading", "fenced"]].to_numpy().tolist() == [[0, 4 * 16, 3 * 16]]


def test_every_slot_has_an_entry_where_clients_go_away_in_the_middle_of_loads_and_batches() -> None:
    result = run(
        kv_offloading_chunks=2_000, kv_offloading_link="0.5GB/s", client_timeout=0.7, async_scheduling=True
    )
    steps = result.steps
    names = [
        *("used", "reserved", "unused_reservation", "rounding", "loading", "fenced"),
        *("external", "cached", "free"),
    ]
    assert set(sum(steps[name] for name in names)) == {400 * 16 - 16}  # one block is vLLM's null block
    assert steps["loading"].max() > 0
    assert steps["fenced"].max() > 0
    assert result.summary["requests"]["aborted"] > 50


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"vllm_version": "0.19.0"}, r"kv_offloading_size is for vLLM 0\.33\.0, not 0\.19\.0"),
        ({"prefix_cache_retention_interval": 512}, "prefix_cache_retention_interval 512 is in no log"),
        (
            {"model": "llama4-scout", "gpu": "h200"},
            "chunk-8192 is in no log of vLLM's decisions; leave it out, or give disable_hybrid_kv_cache_m",
        ),
        ({"kv_offloading_size": 1.0}, "kv_offloading_size and kv_offloading_chunks say the same"),
        ({"kv_offloading_link": "25"}, "must be BANDWIDTH"),
    ],
)
def test_what_no_log_shows_is_refused_in_a_sentence(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ps.PagesimError, match=sentence):
        run(**{"kv_offloading_chunks": 100, **options})


def test_without_the_hybrid_manager_chunks_of_attention_are_stored_as_full_attention() -> None:
    off = {"model": "llama4-scout", "gpu": "h200", "disable_hybrid_kv_cache_manager": True}
    assert run(kv_offloading_chunks=100, **off).summary["requests"]["finished"]


def test_a_size_is_so_many_chunks_each_rounded_up_to_a_page() -> None:
    chunk = 3 * 16 * 2 * 32 * 8 * 128 * 2
    result = run(kv_offloading_size=1.0, kv_offloading_chunk_blocks=3)
    assert result.summary["options"]["given"]["kv_offloading_size"] == 1.0
    rounded = chunk + -chunk % 4096
    assert result.summary["options"]["defaults"]["kv_offloading_chunks"] == (1 << 30) // rounded
    with pytest.raises(ps.PagesimError, match="less than a chunk of"):
        run(kv_offloading_size=0.001)


def test_latent_vectors_that_all_gpus_hold_are_on_the_host_once() -> None:
    served = {"model": "deepseek-v3", "gpu": "h200", "tensor_parallel_size": 8, "max_model_len": 8192}
    result = run(kv_offloading_size=100.0, **served)
    # Of vLLM 0.33.0 on eight GPUs: 100 GiB in chunks of 16 tokens, 61 layers of 576 numbers of two bytes.
    assert result.summary["options"]["defaults"]["kv_offloading_chunks"] == 95_325
    divided = {"model": "llama-3.1-8b", "gpu": "h200", "tensor_parallel_size": 8, "max_model_len": 8192}
    result = run(kv_offloading_size=100.0, **divided)
    assert result.summary["options"]["defaults"]["kv_offloading_chunks"] == (100 << 30) // (16 * 131_072)


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_iterations_beside_a_copy_are_forwarded_over_until_one_learns_of_its_end(
    async_scheduling: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store of 4 blocks of 2 MiB takes 0.84 s, or some 80 iterations of 10 ms."""
    plans = 0
    plan = VllmV1.plan

    def counted(scheduler: VllmV1, now: int) -> Batch:
        nonlocal plans
        plans += 1
        return plan(scheduler, now)

    monkeypatch.setattr(VllmV1, "plan", counted)
    trace = Trace(np.array([0.0]), np.array([64]), np.array([300]), hash_ids=[(1,)], hash_block_size=64)
    system = {
        "async_scheduling": async_scheduling,
        "kv_offloading_chunks": 100,
        "kv_offloading_link": "10MB/s",
    }
    forwarded = run(trace, **system)
    assert plans < 10
    stepped = run(trace, **system, fast_forward=False)
    assert plans > 300
    for table in ("steps", "requests", "tiers"):
        assert getattr(forwarded, table).equals(getattr(stepped, table))
