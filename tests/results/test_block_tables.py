"""Block tables of a replay, and the folder on which kernels are timed, by hand and by FlashInfer's schema."""

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("safetensors", reason="safetensors is not installed")

from safetensors.numpy import load_file

from pagesim import PagesimError, load
from pagesim.api import run, trace_of
from pagesim.results.block_tables import NO_BLOCK, KernelBatch, batches_of
from pagesim.results.kernel_workload import export_workload
from pagesim.results.result import Result
from pagesim.setup.scenario import Scenario
from tests.commands import Cli


def stored(tmp_path: Path, rows: str, **options: object) -> Result:
    """Return a run of a trace of these rows."""
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n" + rows)
    scenario = Scenario(trace=str(trace), **options)
    return run(scenario, trace_of(scenario))


@pytest.fixture
def two(tmp_path: Path) -> Result:
    """Two requests of 20 and 5 tokens that arrive together and get four tokens each."""
    return stored(
        tmp_path,
        "0,20,4\n0,5,4\n",
        policy="vllm-v1",
        num_blocks=8,
        async_scheduling=False,
    )


def test_a_prompt_and_a_decode_step_by_hand(two: Result) -> None:
    """vLLM takes blocks in the order of their numbers: 0 and 1 for 20 tokens, 2 for 5."""
    first, *_, last = batches_of(two, 64)
    assert first.block_tables.tolist() == [[0, 1], [2, NO_BLOCK]]
    assert first.seq_lens.tolist() == first.query_lens.tolist() == [20, 5]
    assert first.slot_mapping.tolist() == [*range(20), *range(32, 37)]
    # The fourth token is sampled where the third one's key is written: at places 22 and 7.
    assert last.seq_lens.tolist() == [23, 8]
    assert last.query_lens.tolist() == [1, 1]
    assert last.slot_mapping.tolist() == [22, 2 * 16 + 7]
    assert last.decodes == 2


def test_shared_prefixes_are_told_in_tokens(tmp_path: Path) -> None:
    """The second prompt has the 33 first tokens of the first one: two whole blocks of 16."""
    result = stored(
        tmp_path, "0,40,60\n0.5,41,60\n", policy="vllm-v1", num_blocks=32, shared_prefix="33", rate=None
    )
    both = [batch for batch in batches_of(result, 200) if len(batch.seq_lens) == 2]
    assert both
    for batch in both:
        assert batch.block_tables[0, :2].tolist() == batch.block_tables[1, :2].tolist()
        assert batch.block_tables[0, 2] != batch.block_tables[1, 2]
        assert batch.shared_prefix_lens.tolist() == [32, 32]


@pytest.mark.parametrize(
    "policy", ["contiguous-max", "orca-max", "orca-pow2", "orca-oracle", "vllm-sosp", "vllm-v0", "vllm-v1"]
)
def test_no_two_new_tokens_share_a_slot_and_none_lies_outside(policy: str) -> None:
    scenario = Scenario(trace="sharegpt", rate=3, duration=40, policy=policy, seed=4, num_blocks=300)
    batches = batches_of(run(scenario, trace_of(scenario)), 40)
    assert sum(batch.decodes < len(batch.seq_lens) for batch in batches), "no batch has a prompt"
    for batch in batches:
        check_batch(batch)


def check_batch(batch: KernelBatch) -> None:
    pages = -(-batch.seq_lens // batch.block_size)
    assert (np.sort(batch.query_lens[: batch.decodes]) == 1).all()
    assert ((batch.block_tables != NO_BLOCK).sum(axis=1) == pages).all()
    assert batch.block_tables.max() < batch.num_blocks
    assert len(set(batch.slot_mapping.tolist())) == len(batch.slot_mapping) == batch.query_lens.sum()
    assert set(batch.slot_mapping // batch.block_size) <= set(batch.block_tables.ravel())
    owners = np.bincount(batch.block_tables[batch.block_tables != NO_BLOCK])
    assert owners.max() == 1, "a block belongs to two sequences, and nothing is shared here"


def test_what_has_no_single_table_is_refused(tmp_path: Path) -> None:
    result = stored(tmp_path, "0,20,4\n", policy="sglang")
    with pytest.raises(PagesimError, match="mine: policy sglang has no single table of numbered blocks"):
        export_workload({"mine": result}, tmp_path / "out", 2)


def test_the_folder_follows_flashinfers_schema(two: Result, tmp_path: Path) -> None:
    """Axes and constraints are those of gqa_paged_decode_… and gqa_paged_prefill_causal_… in its trace."""
    folder = tmp_path / "tables"
    assert export_workload({"two": two}, folder, 64) == {"two": 4}
    lines = [json.loads(line) for line in (folder / "batches.jsonl").read_text().splitlines()]
    assert [(line["sequences"], line["decodes"], line["new_tokens"]) for line in lines] == [
        (2, 0, 25),
        *[(2, 2, 2)] * 3,
    ]
    workloads = folder / "workloads" / "gqa_paged"
    names = sorted(file.name for file in workloads.iterdir())
    assert names == [
        "gqa_paged_decode_h40_kv40_d128_ps16.jsonl",
        "gqa_paged_prefill_causal_h40_kv40_d128_ps16.jsonl",
    ]
    for name in names:
        for line in (workloads / name).read_text().splitlines():
            trace = json.loads(line)
            assert trace["definition"] == name.removesuffix(".jsonl")
            assert trace["solution"] is trace["evaluation"] is None
            inputs, axes = trace["workload"]["inputs"], trace["workload"]["axes"]
            tensors = {
                key: load_file(folder / value["path"])[value["tensor_key"]]
                for key, value in inputs.items()
                if value["type"] == "safetensors"
            }
            assert axes["len_indptr"] == len(tensors["kv_indptr"])
            assert axes["num_kv_indices"] == tensors["kv_indptr"][-1] == len(tensors["kv_indices"])
            if "decode" in name:
                assert axes["batch_size"] == axes["len_indptr"] - 1 == len(tensors["kv_last_page_len"])
            else:
                assert axes["total_q"] == tensors["qo_indptr"][-1]
                assert tensors["kv_indices"].tolist() == [0, 1, 2]
                assert tensors["kv_last_page_len"].tolist() == [4, 5]


def test_a_result_is_not_replaced_by_a_workload(two: Result, tmp_path: Path) -> None:
    folder = two.save(tmp_path / "run")
    with pytest.raises(PagesimError, match="holds a run, which a workload does not replace"):
        export_workload({"two": load(folder)}, folder, 2)


def test_the_command_exports_every_system_of_a_comparison(cli: Cli, tmp_path: Path) -> None:
    load = ("--trace", "fixed:100,50", "--arrivals", "poisson", "--rate", 2, "--num-requests", 20)
    cli("run", "--policies", "contiguous-max,vllm-v1", *load, "--out", tmp_path / "run")
    told = cli("bench", "export", tmp_path / "run", "--out", tmp_path / "tables", "--batches", 3)
    assert (told.code, told.out.count("3 batches of")) == (0, 2)
    lines = [json.loads(line) for line in (tmp_path / "tables" / "batches.jsonl").read_text().splitlines()]
    assert [line["policy"] for line in lines] == ["contiguous-max"] * 3 + ["vllm-v1"] * 3
    assert all((tmp_path / "tables" / line["file"]).is_file() for line in lines)
