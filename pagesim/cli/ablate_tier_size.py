"""``pagesim ablate tier-size``: the effect of the host tier's size on a trace."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

from pagesim.api import trace_of
from pagesim.cli import show
from pagesim.cli.flags import OUT, SCENARIO, scenario_from, taken, with_fields
from pagesim.cli.printing import put_table
from pagesim.cli.runs import counted, say_notes
from pagesim.errors import PagesimError
from pagesim.experiments.offload.sizes import serve_sizes
from pagesim.experiments.prompt_blocks import block_bytes, prompt_blocks
from pagesim.hardware.gpus import GIB
from pagesim.models import model
from pagesim.setup.engine_config import EngineConfig
from pagesim.setup.scenario import Scenario


class TierSizes(BaseModel):
    """What to compare; not part of the scenario."""

    sizes: str = Field("0,64,256,1024", description="Comma-separated sizes of the tier in GiB; 0 for none.")


_LEFT_OUT = ("policy", "steps", "kv_offloading_size", "kv_offloading_chunks", "enable_prefix_caching")
_FIELDS = {name: field for name, field in Scenario.model_fields.items() if name not in _LEFT_OUT}


@with_fields({**TierSizes.model_fields, **_FIELDS}, engine=True)
def tier_size(*, scenario: SCENARIO = None, out: OUT = None, flags: dict[str, Any]) -> None:
    """Replay a trace with host tiers of several sizes under vLLM.

    It shows hit rate, time to first token and throughput.

    Example: pagesim ablate tier-size --model llama-3.1-8b --gpu h100 --trace conversation.jsonl --sizes 0,256
    """
    asked = taken(TierSizes, flags)
    chosen = scenario_from(Scenario, scenario, {**flags, "policy": "vllm-v1", "enable_prefix_caching": True})
    from pagesim.results.drawing import load_of
    from pagesim.results.tier_plots import over_tier_sizes

    sizes = _sizes(asked.sizes)
    trace = trace_of(chosen)
    prompts = prompt_blocks(trace)
    kv_dtype = EngineConfig(chosen).kv_dtype
    chunk = block_bytes(
        model(chosen.model), prompts.tokens, kv_dtype=kv_dtype, tp=chosen.tensor_parallel_size
    )
    rows: list[dict[str, Any]] = []
    notes: list[str] = []
    for row, said in counted("sizes", serve_sizes(chosen, trace, sizes, prompts, chunk), len(sizes)):
        rows.append(row)
        notes += said
    heads = {
        **{"tier_gib": "tier,\nGiB", "hit_pct": "hit\n%", "tier_pct": "loaded\n%", "bound_pct": "bound\n%"},
        **{"ttft_mean_s": "TTFT\nmean, s", "ttft_p50_s": "TTFT\np50, s", "ttft_p99_s": "TTFT\np99, s"},
        "tokens_per_s": "tokens/s",
    }
    put_table(
        "Over sizes of the tier, % of prompt tokens",
        list(heads.values()),
        [["–" if row[name] is None else f"{row[name]:.4g}" for name in heads] for row in rows],
        texts=(),
    )
    working_set = prompts.future.working_set * chunk / GIB
    show.say(
        f"working set: {working_set:,.1f} GiB of tier and device together; the bound knows the future, on "
        f"chunks of {prompts.tokens} tokens"
    )
    say_notes(notes)
    show.put_study(
        out,
        "tier_size",
        rows,
        lambda: over_tier_sizes(rows, working_set, load_of(chosen)),
        model=chosen.model,
        working_set_gib=working_set,
    )
    show.stored(out)


def _sizes(text: str) -> list[float]:

    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = [-1.0]
    if not all(0 <= size < 1 << 30 for size in found):
        raise PagesimError(f"sizes is {text!r}; GiB from 0 on are needed, separated by commas")
    return list(dict.fromkeys(found))
