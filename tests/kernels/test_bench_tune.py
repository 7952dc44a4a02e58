"""Tuning: constants that times were made from are the constants that are fitted to them."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import pytest

from pagesim import PagesimError
from pagesim.kernels import plan_decode
from pagesim.kernels.bench import tune as tuning
from pagesim.kernels.bench.fit import fit_constants
from pagesim.kernels.bench.rows import MEASURED, Point, Row, make_row, parse_lengths
from pagesim.kernels.bench.run import Outcome
from pagesim.kernels.bench.steps import Form, Step, best_form, model_of, programs_of
from pagesim.kernels.plan_constants import VARIABLE, PlanConstants, read_constants

MACHINE = {
    "device": "cuda", "device_name": "made up", "multiprocessors": 132, "shared_bytes": 228 << 10,
    "driver": "1", "torch": "2", "triton": "3", "pagesim": "0", "source": "s", "date": "today",
}  # fmt: skip

TRUE = PlanConstants(start_tiles=7.3, reduce_tiles=0.4, reduction_tiles=3.0, empty_tiles=0.7)
TILE_S, LAUNCH_S = 3e-6, 4e-6
DEFAULT = Form.default()


def row(point: Point, seconds: float = 1.0, **measured: object) -> Row:
    return make_row(
        point, MACHINE, {**dict.fromkeys(MEASURED), "status": "ok", "median_s": seconds, **measured}
    )


def timed(point: Point, constants: PlanConstants = TRUE, slower: float = 1.0) -> Row:
    """Return a row whose time is what the planner's model makes of these constants."""
    made = row(point)
    if made["lengths"] is None and made["splits"] is None:
        return made
    if made["lengths"] is None:
        tiles = slower * Step.of(made).parts(constants).tiles(constants)
        return {**made, "median_s": LAUNCH_S + TILE_S * tiles}
    lengths = parse_lengths(made["lengths"])
    plan = plan_decode(lengths, **programs_of(made), work_list=False)
    counted, idle = plan.count(lengths), 0.0
    if made["schedule"] == "grid":
        idle = 8 * (counted.started - counted.with_work) * constants.empty_tiles / model_of(made).slots
    return {**made, "median_s": LAUNCH_S + TILE_S * (50 + idle), "splits_used": plan.num_splits}


def rows(constants: PlanConstants = TRUE, form: Form = DEFAULT) -> list[Row]:
    forced = [
        timed(point, constants) for point in tuning.plan_points(form) if "capacity" not in point.parameters
    ]
    return [*forms(), *forced]


def forms(saving: float = 0.0, best: Form = DEFAULT) -> list[Row]:
    """Return rows of every form, of which one is faster than the others."""
    return [row(point, 1.0 - saving * (Form.of(point.row()) == best)) for point in tuning.form_points()]


@pytest.mark.parametrize(
    "true",
    [
        TRUE,
        replace(TRUE, start_tiles=18.25),
        replace(TRUE, reduction_tiles=0.0),
        PlanConstants(reduce_tiles=0.0),
    ],
    ids=["all", "long start", "no reduction launch", "free reduction"],
)
def test_the_fit_returns_the_constants_that_the_times_were_made_of(true):
    fit = fit_constants(rows(true))
    assert fit.constants.start_tiles == pytest.approx(true.start_tiles, abs=0.02)
    assert fit.constants.reduce_tiles == pytest.approx(true.reduce_tiles, abs=0.02)
    assert fit.constants.reduction_tiles == pytest.approx(true.reduction_tiles, abs=0.1)
    assert fit.constants.empty_tiles == pytest.approx(true.empty_tiles, rel=0.01)
    assert (fit.tile_s, fit.launch_s) == pytest.approx((TILE_S, LAUNCH_S), rel=0.01)
    assert fit.error < 1e-3


def test_noise_of_two_percent_moves_the_start_by_less_than_a_tenth():
    noisy = rows()
    for number, each in enumerate(noisy[len(forms()) :]):
        each["median_s"] *= 1 + 0.02 * (-1) ** number
    fit = fit_constants(noisy)
    assert fit.constants.start_tiles == pytest.approx(TRUE.start_tiles, rel=0.1)
    assert fit.error == pytest.approx(0.02, rel=0.1)


def test_the_planner_loses_less_by_what_was_fitted():
    far = PlanConstants(start_tiles=40.0, reduction_tiles=30.0, reduce_tiles=2.0)
    fit = fit_constants(rows(far))
    before, after = (max(choice.losses[n] for choice in fit.choices) for n in (0, 1))
    assert before > 1.1
    assert after < 1.02
    assert len(fit.choices) == 2 * len(tuning.SHAPES)


def test_splits_too_short_to_be_worth_it_raise_the_least_split():
    points = [point for point in tuning.plan_points(DEFAULT) if "splits" in point.parameters]

    def slower(point: Point) -> float:
        tokens = point["context"] / point["splits"]
        return 2.0 if point["splits"] > 1 and tokens < 512 else 1.0

    cheap = PlanConstants(start_tiles=2.0, reduce_tiles=0.0)
    fit = fit_constants([timed(point, cheap, slower(point)) for point in points])
    assert fit.constants.min_split_tokens == 512


def test_a_form_of_programs_must_save_two_percent_to_be_taken():
    other = Form(128, 8, 4)
    assert best_form(forms()) == DEFAULT
    assert best_form(forms(0.01, other)) == DEFAULT
    assert best_form(forms(0.03, other)) == other
    assert best_form([]) == DEFAULT


@pytest.mark.parametrize("form", tuning.FORMS, ids=str)
def test_the_planner_makes_programs_of_the_form_that_was_fastest(form):
    plan = plan_decode(
        [4096] * 64, q_heads=32, kv_heads=8, head_dim=128, block_size=16, constants=form.constants()
    )
    assert (plan.tile, plan.num_warps, plan.num_stages) == form


def test_the_form_that_was_fastest_is_fitted_and_not_the_others():
    other = Form(128, 4, 3)
    slow = [timed(point, replace(TRUE, start_tiles=30.0)) for point in tuning.plan_points(DEFAULT)[:40]]
    fast = [timed(point) for point in tuning.plan_points(other) if "capacity" not in point.parameters]
    fit = fit_constants([*forms(0.1, other), *slow, *fast])
    assert fit.form == other
    assert fit.constants.start_tiles == pytest.approx(TRUE.start_tiles, abs=0.02)
    assert fit.constants.key_bytes == 128 * 128 * 2


@pytest.mark.parametrize(
    ("kept", "said"),
    [
        (lambda each: False, "0 rows of forced splits are there; the fit needs 8"),
        (lambda each: each["splits"] == 1, "of one split and of several"),
        (
            lambda each: each["context"] == 1024 and each["batch"] == 1 and each["q_heads"] == 32,
            "some that fill the GPU more than once",
        ),
    ],
)
def test_rows_that_do_not_tell_are_refused(kept, said):
    with pytest.raises(PagesimError, match=said):
        fit_constants([each for each in rows() if kept(each)])


def test_times_that_do_not_depend_on_tiles_are_refused():
    with pytest.raises(PagesimError, match="the rows take as long whatever their tiles"):
        fit_constants([{**each, "median_s": 1.0} for each in rows()])


def test_points_that_failed_take_no_part():
    broken = [{**each, "status": "failed", "median_s": None} for each in rows()[-20:]]
    assert fit_constants([*rows(), *broken]).error < 1e-3


@pytest.fixture
def made_up_gpu(monkeypatch):
    """Let a GPU be there whose times are those of the planner's model."""

    def run_points(points, device, out, **_):
        return Outcome([timed(point) for point in points], 1, 0)

    monkeypatch.setattr(tuning, "run_points", run_points)


def test_tuning_measures_forms_then_plans_and_writes_the_file_that_the_planner_reads(
    made_up_gpu, tmp_path, monkeypatch
):
    tuned = tuning.tune("cuda", tmp_path)
    assert tuned.outcome.measured == 2
    assert tuned.file == tmp_path / tuning.CONSTANTS_FILE
    assert read_constants(tuned.file) == tuned.fit.constants
    stored = json.loads(tuned.file.read_text())
    assert stored["machine"]["device_name"] == "made up"
    assert stored["fit"]["after"] <= stored["fit"]["before"]

    shape = {"q_heads": 32, "kv_heads": 8, "head_dim": 128, "block_size": 16}
    default = plan_decode([4096], **shape)
    monkeypatch.setenv(VARIABLE, str(tuned.file))
    read = plan_decode([4096], **shape)
    assert read == plan_decode([4096], **shape, constants=tuned.fit.constants)
    assert read != default


def test_a_cpu_is_not_tuned():
    with pytest.raises(PagesimError, match="device is cpu; tuning needs cuda"):
        tuning.tune("cpu", None)


def test_the_command_fits_a_gpus_rows_anywhere(tmp_path, monkeypatch, capsys):
    from pagesim.cli.main import app

    def prints(*words: object) -> str:
        monkeypatch.setattr(sys, "argv", ["pagesim", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            app()
        assert not end.value.code
        return capsys.readouterr().out

    monkeypatch.setenv("COLUMNS", "160")
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows()))
    shown = prints("bench", "tune", "--rows", tmp_path, "--out", tmp_path)
    for part in ("Planner's constants", "start_tiles", "7.3", "131072, 32/8", f"{VARIABLE}="):
        assert part in shown
    assert read_constants(tmp_path / tuning.CONSTANTS_FILE).start_tiles == 7.3
    asked = json.loads(prints("bench", "tune", "--rows", tmp_path, "--json"))
    assert asked["constants"]["start_tiles"] == 7.3
