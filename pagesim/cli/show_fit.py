"""What a person sees of a fit: the values with their errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pagesim.cli import show
from pagesim.cli.printing import put_table

WORDS = {
    "iteration_s": ("an iteration", 1e3, "ms"),
    "sequence_s": ("a sequence", 1e6, "µs"),
    "context_s": ("a token of context", 1e9, "ns"),
    "prompt_token_s": ("a token of a prompt", 1e6, "µs"),
    "prompts_s": ("an iteration with a prompt, more", 1e3, "ms"),
    "pair_s": ("a query and a key of a prompt", 1e12, "ps"),
    "front_end_s": ("front end, a request", 1e3, "ms"),
}


def values(summary: Mapping[str, Any]) -> None:
    """Print what was fitted, with standard errors."""
    rows = []
    for name, of in summary["values"].items():
        words, scale, unit = WORDS[name]
        error = of["standard_error"]
        spread = "not seen" if error is None else f"± {scale * error:,.3g}"
        rows.append((words, f"{scale * of['value']:,.4g}", spread, unit, of["source"]))
    put_table(
        f"Time of each, fitted to {summary['rows']:,} windows ({summary['left_out']:,} outliers left out); "
        f"mean miss {100 * summary['miss']:.1f} %",
        ("", "time", "standard error", "", "from"),
        rows,
        texts=(0, 3, 4),
    )
    if curve := summary["tokens"]:
        each = zip(curve["at"], curve["seconds"], strict=True)
        show.say(
            "more by the tokens of an iteration: "
            + ", ".join(f"{size:,}: {1e3 * seconds:.3g} ms" for size, seconds in each if seconds)
        )


def front_end(summary: Mapping[str, Any]) -> str:
    """Return the flag of the front end's time, ready to be appended; 0 where the runs do not show any."""
    of = summary["values"]["front_end_s"]
    error = of["standard_error"]
    known = error is not None and of["value"] > 2 * error
    return f" --frontend-latency {of['value'] if known else 0:.3g}"
