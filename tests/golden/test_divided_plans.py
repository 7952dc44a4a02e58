"""Plans with tokens or layers divided over GPUs, and longest requests that fit, as vLLM 0.33.0's planner's.

The planner's rows are of iterations of 8,192 tokens and requests of 32,768, or as many of them as fit.
"""

from __future__ import annotations

import json
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from pagesim.api import run
from pagesim.errors import CapacityError, PagesimError
from pagesim.experiments.plan import plan
from pagesim.hardware.gpus import GIB
from pagesim.models import model
from pagesim.models.parallel import cached_by_stage, stages_of
from pagesim.setup.system import System
from pagesim.sizing import BlockPlan, plan_blocks
from pagesim.workloads.trace import Trace

LAYOUTS = Path(__file__).parent / "layouts"


def planned(name: str, max_model_len: int = 32768, **how: Any) -> BlockPlan:
    return plan_blocks(
        model(str(LAYOUTS / f"{name}.toml")).cache_layers,
        max_model_len=max_model_len,
        in_flight_tokens=2 * 8192,
        **how,
    )


@pytest.mark.parametrize(
    ("name", "how", "block", "bytes_per_block", "blocks", "tokens", "concurrency"),
    [
        (
            "deepseek-v3",
            {"cache_bytes": 40 * GIB, "tp": 8, "dcp": 8},
            *(128, 1124352, 38199, 4889472, 149.215),
        ),
        ("deepseek-v3", {"cache_bytes": 40 * GIB, "tp": 8, "dcp": 2}, 32, 1124352, 38199, 1222368, 37.304),
        (
            "deepseek-v3.2",
            {"cache_bytes": 40 * GIB, "tp": 8, "dcp": 8, "kv_dtype": "fp8"},
            *(512, 3076352, 13961, 7148032, 218.141),
        ),
        ("deepseek-v3", {"num_blocks": 5000, "tp": 8, "dcp": 4}, 64, 1124352, 5000, 320000, 9.766),
        ("deepseek-v3", {"cache_bytes": GIB, "tp": 8, "dcp": 8}, 128, 1124352, 954, 122112, 3.727),
    ],
)
def test_a_block_has_as_many_times_its_tokens_as_gpus_and_the_same_bytes(
    name: str,
    how: dict[str, Any],
    block: int,
    bytes_per_block: int,
    blocks: int,
    tokens: int,
    concurrency: float,
) -> None:
    found = planned(name, **how)
    assert [group.block_size for group in found.groups] == [block]
    assert (found.scheduler_block, found.hash_block) == (block, block)
    assert (found.bytes_per_block, found.num_blocks) == (bytes_per_block, blocks)
    assert found.tokens == tokens
    assert round(found.concurrency, 3) == concurrency
    assert found.longest == 32768


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("gpt-oss-20b", "layers keep a window or chunks, with which vLLM does not start"),
        ("llama4-scout", "layers keep a window or chunks, with which vLLM does not start"),
        ("qwen3-next-80b", "what blocks such layers then have is not modelled"),
    ],
)
def test_layers_that_keep_less_than_all_are_refused_beside_divided_tokens(name: str, said: str) -> None:
    with pytest.raises(PagesimError, match=said):
        planned(name, num_blocks=100, tp=16, dcp=2)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"model": "deepseek-v3", "tensor_parallel_size": 8}, None),
        ({"model": "deepseek-v3", "tensor_parallel_size": 2}, "must divide tensor_parallel_size"),
        # Llama 3.1 8B has 32 heads, of which 4 share each of 8 KV heads.
        ({"model": "llama-3.1-8b", "tensor_parallel_size": 32}, None),
        ({"model": "llama-3.1-8b", "tensor_parallel_size": 16}, "it can be at most 2"),
        ({"model": "llama-3.1-8b", "tensor_parallel_size": 8}, "it can be at most 1"),
        (
            {"model": "deepseek-v3", "tensor_parallel_size": 8, "vllm_version": "0.19.0"},
            "what vLLM 0.19.0 does beside it is in no log",
        ),
        (
            {"model": "deepseek-v3", "tensor_parallel_size": 8, "kv_offloading_size": 10.0},
            "what kv_offloading_size does beside it is in no log",
        ),
        (
            {"model": "deepseek-v3", "tensor_parallel_size": 8, "policy": "sglang"},
            "decode_context_parallel_size is for scheduler vllm-v1",
        ),
    ],
)
def test_what_vllm_does_not_start_with_is_refused_under_run(
    options: dict[str, Any], said: str | None
) -> None:
    system = System(
        **{"decode_context_parallel_size": 4, "num_blocks": 900, "cost": "affine:0.01,0,0", **options},
        max_model_len=4096,
    )
    one = Trace([0.0], [300], [4])
    if said is None:
        result = run(system, one)
        assert result.summary["memory"]["block_size"] == 64
        assert any("decode_context_parallel_size 4 decides on blocks" in note for note in result.notes)
        return
    with pytest.raises(PagesimError, match=said):
        run(system, one)


@pytest.mark.parametrize(
    ("name", "cache_gib", "longest", "blocks", "tokens", "concurrency"),
    [
        ("llama3.1-8b", 3, 24560, 1536, 24576, 1.001),
        ("gemma3-27b", 12, 32768, 9830, 37533, 1.145),
        ("gpt-oss-20b", 1, 27136, 2730, 27145, 1.0),
        ("qwen3-next-80b", 0.6, 20160, 45, 20618, 1.023),
    ],
)
def test_the_longest_request_that_fits_is_the_planners(
    tmp_path: Path, name: str, cache_gib: float, longest: int, blocks: int, tokens: int, concurrency: float
) -> None:
    own = model(str(LAYOUTS / f"{name}.toml")).max_model_len
    text = (LAYOUTS / f"{name}.toml").read_text(encoding="utf-8")
    file = tmp_path / f"{name}.toml"
    file.write_text(text.replace(f"max_model_len = {own}", "max_model_len = 32768"), encoding="utf-8")
    system = System(
        model=str(file),
        gpu="h100",
        max_model_len="auto",
        kv_cache_memory_bytes=int(cache_gib * GIB),
        max_num_batched_tokens=8192,
        cost="affine:0.01,0,0",
    )
    found = plan(system, full_graphs=False)
    assert (found.blocks.max_model_len, found.blocks.num_blocks) == (longest, blocks)
    assert found.tokens == tokens
    assert round(found.concurrency, 3) == concurrency
    result = run(system, Trace([0.0], [longest - 2], [10]))
    assert result.summary["options"]["defaults"].get("max_model_len", longest) == longest
    assert result.summary["requests"]["finished"] == 1
    assert run(system, Trace([0.0], [longest], [1])).summary["requests"]["rejected"] == 1


def test_the_bytes_that_are_given_replace_what_sizing_leaves() -> None:
    """Llama 3.1 8B on an H100: 32 layers of 8 KV heads of 128 in 16 bits take 2 MiB a block of 16 tokens."""
    system = System(
        model="llama-3.1-8b",
        gpu="h100",
        kv_cache_memory_bytes=30 * GIB,
        gpu_memory_utilization=0.3,
        max_model_len=32768,
        cost="affine:0.01,0,0",
    )
    found = plan(system)
    assert found.sized.num_blocks == 30 * GIB // (2 << 20)
    assert [part.known for part in found.parts] == ["79.20 GiB in all", "as given"]
    memory = run(system, Trace([0.0], [30], [4])).summary["memory"]
    assert memory["num_blocks"] == found.sized.num_blocks - 1  # without the null block
    for served in (plan, lambda each: run(each, Trace([0.0], [30], [4]))):
        with pytest.raises(CapacityError, match="kv_cache_memory_bytes is 75161927680, more than the"):
            served(system.model_copy(update={"kv_cache_memory_bytes": 70 * GIB}))
    with pytest.raises(PagesimError, match="sizing is paper; it is for sizing vllm"):
        run(system.model_copy(update={"sizing": "paper"}), Trace([0.0], [30], [4]))


@pytest.mark.parametrize(
    "options", [{"policy": "sglang"}, {"vllm_version": "0.19.0"}, {"policy": "orca-max"}]
)
def test_a_longest_request_that_fits_is_for_releases_that_find_it(options: dict[str, Any]) -> None:
    with pytest.raises(PagesimError, match="max_model_len is auto; it is for policy vllm-v1"):
        run(System(model="llama-3.1-8b", gpu="h100", max_model_len="auto", **options), Trace([0.0], [9], [4]))


PIPELINES = (LAYOUTS / "pipelines.jsonl").read_text(encoding="utf-8").splitlines()
"""The planner's rows of pipelines, each with the arguments that its driver was given."""

ARGUMENTS = {"tp", "dcp", "pp", "kv-gib", "stage-gib", "pp-layers", "num-gpu-blocks"}


def ranges(sizes: list[int]) -> list[range]:
    ends = list(accumulate(sizes))
    return [range(end - size, end) for size, end in zip(sizes, ends, strict=True)]


@pytest.mark.parametrize("line", PIPELINES, ids=lambda line: json.loads(line)["arguments"])
def test_the_blocks_of_a_pipeline_are_the_planners(line: str) -> None:
    """Every field of the row: stages, their bytes and blocks, groups, the printed tokens and concurrency."""
    row = json.loads(line)
    words = iter(row["arguments"].split())
    given = {word: next(words) if word in ARGUMENTS | {"model"} else "" for word in words}
    spec = model(str(LAYOUTS / f"{given['model']}.toml"))
    number = int(given["pp"])
    stages = stages_of(spec, number)
    if "pp-layers" in given:
        stages = tuple(ranges([int(layers) for layers in given["pp-layers"].split(",")]))
    assert [len(layers) for layers in stages] == row["pp_layers"]
    places = cached_by_stage(spec, stages)
    found = plan_blocks(
        spec.cache_layers,
        max_model_len=32768,
        in_flight_tokens=(number + ("sync" not in given)) * 8192,
        num_blocks=1,
        tp=int(given.get("tp", 1)),
        dcp=int(given.get("dcp", 1)),
        kv_dtype="fp8" if given["model"] == "deepseek-v3.2" else "fp16",
        prefix_caching="no-prefix-caching" not in given,
        hybrid=given["model"] != "llama4-scout",
        stages=places,
    )
    assert list(found.stage_bytes) == row["stage_bytes_per_block"]
    assert max(group.bytes for group in found.groups) == row["bytes_per_block"]
    if "num-gpu-blocks" in given:
        blocks = int(given["num-gpu-blocks"])
    else:
        gib = given.get("stage-gib") or ",".join([given["kv-gib"]] * number)
        left = [int(float(each) * GIB) for each in gib.split(",")]
        alone = [space // size for space, size in zip(left, found.stage_bytes, strict=True)]
        assert alone == row["stage_gpu_blocks_alone"]
        blocks = found.blocks_in(left)
    found = found.holding(blocks)
    assert blocks == row["blocks"]
    first = [sum(place in places[0] for place in group.places) for group in found.groups]
    assert first == [group["layers"] for group in row["groups"]]
    assert [group.block_size for group in found.groups] == [
        row["dcp"] * group["block"] for group in row["groups"]
    ]
    assert [group.page_bytes for group in found.groups] == [group["page"] for group in row["groups"]]
    assert [group.bytes_in(places[0]) for group in found.groups] == [
        group["bytes"] for group in row["groups"]
    ]
    assert (found.scheduler_block, found.hash_block) == (row["scheduler_block"], row["hash_block"])
    assert found.in_flight_tokens == row["max_in_flight_tokens"]
    if "auto-len" in given:
        assert found.longest == row["max_model_len"]
        return
    assert found.tokens == row["kv_tokens"]
    assert round(found.concurrency, 3) == row["max_concurrency"]
