"""``pagesim validate``: simulate recorded runs, or run a trace live and simulated, and print the errors."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import BaseModel, Field

from pagesim.cli import show
from pagesim.cli.calibrate import words
from pagesim.cli.flags import JSON, OUT, scenario_from, taken, with_fields
from pagesim.cli.printing import put_side_by_side, put_table
from pagesim.errors import PagesimError
from pagesim.setup.engine_config import EngineConfig
from pagesim.setup.files import check_target, publish
from pagesim.setup.scenario import Scenario
from pagesim.setup.system import System

if TYPE_CHECKING:
    from pagesim.costs.profiles import Profile
    from pagesim.device.validation import Case
    from pagesim.results.result import Result

POLICIES = "vllm-sosp,vllm-v0,vllm-v1"

LEFT_OUT = ("policy", "preemption", "cost")
"""Fields of a scenario that a live validation sets itself."""


class Validation(BaseModel):
    """What to compare; not part of the scenario."""

    policies: str = Field(POLICIES, description=f"Policies, separated by commas. [default: {POLICIES}]")
    preemptions: str = Field(
        "recompute,swap",
        description="Comma-separated preemption modes, a run each, under the policies that have them.",
    )
    profile: str | None = Field(
        None, description="Profile by name or file. Without one this machine is calibrated quickly first."
    )
    device: str | None = Field(None, description="Device: cpu or cuda. Defaults to cuda where there is one.")
    cuda_graphs: bool | None = Field(
        None,
        description="Capture iterations that only decode as CUDA graphs. Defaults to how the profile "
        "was measured.",
    )
    swap: str | None = Field(None, description="Swap strategy. Defaults to the profile's.")
    check: bool = Field(True, description="Compare sequences with the same ones computed in one piece.")


_FIELDS = {**Validation.model_fields, **Scenario.model_fields}


@with_fields(_FIELDS, engine=True)
def command(
    *,
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FILES…", help="Further recordings, or SCENARIO.toml of a live run."),
    ] = None,
    recorded: Annotated[
        list[Path] | None,
        typer.Option("--recorded", metavar="FILE", help="Simulate this recorded run. Repeatable."),
    ] = None,
    max_error: Annotated[
        str | None,
        typer.Option(
            metavar="SHARE", help="Exit with code 1 if a recorded mean is missed by more than this, e.g. 5%."
        ),
    ] = None,
    live: Annotated[
        bool, typer.Option("--live", help="Run a trace on this machine, and simulate it.")
    ] = False,
    out: OUT = None,
    json: JSON = False,
    flags: dict[str, Any],
) -> None:
    """Compare simulated runs with recorded or live ones.

    With --recorded: latencies by percentile, requests and KV use over time. What the recording does not say
    of the server is given by flags. With --live, the exit code is 1 if a check finds a sequence whose keys
    and values are not its own.

    Example: pagesim validate --recorded run/requests.jsonl --cost roofline
    """
    if bool(recorded) == live:
        raise PagesimError(
            "validate compares with recorded runs, or with live ones: give --recorded FILE or --live"
        )
    given = files or []
    if live:
        if max_error is not None:
            raise PagesimError(
                f"max_error is {max_error[:40]!r}; it is about recorded runs, leave it out with --live"
            )
        if wrong := [name for name in LEFT_OUT if name in flags]:
            raise PagesimError(
                f"{wrong[0]} is {flags[wrong[0]]}; a live validation sets it itself, leave it out"
            )
        if len(given) > 1:
            raise PagesimError(f"{len(given)} files are given; a live validation takes one scenario")
        _live(given[0] if given else None, out, json, flags)
        return
    if wrong := [name for name in flags if name not in System.model_fields]:
        raise PagesimError(
            f"{wrong[0]} is not an option of a system; recordings say what was sent, leave it out"
        )
    from pagesim.cli.truth import truth as simulated

    if not simulated([*(recorded or []), *given], flags, max_error=max_error, out=out, as_json=json):
        raise typer.Exit(1)


def _live(scenario: Path | None, out: Path | None, json: bool, flags: dict[str, Any]) -> None:
    """Run a trace live and simulated, and print both comparisons."""
    asked = taken(Validation, flags)
    chosen = scenario_from(Scenario, scenario, flags)
    policies = words(asked.policies)
    preemptions = words(asked.preemptions)
    known = ("default", "recompute", "swap", "auto")
    if wrong := [each for each in preemptions if each not in known]:
        raise PagesimError(f"preemptions is {wrong[0]!r}; each must be one of {', '.join(known)}")
    from pagesim.kernels.bench import selection

    if out is not None:
        check_target(out, "validation")
    device = selection.device(asked.device)
    with tempfile.TemporaryDirectory(prefix="pagesim-") as temporary:
        profile, cost = _profile(asked, chosen, device, Path(temporary))
        measured_with = profile.machine.get("live", {})
        how = {
            "device": device,
            "cuda_graphs": _first(asked.cuda_graphs, measured_with.get("cuda_graphs"), False),
            "swap": _first(asked.swap, measured_with.get("swap"), "gather"),
        }
        from pagesim.api import trace_of
        from pagesim.device.validation import validate

        # How wrong it is, is what is asked.
        chosen = chosen.model_copy(update={"cost": f"profile:{cost},max_error=inf"})
        with show.bar() as progress:
            cases = list(
                validate(
                    chosen,
                    trace_of(chosen),
                    policies=policies,
                    preemptions=preemptions,  # type: ignore[arg-type]
                    check=asked.check,
                    progress=None if progress is None else lambda text: progress(0, 0, text),
                    **how,
                )
            )
        reports = [case.report() for case in cases]
        summary = {"profile": profile.name, "kind": profile.kind, "how": how, "cases": reports}
        if out is not None:
            publish(out, lambda folder: _store(folder, chosen, profile, cases, summary), "validation")
    notes = [note for case in cases for note in case.simulated.notes]
    show.say_notes((*_differences(profile, how), *dict.fromkeys(notes), *_without_pressure(cases)))
    if json:
        show.as_json(summary)
    else:
        _show(cases)
        show.say_if_cpu(how["device"])
        show.stored(out)
    if any(case["check"] is not None and not case["check"]["passed"] for case in reports):
        raise typer.Exit(1)


def _profile(asked: Validation, chosen: Scenario, device: str, folder: Path) -> tuple[Profile, str]:
    """Return the profile and its cost-model name."""
    from pagesim.costs.profiles import find_profile

    config = EngineConfig(chosen)
    if asked.profile is not None:
        file = Path(asked.profile)
        found = find_profile(
            asked.profile,
            model=config.model,
            tp=chosen.tensor_parallel_size,
            kv_dtype=config.kv_dtype,
            block_size=chosen.block_size or 16,
        )
        return found, str(file.resolve()) if file.is_file() else asked.profile
    from pagesim.device.calibration import calibrate

    with show.bar() as progress:
        found = calibrate(
            chosen,
            device=device,
            name="calibrated",
            quick=True,
            cuda_graphs=bool(asked.cuda_graphs),
            swap=asked.swap or "gather",
            progress=progress,
        ).profile
    found.save(folder / "calibrated.json")
    return found, str(folder / "calibrated.json")


def _first(*values: Any) -> Any:
    return next(value for value in values if value is not None)


def _differences(profile: Profile, how: dict[str, Any]) -> list[str]:
    """Print where the live runs differ from the conditions of the profile's measurements."""
    with_ = profile.machine.get("live", {})
    said = [
        f"the profile was measured with {name} {with_[name]}, the live runs have {how[name]}"
        for name in ("device", "cuda_graphs", "swap")
        if name in with_ and with_[name] != how[name]
    ]
    if profile.kind != "measured":
        said.append(f"profile {profile.name} is {profile.kind}: it was not measured on this machine")
    return said


def _without_pressure(cases: list[Case]) -> list[str]:
    """Name the cases without preemption, which cannot validate preemption costs."""
    calm = [case.name for case in cases if not any(_counted(case.live)) and not any(_counted(case.simulated))]
    if not calm:
        return []
    return [f"nothing was preempted in {', '.join(calm)}: fewer num_blocks or a higher rate bring pressure"]


def _counted(result: Result) -> list[int]:
    return list(result.summary["preemptions"].values())


def _store(
    folder: Path, chosen: Scenario, profile: Profile, cases: list[Case], summary: dict[str, Any]
) -> None:
    """Write everything into an empty folder."""
    import pandas as pd

    from pagesim.results.drawing import load_of
    from pagesim.results.plots import predicted_iterations, save
    from pagesim.results.result import to_json
    from pagesim.setup.scenario_files import to_toml

    (folder / "summary.json").write_text(to_json(summary), encoding="utf-8")
    profile.save(folder / "profile.json")
    # What can be run again from this folder.
    stored = chosen.model_copy(update={"cost": "profile:profile.json,max_error=inf"})
    (folder / "scenario.toml").write_text(to_toml(stored), encoding="utf-8")
    columns: dict[str, dict[str, list[Any]]] = {
        case.name: {
            "kinds": case.iterations.kinds,
            "measured_s": case.iterations.measured_s,
            "predicted_s": case.iterations.predicted_s,
        }
        for case in cases
    }
    tables = [pd.DataFrame(each).assign(case=name) for name, each in columns.items()]
    pd.concat(tables, ignore_index=True).to_parquet(folder / "iterations.parquet", index=False)
    save(predicted_iterations(columns, load_of(chosen)), folder / "validation")


def _show(cases: list[Case]) -> None:
    """Print both comparisons of every case of `pagesim.device.validation`."""
    from pagesim.cli import show_live, show_truth

    reports = {case.name: case.report() for case in cases}
    put_table(
        "Same schedule: each live iteration, predicted from its own shape",
        ("", "iterations", "ms, mean", "error, mean", "without sign", "of all time"),
        [
            (
                f"{name}: {kind}",
                f"{each['iterations']:,}",
                f"{1e3 * each['mean_s']:,.3f}",
                f"{100 * each['signed']:+.1f} %",
                f"{100 * each['absolute']:.1f} %",
                f"{100 * each['total']:+.1f} %",
            )
            for name, report in reports.items()
            for kind, each in report["same_schedule"].items()
        ],
    )
    show_truth.errors("End to end: simulated against live", [(case.name, case.residuals) for case in cases])
    counted = {"iterations": _iterations_of, "recomputed, swapped": _preempted_of}
    rows = [
        (label, [" / ".join(counts(report)) for report in reports.values()])
        for label, counts in counted.items()
    ]
    put_side_by_side("Simulated / live", list(reports), rows)
    for name, report in reports.items():
        if report["check"] is not None:
            show.say(f"{name}: {show_live.verdict(report['check'])}")


def _iterations_of(report: Mapping[str, Any]) -> Sequence[str]:
    return [f"{report['iterations'][way]:,}" for way in ("simulated", "live")]


def _preempted_of(report: Mapping[str, Any]) -> Sequence[str]:
    both = report["preemptions"]
    return [f"{both[way]['recompute']}, {both[way]['swap']}" for way in ("simulated", "live")]
