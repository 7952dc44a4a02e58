"""A scenario file that is off ends in one sentence that names file, field, value and bound."""

from __future__ import annotations

import os

import pytest


@pytest.mark.parametrize("flags", [(), ("--policies", "orca-max,vllm-sosp")], ids=["run", "compare"])
@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'policy = "vllm-sosp', "is no TOML file"),
        (b"rate", "is no TOML file"),
        (b"\xff\xfe", "is no TOML file"),
        (b"rate = 1\nrate = 2", "is no TOML file"),
        (b"num_block = 5", "there is no option num_block; did you mean num_blocks?"),
        (b"[run]\nrate = 2", "there is no option run"),
        (b"num_blocks = 0", "num_blocks is 0: input should be greater than or equal to 1"),
        (b"num_blocks = 99999999999999999999", "input should be less than or equal to"),
        (b"rate = nan", "rate is nan: input should be greater than 0"),
        (b"until = inf", "until is inf: input should be a finite number"),
        (b'window = "9:3"', "window is '9:3': must be two times"),
        (b"window = [3, 9]", "window is [3, 9]: input should be a valid string"),
        (b"trace = 5", "trace is 5: input should be a valid string"),
        (b'rate = "2"', "rate is '2': input should be a valid number"),
        (b"rate = true", "rate is True: input should be a valid number"),
        (b'num_blocks = "100"', "num_blocks is '100': input should be a valid integer"),
        (b"num_blocks = 100.0", "num_blocks is 100.0: input should be a valid integer"),
        (b"seed = true", "seed is True: input should be a valid integer"),
        (b'fast_forward = "yes"', "fast_forward is 'yes': input should be a valid boolean"),
        (b"steps = 1", "steps is 1: input should be a valid boolean"),
        (b".".join([b"a"] * 20_000) + b" = 1", "line 1 has a key of 64 parts or more"),
        (b"rate = 1\n[" + b" . ".join([b'"a b"'] * 64) + b"]", "line 2 has a key of 64 parts or more"),
        (b"x = {" + b".".join([b"a"] * 9_000) + b" = 1}", "line 1 has a key of 64 parts or more"),
        (b"x = " + b"[" * 5_000, "is nested too deeply"),
        (b'trace = "fixed:5,5"\nneeds = [1]', "needs is [1]; it must hold tables of texts"),
        (b'trace = "fixed:5,5"\nneeds = 1', "needs is 1; it must hold tables of texts"),
        (b'trace = "fixed:5,5"\n[needs]\nrouter = 1', "needs is {'router': 1}; it must hold tables of texts"),
        (b'trace = "fixed:5,5"\n[needs.router]\nx = 1', "it must hold tables of texts"),
        (b"x = 1\n" * 1_000_000, "6000000 characters, and at most 4194304 are read"),
        (b'arrivals = "posson"', "arrivals is 'posson': input should be 'recorded'"),
    ],
)
def test_a_bad_file_is_refused(flags, content, said, refused, tmp_path):
    file = tmp_path / "s.toml"
    file.write_bytes(content)
    sentence = refused("run", *flags, file, "--out", tmp_path / "out")
    assert sentence.startswith(f"{file}: ")
    assert said in sentence
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["nosuch.toml", "folder", "x" * 300])
def test_a_file_that_cannot_be_read_is_named(name, refused, tmp_path):
    (tmp_path / "folder").mkdir()
    assert refused("run", tmp_path / name).startswith(f"{tmp_path / name}: cannot be read (")


@pytest.mark.parametrize(
    "command",
    [
        *[("run",), ("run", "--policies", "vllm-v1"), ("run", "--replicas", "2"), ("sweep",)],
        ("sweep", "--find", "rate", "--slo", "p99_ttft<=2s"),
    ],
    ids=" ".join,
)
def test_a_fifo_or_a_device_is_not_waited_for(command, refused, tmp_path):
    os.mkfifo(tmp_path / "s.toml")
    assert "it is a FIFO and no regular file" in refused(*command, tmp_path / "s.toml")
    assert "it is a device" in refused(*command, "/dev/zero")


def test_a_file_of_100_gib_is_not_read(refused, tmp_path):
    with (tmp_path / "s.toml").open("wb") as sparse:
        sparse.truncate(100 << 30)
    assert "at most 67108864 are read" in refused("run", tmp_path / "s.toml")


@pytest.mark.parametrize("policies", ["[]", "5", '["orca-max", 5]', '"orca-max,orca-max"'])
def test_policies_are_a_list_of_names(policies, refused, tmp_path):
    file = tmp_path / "s.toml"
    file.write_text(f"policies = {policies}")
    assert refused("run", file).startswith(f"{file}: policies is ")


@pytest.mark.parametrize("policies", ['["orca-max", "vllm-sosp"]', '"orca-max,vllm-sosp"'])
def test_policies_are_listed_or_separated_by_commas(policies, succeeds, tmp_path):
    file = tmp_path / "s.toml"
    file.write_text(f'trace = "fixed:5,5"\nnum_requests = 2\npolicies = {policies}\n')
    assert list(succeeds("run", file, "--json").json["runs"]) == ["orca-max", "vllm-sosp"]


def test_a_whole_number_is_a_number(succeeds, tmp_path):
    file = tmp_path / "s.toml"
    file.write_text('trace = "fixed:5,5"\nrate = 2\nduration = 5\nuntil = 4\n')
    assert succeeds("run", file, "--json").json["requests"]["total"] > 0
