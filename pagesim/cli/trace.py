"""``pagesim trace``: describe, convert, fit and make traces."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pagesim.cli import show
from pagesim.cli.flags import FORCE, OUT, workload_flags
from pagesim.cli.printing import put_table
from pagesim.errors import PagesimError, TraceError, escaped
from pagesim.experiments.recorded.find import FORMATS, read
from pagesim.experiments.recorded.layout import CUT_OFF
from pagesim.setup.files import check_file, put_text
from pagesim.workloads import LengthModel, Provenance, load, make_trace, plot_trace, save
from pagesim.workloads import describe as statistics
from pagesim.workloads import fit as fit_model
from pagesim.workloads.formats import UNKNOWN
from pagesim.workloads.trace import Trace

if TYPE_CHECKING:
    import pandas as pd


cli = typer.Typer(
    help="Describe, convert, fit and make traces.\n\n"
    "Example: pagesim trace describe sharegpt --rate 2 --duration 900",
    no_args_is_help=True,
    rich_markup_mode=None,
)

TRACE = Annotated[
    str,
    typer.Argument(metavar="TRACE", help="A trace file, or a bundled workload's name."),
]
READ = ("turns", "tokenizer", "on_bad_row")
MAKE = ("arrivals", "rate", "cv", "duration", "num_requests", "seed", "shared_prefix", "think", *READ)


@cli.command("describe")
@workload_flags(MAKE)
def describe(*, trace: TRACE, out: OUT = None, flags: dict[str, Any]) -> None:
    """Print the distributions of lengths and arrivals.

    With --out it plots them.

    Example: pagesim trace describe azure-conv --num-requests 20000 --out out/azure
    """
    requests = make_trace(trace, **flags)
    if out is not None:
        title = ", ".join([trace, *(f"{name} {_short(value)}" for name, value in flags.items())])
        show.put_figure(plot_trace(requests, escaped(title)), out, "trace")
    show.say_notes(requests.notes)
    _show_statistics(statistics(requests))
    show.stored(out)


@cli.command("convert")
@workload_flags(READ)
def convert(
    *,
    source: Annotated[Path, typer.Argument(metavar="IN", help="A trace file in any format.")],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="A .parquet or .csv file.")],
    force: FORCE = False,
    flags: dict[str, Any],
) -> None:
    """Read a trace in any format and write it as Parquet or CSV.

    Recordings of benchmark clients and servers (vllm bench, GuideLLM, SGLang's bench) become traces of
    arrival times and lengths. Each run of a file with several runs is written to its own file.

    Example: pagesim trace convert AzureLLMInferenceTrace_conv.csv azure.parquet
    """
    try:
        found = {target: load(source, **flags, keep_think_s=True)}
    except TraceError as error:
        found = _recorded(source, target, error)
    for file in found:
        check_file(file, "trace", force=force)
    for file, requests in found.items():
        save(requests, file)
        show.say_notes(requests.notes)
        show.say(f"{len(requests)} requests written to {file}")


def _recorded(source: Path, target: Path, error: TraceError) -> dict[Path, Trace]:
    """Return the requests of recorded runs, by the file that each is written to.

    Raises:
        PagesimError: the runs, or the trace if there are none, are invalid.
    """
    try:
        runs = read(source)
    except PagesimError as why:
        # What is no JSON is no record of a client's either: the trace's reader knows better what it lacks.
        if UNKNOWN in str(error) and not str(why).endswith((FORMATS, CUT_OFF)):
            raise
        raise error from None
    files = (
        [target]
        if len(runs) == 1
        else [target.with_stem(f"{target.stem}-{n}") for n in range(1, len(runs) + 1)]
    )
    found = {}
    for file, run in zip(files, runs, strict=True):
        what = "drawn again by its summary" if run.known else "when they were sent and how long they were"
        note = f"requests of {run.name}, {what}"
        if run.max_concurrency is not None:
            note += f"; {run.max_concurrency} were outstanding at a time: replay it with --max-concurrency"
        found[file] = run.trace().with_columns({}, note)
    return found


@cli.command("make")
@workload_flags(MAKE)
def make(
    *,
    trace: TRACE,
    target: Annotated[Path, typer.Argument(metavar="OUT", help="A .parquet or .csv file.")],
    force: FORCE = False,
    flags: dict[str, Any],
) -> None:
    """Make a trace from lengths and an arrival process.

    Lengths come from a file, a workload or a distribution.

    Example: pagesim trace make lognormal:300,1.5,200,1 burst.csv --rate 4 --cv 3 --duration 600
    """
    check_file(target, "trace", force=force)
    requests = make_trace(trace, **flags)
    save(requests, target)
    show.say_notes(requests.notes)
    show.say(f"{len(requests)} requests written to {target}")


@cli.command("fit")
@workload_flags(READ)
def fit(
    *,
    source: Annotated[Path, typer.Argument(metavar="IN", help="A trace file in any format.")],
    target: Annotated[Path, typer.Argument(metavar="OUT.json", help="File to write the model to.")],
    name: Annotated[str | None, typer.Option(help="Name of the model. Defaults to the file's.")] = None,
    description: Annotated[str, typer.Option(help="Description of the requests, in a sentence.")] = "",
    origin: Annotated[str, typer.Option(help="Source of the trace.")] = "not stated",
    licence: Annotated[str, typer.Option(help="The trace's licence.")] = "not stated",
    total_below: Annotated[
        int | None, typer.Option(help="Fit only requests with prompt + output below this many tokens.")
    ] = None,
    force: FORCE = False,
    flags: dict[str, Any],
) -> None:
    """Fit a joint model of prompt and output lengths to a trace.

    --trace OUT.json samples it.

    Example: pagesim trace fit azure.parquet azure.json --origin AzurePublicDataset --licence CC-BY-4.0
    """
    check_file(target, "model of lengths", force=force)
    requests = load(source, **flags)
    model = fit_model(
        requests,
        name or target.stem,
        Provenance(description or f"fitted to {source.name}", origin, licence),
        total_below=total_below,
    )
    put_text(target, model.to_json())
    show.say_notes(requests.notes)
    _show_closeness(model)
    show.say(f"model {model.name} of {model.rows} requests written to {target}")


def _show_statistics(table: pd.DataFrame) -> None:
    """Print the statistics of ``describe``."""
    rows = [
        (measure.replace("_", " "), statistic.replace("_", " "), _quantity(value, statistic), unit)
        for measure, statistic, value, unit in table.itertuples(index=False)
    ]
    put_table("Trace", ("", "", "", ""), rows, texts=(0, 1, 3))


def _show_closeness(model: LengthModel) -> None:
    """Print how close a fitted model is to its source."""
    rows = []
    for measure, source in model.source_stats.items():
        for statistic, value in source.items():
            ours = model.model_stats[measure][statistic]
            change = f"{100 * (ours / value - 1):+.2f} %"
            rows.append((measure, statistic, f"{value:,.2f}", f"{ours:,.2f}", change))
    put_table("Fit, tokens", ("", "", "source", "model", "difference"), rows, texts=(0, 1))


def _short(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _quantity(value: float, statistic: str) -> str:
    if value != value:
        return "–"
    return f"{value:,.0f}" if statistic in ("max", "count") else f"{value:,.2f}"
