"""``pagesim ablate hit-rate``: what a tier's capacity and its eviction are worth on a trace."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

from pagesim.api import trace_of
from pagesim.cli import show
from pagesim.cli.calibrate import words
from pagesim.cli.flags import OUT, SCENARIO, scenario_from, taken, with_fields
from pagesim.cli.printing import put_table
from pagesim.cli.runs import counted
from pagesim.errors import PagesimError
from pagesim.experiments.offload.hit_rate import (
    BOUND,
    capacities_around,
    chunk_bytes,
    hit_rates,
    prompt_chunks,
)
from pagesim.hardware.gpus import GIB
from pagesim.hardware.tier_spec import parse_capacity
from pagesim.models import model
from pagesim.setup.engine_config import EngineConfig
from pagesim.setup.scenario import Scenario


class Capacities(BaseModel):
    """What is compared; not part of the scenario."""

    chunk_tokens: int | None = Field(
        None, description="Tokens per chunk. Defaults to those per block of the trace's hash_ids."
    )
    capacities: str | None = Field(
        None,
        description="Comma-separated capacities of the tier, such as 64GiB,1TiB. Defaults to powers of "
        "two around the trace's working set.",
    )
    evictions: str = Field(
        "lru,arc", description="Comma-separated eviction policies: lru (by request), arc, lru-chunk, never."
    )


_FIELDS = {
    name: Scenario.model_fields[name]
    for name in (
        *("trace", "num_requests", "duration", "arrivals", "rate", "cv", "shared_prefix", "turns", "seed"),
        *("tokenizer", "on_bad_row", "model", "tensor_parallel_size", "kv_cache_dtype"),
    )
}


@with_fields({**Capacities.model_fields, **_FIELDS}, engine=True)
def hit_rate(*, scenario: SCENARIO = None, out: OUT = None, flags: dict[str, Any]) -> None:
    """Compute the hit rate of a tier against its capacity.

    Belady's bound stands beside it; no scheduler runs.

    Example: pagesim ablate hit-rate --model llama-3.1-8b --trace conversation.jsonl --out out/hit-rate
    """
    asked = taken(Capacities, flags)
    chosen = scenario_from(Scenario, scenario, flags)
    from pagesim.results.drawing import load_of
    from pagesim.results.tier_plots import hit_rate_over_capacity

    prompts = prompt_chunks(trace_of(chosen), asked.chunk_tokens)
    kv_dtype = EngineConfig(chosen).kv_dtype
    chunk = chunk_bytes(
        model(chosen.model), prompts.tokens, kv_dtype=kv_dtype, tp=chosen.tensor_parallel_size
    )
    future = prompts.future
    if not future.possible_hits:
        raise PagesimError(
            f"trace is {chosen.trace!r}; no prompt of it begins with {prompts.tokens} tokens of an earlier "
            "one: choose one with hash_ids, or --shared-prefix, or --turns all"
        )
    if asked.capacities is None:
        capacities = capacities_around(future, chunk)
    else:
        given = [parse_capacity("capacities", text) // chunk for text in words(asked.capacities)]
        capacities = list(dict.fromkeys(given))
    evictions = words(asked.evictions)
    rows: list[dict[str, Any]] = []
    lines: dict[str, dict[int, float]] = {}
    runs = hit_rates(prompts, capacities, evictions)
    for rate in counted("hit rates", runs, len(capacities) * (len(evictions) + 1)):
        rows.append(
            {
                "eviction": rate.eviction,
                "capacity_gib": rate.capacity * chunk / GIB,
                "capacity_chunks": rate.capacity,
                "hits": rate.hits,
                "chunks": prompts.chunks,
                "hit_rate_pct": rate.percent,
            }
        )
        lines.setdefault(rate.eviction, {})[rate.capacity * chunk] = rate.percent
    possible = 100 * future.possible_hits / prompts.chunks
    working_set = future.working_set * chunk
    put_table(
        f"Hit rate, % of {prompts.chunks:,} chunks of {prompts.tokens} tokens",
        ("capacity,\nGiB", "chunks", *lines),
        [
            (_gib(size), f"{size // chunk:,}", *(f"{line[size]:.2f}" for line in lines.values()))
            for size in lines[BOUND]
        ],
        texts=(),
    )
    show.say(
        f"without a limit: {possible:.2f} %, from {future.distinct:,} chunks of different content, "
        f"{future.distinct * chunk / GIB:,.1f} GiB"
    )
    show.say(
        f"working set: {working_set / GIB:,.1f} GiB, {future.working_set:,} chunks: an eviction that knew "
        "the future would have all of these hits from there on"
    )
    load = load_of(chosen, ("rate", "gpu"))
    show.put_study(
        out,
        "hit_rate",
        rows,
        lambda: hit_rate_over_capacity(lines, possible=possible, working_set=working_set, load=load),
        model=chosen.model,
        chunk_tokens=prompts.tokens,
        chunk_bytes=chunk,
        possible_pct=possible,
        working_set_gib=working_set / GIB,
    )
    show.stored(out)


def _gib(size: int) -> str:
    return f"{size / GIB:,.0f}" if size >= 1000 * GIB else f"{size / GIB:.4g}"
