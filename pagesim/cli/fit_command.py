"""``pagesim fit``: fit a profile to the logs of your own server."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pagesim.cli import show
from pagesim.cli.flags import JSON, with_fields
from pagesim.cli.printing import put_table
from pagesim.errors import PagesimError
from pagesim.setup.files import check_file
from pagesim.setup.system import System

if TYPE_CHECKING:
    from pagesim.experiments.recorded.recording import RecordedRun

LEFT_OUT = (
    *("cost", "frontend", "max_concurrency", "client_timeout", "window", "until", "fast_forward"),
    *("seed", "beam_drop", "strict_compat"),
)
"""Fields of a system that logs say, or that no log depends on."""

_FIELDS = {name: field for name, field in System.model_fields.items() if name not in LEFT_OUT}


@with_fields(_FIELDS, engine=True)
def command(
    *,
    logs: Annotated[
        list[Path],
        typer.Argument(
            metavar="LOGS…",
            help="Recorded loads of one server, a file each, and the server's log.",
        ),
    ],
    hold_out: Annotated[
        list[Path] | None,
        typer.Option("--hold-out", metavar="FILE", help="Load to predict and not to fit to. Repeatable."),
    ] = None,
    first: Annotated[
        int | None,
        typer.Option(min=1, help="Fit to this many requests of each load, and predict the others."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="PROFILE.json", help="Write the profile here.")
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", metavar="DIR", help="Draw measured against simulated times into this folder."),
    ] = None,
    json: JSON = False,
    flags: dict[str, Any],
) -> None:
    """Fit a profile to the logs of a server's requests.

    Give several loads of different concurrency: one alone does not tell a time a sequence from a time a
    token of context. What the logs do not say of the server is given by flags.

    Example: pagesim fit c4.json c16.json c64.json --hold-out c96.json --gpu h100 --out my.json
    """
    from pagesim.cli import show_truth
    from pagesim.experiments.fit import fitting, reading, result
    from pagesim.experiments.recorded.find import read_all

    if out is not None and out.suffix != ".json":
        raise PagesimError(f"out is {out}; it must end in .json, or no command would find it")
    if out is not None:
        check_file(out, "profile")
    runs = read_all([*logs, *(hold_out or [])])
    system, loads = reading.one_server(runs, flags)
    apart = {str(file) for file in hold_out or []}
    by_use: dict[bool, list[RecordedRun]] = {False: [], True: []}
    for run, load in zip(runs, loads, strict=True):
        # A run of a file of several is called by the file and a number.
        by_use[bool({run.name, run.name.rpartition("#")[0]} & apart)].append(load)
    fitted = fitting.fit(by_use[False], system, first=first)
    found = result.comparisons(fitted, by_use[True])
    summary = result.report(fitted, found)
    if out is not None:
        result.profile(fitted, out.stem, summary).save(out)
    if plot is not None:
        from pagesim.experiments.recorded.plots import measured_against_simulated

        show.put_figure(measured_against_simulated(found), plot, "fit")
    show.say_notes(tuple(dict.fromkeys((*(note for load in loads for note in load.notes), *fitted.notes))))
    if json:
        show.as_json(summary)
        return
    _show_values(summary)
    show_truth.errors(
        "Simulated against measured: latencies", [(each.name, each.residuals) for each in found]
    )
    if out is not None:
        show.say(f"profile written to {out}; use it by --cost profile:{out}{_front_end(summary)}")
    show.stored(plot)


WORDS = {
    "iteration_s": ("an iteration", 1e3, "ms"),
    "sequence_s": ("a sequence", 1e6, "µs"),
    "context_s": ("a token of context", 1e9, "ns"),
    "prompt_token_s": ("a token of a prompt", 1e6, "µs"),
    "prompts_s": ("an iteration with a prompt, more", 1e3, "ms"),
    "pair_s": ("a query and a key of a prompt", 1e12, "ps"),
    "front_end_s": ("front end, a request", 1e3, "ms"),
}


def _show_values(summary: Mapping[str, Any]) -> None:
    """Print the fitted values with standard errors."""
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


def _front_end(summary: Mapping[str, Any]) -> str:
    """Return the front-end latency flag to append; 0 if the runs show no front-end latency."""
    of = summary["values"]["front_end_s"]
    error = of["standard_error"]
    known = error is not None and of["value"] > 2 * error
    return f" --frontend-latency {of['value'] if known else 0:.3g}"
