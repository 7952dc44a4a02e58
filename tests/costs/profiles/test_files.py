"""Profile files: what is written is read again; what is off is named, with what to do about it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pagesim.costs.profiles import (
    ANY_BLOCK,
    Profile,
    bundled_names,
    bundled_profile,
    find_profile,
    load_profile,
)
from pagesim.errors import PagesimError
from pagesim.models import model

Change = Callable[[dict[str, Any]], Any]


def test_what_is_written_is_read_again(measured: Profile, tmp_path: Path) -> None:
    measured.save(tmp_path / "p.json")
    assert load_profile(tmp_path / "p.json") == measured
    assert [file.name for file in tmp_path.iterdir()] == ["p.json"], "no draft is left behind"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda p: p.update(schema=7),
            "its schema is 7, and this version of pagesim reads 1 and 2; calibrate again",
        ),
        (lambda p: p.pop("terms"), "terms: Field required"),
        (lambda p: p["terms"]["linear"].update(axes={"tokens": [2, 1]}), "terms.linear"),
        (
            lambda p: p["terms"]["linear"]["seconds"].__setitem__(0, "fast"),
            "terms.linear.seconds: Value error",
        ),
        (lambda p: p["terms"].update(head=p["terms"]["linear"]), "it must be over sequences"),
        (
            lambda p: p["terms"]["decode"]["16"]["seconds"][0].reverse(),
            "its times must not fall with the context",
        ),
        (lambda p: p["terms"]["decode"].clear(), "terms.decode"),
        (lambda p: p.update(kind="guessed"), "kind"),
        (
            lambda p: p["terms"].update(
                linear={"axes": {"tokens": [1]}, "seconds": [0.0]},
                overhead={"axes": {"sequences": [1]}, "seconds": [0.0]},
            ),
            "an iteration would take no time",
        ),
    ],
)
def test_a_file_that_is_off_is_refused_with_the_place(change: Change, said, measured, tmp_path) -> None:
    content = json.loads(measured.model_dump_json(by_alias=True))
    change(content)
    file = tmp_path / "p.json"
    file.write_text(json.dumps(content))
    with pytest.raises(PagesimError) as refused:
        load_profile(file)
    assert str(refused.value).startswith(f"{file}: is no profile: ")
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("part", [0.0, 0.3, 0.99])
def test_a_truncated_file_is_refused(part, measured, tmp_path) -> None:
    text = measured.model_dump_json(by_alias=True)
    file = tmp_path / "p.json"
    file.write_text(text[: int(part * len(text))])
    with pytest.raises(PagesimError, match="its JSON is broken or cut off"):
        load_profile(file)


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"[]", b"1", b"[" * 100_000])
def test_anything_else_is_refused(content, tmp_path) -> None:
    file = tmp_path / "p.json"
    file.write_bytes(content)
    with pytest.raises(PagesimError, match="is no profile"):
        load_profile(file)


def test_a_name_that_is_not_there_is_answered_with_those_that_are() -> None:
    with pytest.raises(PagesimError, match=r"there is no profile 'h9000'.*analytic-h200.*or the path"):
        find_profile("h9000", model=model("opt-13b"))


@pytest.mark.parametrize("name", bundled_names())
def test_profiles_in_the_box_say_what_they_are(name) -> None:
    profile = bundled_profile(name)
    assert profile.name == name
    assert profile.kind != "analytic"
    if profile.kind != "measured":
        assert not profile.samples, "others' measurements are not handed on"
        if profile.block_sizes != (ANY_BLOCK,):
            assert any("block size is 16" in note for note in profile.notes)
        assert profile.origins["swap_out"] == "datasheet"
        assert any("swaps" in note for note in profile.notes)
    assert set(profile.origins) == set(profile.terms.names())
