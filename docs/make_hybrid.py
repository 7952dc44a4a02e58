"""Write the tables of docs/explanation/hybrid.md: what requests hold, how many fit, prefix hits.

Run it from the root of the repository after a change of hybrid caches: python docs/make_hybrid.py
It takes two minutes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pagesim.accounting.fragmentation import INTERNAL
from pagesim.api import run
from pagesim.experiments.holdings import ANY_COST, holding
from pagesim.experiments.loads import conversations
from pagesim.experiments.plan import plan
from pagesim.hardware.gpus import GIB
from pagesim.models import model
from pagesim.setup.system import System

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "explanation" / "hybrid.md"
BEGIN, END = "<!-- {}, made by docs/make_hybrid.py -->\n", "<!-- end of {} -->\n"

MODELS = (
    "llama-3.1-8b",
    "gpt-oss-20b",
    "gemma3-27b",
    "llama4-scout",
    "qwen3-next-80b",
    "nemotron-3-nano",
    "falcon-h1-7b",
)
LENGTHS = (1024, 32768)
LONGEST = 131072
CACHE_GIB = 40
CLIENTS, ITERATIONS = 8, 4000
MIB = 2**20


def system(name: str, **options: object) -> System:
    """Return a server of a model on an H100."""
    return System.model_validate({"policy": "vllm-v1", "model": name, "gpu": "h100", **options})


def held(name: str) -> list[str]:
    """Return the rows of what one request of a model holds."""
    rows = []
    for tokens in LENGTHS:
        longest = min(model(name).max_model_len, LONGEST)
        one = holding(system(name, num_blocks=20_000, max_model_len=longest), tokens)
        share = {entry: 100 * count / one.all_bytes for entry, count in one.bytes.items()}
        rows.append(
            _row(
                name if tokens == LENGTHS[0] else "",
                f"{tokens:,}",
                f"{one.blocks:,}",
                f"{one.most_blocks:,}",
                f"{one.all_bytes / MIB:,.1f}",
                *(
                    f"{value:.1f}"
                    for value in (
                        share["used"],
                        share.get("state", 0.0),
                        sum(share.get(entry, 0.0) for entry in INTERNAL),
                        share.get("out_of_window", 0.0),
                    )
                ),
            )
        )
    return rows


def printed(name: str) -> list[str]:
    """Return the row of what vLLM prints of a cache for a model, and what runs."""
    asked = system(name, max_model_len=LENGTHS[-1], max_num_batched_tokens=8192)
    found, alone = (
        plan(
            asked.model_copy(update={"async_scheduling": two}), cache_bytes=CACHE_GIB * GIB, full_graphs=False
        )
        for two in (True, False)
    )
    blocks = found.blocks
    return [
        _row(
            name,
            f"{blocks.scheduler_block:,}",
            f"{blocks.num_blocks:,}",
            f"{blocks.most_blocks:,}",
            f"{found.concurrency:.2f}x",
            f"{alone.concurrency:.2f}x",
            f"{found.at_once}",
        )
    ]


def found_again(name: str) -> list[str]:
    """Return the row of how much of the prompts of conversations is found."""
    trace = conversations(CLIENTS, ITERATIONS)
    asked = system(name, max_model_len=8192, max_num_batched_tokens=8192, num_blocks=40_000, cost=ANY_COST)
    asked_of = plan(asked, cache_bytes=CACHE_GIB * GIB, full_graphs=False)
    block = asked_of.blocks.scheduler_block
    shares = [
        run(asked.model_copy(update={"prefix_cache_retention_interval": interval}), trace, steps="none")
        for interval in (0, -1)
    ]
    cells = [f"{100 * result.summary['prefix']['share']:.1f}" for result in shares]
    return [_row(name, f"{block:,}", *cells)]


def repeated() -> float:
    """Return the share of the prompts of conversations that was said before in them."""
    trace = conversations(CLIENTS, ITERATIONS)
    assert trace.session_id is not None
    said: dict[int, int] = {}
    again = 0
    for session, prompt, output in zip(
        trace.session_id.tolist(), trace.prompt_tokens.tolist(), trace.output_tokens.tolist(), strict=True
    ):
        again += said[session] if said.get(session, prompt + 1) <= prompt else 0
        said[session] = prompt + output
    return again / int(trace.prompt_tokens.sum())


def _row(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"


HEADS = {
    "holdings": (
        "| model | tokens | blocks | at most | MiB | used, % | states, % | "
        "internal fragmentation, % | out of window, % |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ),
    "concurrency": (
        "| model | block | blocks | blocks of the longest | printed | without async | at once |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ),
    "prefixes": (
        "| model | block | found, % | found with `-1`, % |",
        "|---|--:|--:|--:|",
    ),
}
ROWS: dict[str, Callable[[str], list[str]]] = {
    "holdings": held,
    "concurrency": printed,
    "prefixes": found_again,
}
"""By table, what makes the rows of a model."""


def table(name: str) -> str:
    """Return a table."""
    lines = [*HEADS[name], *(row for each in MODELS for row in ROWS[name](each))]
    if name == "prefixes":
        lines += ["", f"Of these prompts {100 * repeated():.1f} % were said before in their conversations."]
    return "\n".join([*lines, ""])


def page() -> str:
    """Return the page with the tables as they are now."""
    text = PAGE.read_text(encoding="utf-8")
    for name in HEADS:
        begin, end = BEGIN.format(name), END.format(name)
        before, rest = text.split(begin)
        text = before + begin + table(name) + end + rest.split(end)[1]
    return text


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
