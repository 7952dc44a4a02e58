"""The planner's constants: their bounds, their file, and the environment that names it."""

from __future__ import annotations

import json

import pytest

from pagesim import PagesimError
from pagesim.kernels import plan_decode
from pagesim.kernels.machine import plan_constants
from pagesim.kernels.plan_constants import VARIABLE, PlanConstants, read_constants, write_constants

SHAPE = {"q_heads": 32, "kv_heads": 8, "head_dim": 128, "block_size": 16}


def test_what_is_written_is_read(tmp_path):
    file = tmp_path / "c.json"
    constants = PlanConstants(start_tiles=3.5, warps=8, min_split_tokens=128)
    write_constants(file, constants, {"machine": {"device_name": "x"}})
    assert read_constants(file) == constants
    assert [each.name for each in tmp_path.iterdir()] == ["c.json"]


def test_a_constant_that_a_file_does_not_name_is_the_default(tmp_path):
    file = tmp_path / "c.json"
    file.write_text('{"schema": 1, "constants": {"start_tiles": 2}}')
    assert read_constants(file) == PlanConstants(start_tiles=2)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is no JSON"),
        ("[]", "holds no planner's constants"),
        ('{"schema": 9, "constants": {}}', "schema is 9; this version of pagesim reads 1"),
        (
            '{"schema": 1, "constants": {"starts": 1}}',
            "'starts' is no constant; those there are: min_split_tokens,",
        ),
        ('{"schema": 1, "constants": {"start_tiles": -1}}', "start_tiles is -1; a number from 0 is needed"),
        ('{"schema": 1, "constants": {"start_tiles": NaN}}', "start_tiles is nan; a number from 0 is needed"),
        ('{"schema": 1, "constants": {"warps": 3}}', "warps is 3; a power of two from 1 to 32 is needed"),
        ('{"schema": 1, "constants": {"key_bytes": 5}}', "key_bytes is 5; a power of two is needed"),
        (
            '{"schema": 1, "constants": {"min_split_tokens": 0}}',
            "min_split_tokens is 0; a whole number from 1",
        ),
        ('{"schema": 1, "constants": {"min_split_tokens": true}}', "min_split_tokens is True"),
    ],
)
def test_what_a_file_must_not_hold_is_one_sentence(text, said, tmp_path):
    file = tmp_path / "c.json"
    file.write_text(text)
    with pytest.raises(PagesimError, match="c.json: .*" + said):
        read_constants(file)


def test_the_environment_names_the_file(tmp_path, monkeypatch):
    default = plan_decode([4096] * 8, **SHAPE)
    assert plan_constants() is None
    file = tmp_path / "c.json"
    file.write_text(json.dumps({"schema": 1, "constants": {"reduction_tiles": 60.0}}))
    monkeypatch.setenv(VARIABLE, str(file))
    assert plan_decode([4096] * 8, **SHAPE).num_splits < default.num_splits
    assert plan_constants() is not None  # measurements under other constants are others
    assert plan_decode([4096] * 8, **SHAPE, constants=PlanConstants()) == default


def test_an_environment_that_names_nothing_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(tmp_path / "absent.json"))
    with pytest.raises(PagesimError, match=f"{VARIABLE}: .*absent.json: cannot be read"):
        plan_decode([100], **SHAPE)
