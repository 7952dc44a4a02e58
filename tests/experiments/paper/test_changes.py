"""An earlier reproduction beside this one: whose bound a number left, and whose it reached."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pagesim.errors import PagesimError
from pagesim.experiments.paper import Number, Reproduced, Setting, csv, figure
from pagesim.experiments.paper.changes import changes, entered, left, pairs, within
from pagesim.experiments.paper.columns import ONE_NUMBER, column, setting_text, stored
from pagesim.experiments.paper.numbers import FITTED, Inside, Percent

BAR = Number("fig13", "Orca (Oracle)", "Alpaca", 100.0, "B", 101.0, Percent(3))
EYE = Number("fig12", "vLLM", "knee", 2.0, "F", 2.1)
RANGE = Number("fig12", "vLLM / Orca", "rate", (1.7, 2.7), "V", 2.0)
NUMBERS = [BAR, EYE, RANGE]
OFF = {BAR: 104.0, EYE: 2.4, RANGE: 2.8}


def away(number: Number) -> Number:
    return replace(number, ours=OFF[number])


@pytest.mark.parametrize("number", NUMBERS)
def test_a_bound_is_a_bar_a_reading_or_a_range(number: Number) -> None:
    assert within(number) is True
    assert within(away(number)) is False


def test_what_was_fitted_or_has_no_value_has_no_bound() -> None:
    for bar in (FITTED, Inside()):
        assert within(Number("fig13", "vLLM", "Alpaca", 132.4, "B", None, bar)) is None
    assert within(replace(BAR, bar=FITTED)) is None
    assert within(replace(BAR, bar=None)) is None, "a printed number without a bar is only looked at"


def test_each_number_that_changed_sides_is_listed_and_no_other() -> None:
    setting = Setting()
    before = column(setting, [away(BAR), EYE, RANGE])
    found = pairs([BAR, away(EYE), RANGE], before)
    assert [now.figure for _, now in left(found)] == ["fig12"]
    assert [now for _, now in entered(found)] == [BAR]


def test_a_number_that_is_known_on_one_side_only_is_not_compared() -> None:
    before = column(Setting(), [BAR])
    assert pairs([BAR, EYE, replace(RANGE, paper=None)], before) == [(BAR, BAR)]


def test_the_section_names_what_left_its_bound_with_both_values_and_the_reason() -> None:
    before = column(Setting(), NUMBERS)
    made = [Reproduced(figure("fig12"), Setting(), {}, [away(EYE)])]
    text = "\n".join(changes(made, Setting(quick=True), before))
    assert "**Left its bound**: 1." in text
    assert "**fig12** vLLM, knee: 2, before 2.1 (+5 %), now 2.4 (+20 %). `--quick` replays only" in text
    assert "| fig12 | 1 | 5.0 % | 20.0 % | 1 | 1 | 0 |" in text


def test_a_stored_folder_says_its_engine_and_an_old_one_that_it_had_one_number(tmp_path: Path) -> None:
    (tmp_path / "fig13.csv").write_text(csv([BAR]), encoding="utf-8")
    said = setting_text(Setting())
    (tmp_path / "setting.json").write_text(said, encoding="utf-8")
    assert stored(tmp_path).engine == column(Setting(), []).engine != ONE_NUMBER
    assert stored(tmp_path).earlier(away(BAR)) == BAR
    old = json.loads(said)
    del old["engine"]
    (tmp_path / "setting.json").write_text(json.dumps(old), encoding="utf-8")
    assert stored(tmp_path).engine == ONE_NUMBER
    (tmp_path / "setting.json").write_text("[]", encoding="utf-8")
    with pytest.raises(PagesimError, match="cannot be read"):
        stored(tmp_path)
