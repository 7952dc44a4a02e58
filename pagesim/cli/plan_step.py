"""``pagesim plan --step``: the time of one iteration of a planned server, by term."""

from __future__ import annotations

import re
from typing import Annotated, Any

import typer

from pagesim.cli import show
from pagesim.cli.printing import put_table
from pagesim.errors import PagesimError, brief
from pagesim.setup.system import System

STEP = Annotated[
    str | None,
    typer.Option(
        "--step",
        metavar="NxCONTEXT[+PROMPT]",
        help="Price one iteration: N sequences decode, each over CONTEXT tokens, beside a prompt.",
    ),
]

_FORM = re.compile(r"(\d{1,6})x(\d{1,8})(?:\+(\d{1,8}))?")


def price_step(system: System, text: str) -> dict[str, Any]:
    """Return the cost model's ``seconds`` for one iteration, their ``parts``, and ``notes``.

    Args:
        system: its model, GPU and costs.
        text: ``NxCONTEXT[+PROMPT]``, in sequences and tokens.

    Raises:
        PagesimError: the text is malformed, or the system's cost model has no parts.
    """
    from pagesim.costs.base import Assuming, Itemised, ReadsSpans, step_shape
    from pagesim.scheduling.attention_spans import LastTokens, SinceChunk
    from pagesim.setup.engine_config import EngineConfig
    from pagesim.sim.clock import TICKS_PER_SECOND

    form = _FORM.fullmatch(text)
    if form is None:
        raise PagesimError(
            f"step is {brief(text, 40)}; it must be NxCONTEXT or NxCONTEXT+PROMPT, such as 64x4096+512"
        )
    sequences, context, prompt = (int(number or 0) for number in form.groups())
    if not sequences * context + prompt:
        raise PagesimError(f"step is {text}; nothing decodes, and there is no prompt")
    cost = EngineConfig(system).cost
    spans = cost.spans if isinstance(cost, ReadsSpans) else None
    if not isinstance(cost, Itemised):
        raise PagesimError(f"cost {system.cost} does not say what an iteration's time consists of")
    shape = step_shape(sequences, sequences * context, prompt=prompt)
    if spans is not None:
        reads = [SinceChunk(size) if kind == "chunk" else LastTokens(size) for kind, size in spans]
        shape = shape._replace(
            reached=tuple(sequences * read.read(context) for read in reads),
            reached_pairs=tuple(read.pairs(prompt) for read in reads),
            computed_prompts=int(prompt > 0),
        )
    parts = {name: ticks / TICKS_PER_SECOND for name, ticks in cost.parts(shape).items() if ticks}
    return {
        "step": text,
        "seconds": cost.iteration(shape) / TICKS_PER_SECOND,
        "parts": parts,
        "notes": list(cost.notes) if isinstance(cost, Assuming) else [],
    }


def show_step(priced: dict[str, Any]) -> None:
    """Print the iteration's parts, the longest first."""
    parts = sorted(priced["parts"].items(), key=lambda part: -part[1])
    rows = [*parts, ("in all", priced["seconds"])]
    put_table(
        f"A step of {priced['step']}",
        ("", "ms", "%"),
        [(name, f"{1e3 * each:.3f}", f"{100 * each / priced['seconds']:.1f}") for name, each in rows],
    )
    show.say_notes(priced["notes"])
