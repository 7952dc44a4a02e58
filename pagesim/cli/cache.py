"""``pagesim cache``: the hit rate of each eviction policy on a trace, at each cache capacity."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

from pagesim.api import trace_of
from pagesim.cli import show
from pagesim.cli.calibrate import words
from pagesim.cli.flags import OUT, SCENARIO, SERVE, scenario_from, taken, with_fields
from pagesim.cli.printing import put_table
from pagesim.cli.runs import counted
from pagesim.errors import PagesimError
from pagesim.eviction import OFFLINE
from pagesim.experiments.evictions import (
    BOUND,
    compare_policies,
    evicted_blocks,
    prefill_seconds,
    recompute_weights,
    serve_policies,
)
from pagesim.experiments.prompt_blocks import block_bytes, capacities_around, prompt_blocks
from pagesim.hardware.gpus import GIB
from pagesim.hardware.tier_spec import parse_capacity
from pagesim.setup.engine_config import EngineConfig
from pagesim.setup.scenario import Scenario
from pagesim.setup.serve import read_serve


class CacheStudy(BaseModel):
    """What to compare; not part of the scenario."""

    policies: str = Field(
        "lru,fifo,lfu,sieve,s3fifo,arc,gdsf,belady",
        description="Comma-separated eviction policies; retention serves by the trace's priorities.",
    )
    capacities: str | None = Field(
        None,
        description="Comma-separated capacities in bytes of KV cache, such as 64GiB,1TiB. Defaults to powers "
        "of two around the trace's working set.",
    )
    block_tokens: int | None = Field(
        None, description="Tokens per block. Defaults to those per block of the trace's hash_ids."
    )
    in_engine: bool = Field(
        False,
        description="Run each policy in vLLM v1 as well, in a tier on the host of the middle capacity.",
    )


_FIELDS = {
    name: Scenario.model_fields[name]
    for name in (
        *(
            "trace",
            "num_requests",
            "duration",
            "arrivals",
            "rate",
            "cv",
            "shared_prefix",
            "turns",
            "think",
            "seed",
        ),
        *("tokenizer", "on_bad_row", "model", "gpu", "tensor_parallel_size", "kv_cache_dtype", "cost"),
        *("num_blocks", "gpu_memory_utilization", "max_model_len"),
    )
}


@with_fields({**CacheStudy.model_fields, **_FIELDS}, engine=True)
def command(
    *, scenario: SCENARIO = None, serve: SERVE = None, out: OUT = None, flags: dict[str, Any]
) -> None:
    """Compare eviction policies on a trace, with the bound.

    Prompts are served one after another from one prefix cache, of which only leaves may go; no scheduler
    runs. Each row says the hits in tokens, how near they come to Belady's bound, the FLOPs that are computed
    again and the time to first token that is saved on average.

    Example: pagesim cache --trace conversation.jsonl --model llama-3.1-8b --gpu h100 --out out/cache
    """
    asked = taken(CacheStudy, flags)
    server = None if serve is None else read_serve(serve)
    chosen = scenario_from(Scenario, scenario, flags, server)
    import pandas as pd

    from pagesim.results.drawing import load_of
    from pagesim.results.tier_plots import hit_rate_over_capacity, who_evicts_whom

    trace = trace_of(chosen)
    prompts = prompt_blocks(trace, asked.block_tokens)
    config = EngineConfig(chosen)
    block = block_bytes(
        config.model, prompts.tokens, kv_dtype=config.kv_dtype, tp=chosen.tensor_parallel_size
    )
    future = prompts.future
    if not future.possible_hits:
        raise PagesimError(
            f"trace is {chosen.trace!r}; no prompt of it begins with {prompts.tokens} tokens of an earlier "
            "one (--block-tokens): choose one with hash_ids, or conversations, as conversations:8192:sharegpt"
        )
    if asked.capacities is None:
        capacities = capacities_around(future, block)
    else:
        given = [parse_capacity("capacities", text) // block for text in words(asked.capacities)]
        capacities = list(dict.fromkeys(given))
    policies = words(asked.policies)
    weights = recompute_weights(config.model, prompts)
    study = compare_policies(prompts, policies, capacities, weights, seconds=prefill_seconds(config.cost))
    rows = [
        {**row, "capacity_gib": row["capacity_blocks"] * block / GIB}
        for row in counted("policies", study, len(capacities) * (len(policies) + 1))
    ]
    table = pd.DataFrame(rows)
    hits = table.pivot(index="capacity_blocks", columns="policy", values="hit_pct")[[*policies, BOUND]]
    put_table(
        f"Hits, % of {sum(prompts.prompt_tokens):,} prompt tokens",
        ("capacity,\nGiB", "blocks", *hits.columns),
        [
            (_gib(blocks * block), f"{blocks:,}", *(f"{value:.2f}" for value in line))
            for blocks, line in zip(hits.index.tolist(), hits.to_numpy().tolist(), strict=True)
        ],
        texts=(),
    )
    possible = 100 * future.possible_hits * prompts.tokens / sum(prompts.prompt_tokens)
    working_set = future.working_set * block
    show.say(
        f"without a limit: {possible:.2f} %, from {future.distinct:,} blocks of different content, "
        f"{future.distinct * block / GIB:,.1f} GiB"
    )
    show.say(
        f"working set: {working_set / GIB:,.1f} GiB, {future.working_set:,} blocks: an eviction that knew "
        "the future would have all of these hits from there on"
    )
    middle = capacities[len(capacities) // 2]
    at = table[table["capacity_blocks"] == middle].set_index("policy")["hit_pct"]
    show.say(_worth(at, middle))
    if asked.in_engine:
        served = [name for name in policies if name not in OFFLINE]
        runs = serve_policies(chosen, trace, served, middle * block)
        engine = {row["policy"]: row for row in counted("policies in the engine", runs, len(served))}
        for row in rows:
            if row["capacity_blocks"] == middle:
                row |= engine.get(row["policy"], {})
        put_table(
            f"Inside vLLM v1, with a tier of {_gib(middle * block)} GiB beside the device",
            ("policy", "hits,\n%", "hits without\nan engine, %", "TTFT\nmean, s"),
            [
                (name, *(f"{value:.4g}" for value in (row["engine_hit_pct"], at[name], row["engine_ttft_s"])))
                for name, row in engine.items()
            ],
        )
        show.say(_difference({name: row["engine_hit_pct"] for name, row in engine.items()}, at))
    lines = {
        name: {size * block: value for size, value in zip(hits.index.tolist(), hits[name], strict=True)}
        for name in hits.columns
    }
    show.say_notes(() if server is None else server.notes)
    load = load_of(chosen, ("rate", "gpu"))
    show.put_study(
        out,
        "cache",
        rows,
        lambda: hit_rate_over_capacity(lines, possible=possible, working_set=working_set, load=load),
        model=chosen.model,
        block_tokens=prompts.tokens,
        block_bytes=block,
        unlimited_pct=possible,
        working_set_gib=working_set / GIB,
    )
    if out is not None:
        evicted = {name: evicted_blocks(prompts, name, middle, weights) for name in policies}
        show.put_figure(who_evicts_whom(evicted, load), out, "evictions")
    show.stored(out)


def _worth(at: Any, capacity: int) -> str:
    """Return a sentence on how far the best policy and the bound are ahead of LRU.

    Args:
        at: hit rate in percent of prompt tokens, by policy.
        capacity: blocks.
    """
    online = at.drop([name for name in (*OFFLINE, BOUND) if name in at])
    best = online.idxmax()
    first = "lru" if "lru" in online else online.index[0]
    beside = f"{best} finds {online[best]:.2f} %" + (
        f", {first} {online[first]:.2f} %" if best != first else ""
    )
    return f"with {capacity:,} blocks {beside}; no policy can find more than {at[BOUND]:.2f} %"


def _difference(engine: dict[str, float], replay: Any) -> str:
    """Return a sentence on the best policy in an engine, and how far an offline replay's hit rates differ.

    Args:
        engine: hit rate in percent of prompt tokens, by policy.
        replay: the same without an engine.
    """
    best = max(engine, key=engine.__getitem__)
    points = sorted((value - replay[name], name) for name, value in engine.items())
    least, most = (f"{value:+.2f} points ({name})" for value, name in (points[0], points[-1]))
    return (
        f"in the engine {best} finds the most; hit rates differ by {least} to {most}, as the device caches "
        "blocks as well, answers are cached, and requests overlap in time"
    )


def _gib(size: int) -> str:
    return f"{size / GIB:,.0f}" if size >= 1000 * GIB else f"{size / GIB:.4g}"
