"""Kernels compiled ahead of time for three GPUs: spills, wide loads, shared memory, tensor cores, depth."""

from __future__ import annotations

import os
from importlib.util import find_spec

import pytest

from pagesim import PagesimError

if find_spec("triton") is None or find_spec("torch") is None:
    pytest.skip("triton or torch is not installed", allow_module_level=True)

from pagesim.kernels import compile_report
from pagesim.kernels.aot import TARGETS, compile_for
from pagesim.kernels.compile_report import KERNELS, faults, needs_e4m3

compiles = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") == "1", reason="TRITON_INTERPRET=1: nothing is compiled"
)
QUICK = [
    ("decode fp16 32/8, block 16", 90),
    ("decode fp16 32/8, block 128", 80),
    ("decode fp8 KV, fp16 queries", 90),
    ("prefill fp16 32/8, block 16", 90),
    ("prefill fp16 32/8, block 16", 100),
    ("reshape and cache fp16, NHD", 90),
    ("gather blocks", 90),
]


@compiles
@pytest.mark.parametrize(("name", "target"), QUICK)
def test_machine_code_has_no_faults(name, target):
    assert faults(name, compile_for(KERNELS[name](target)[0], target)) == []


@compiles
@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", KERNELS)
def test_machine_code_has_no_faults_on_the_whole_grid(name, target):
    if needs_e4m3(name) and target == 80:
        with pytest.raises(Exception, match="fp8e4nv not supported in this architecture"):
            compile_for(KERNELS[name](target)[0], target)
    else:
        for launch in KERNELS[name](target):
            assert faults(name if launch.num_stages else "", compile_for(launch, target)) == []


@compiles
@pytest.mark.parametrize("name", ["decode fp16 32/8, block 16", "decode fp16 32/8, block 128, 4 stages"])
def test_all_stages_but_one_are_in_flight(name):
    """Were the block id not carried along, half of them would be: its load would be a stage of its own."""
    (launch,) = KERNELS[name](90)
    tile = 2 * launch.arguments["TILE"] * launch.arguments["PADDED_DIM"] * 2  # bytes of keys and values
    assert compile_for(launch, 90).shared >= (launch.num_stages - 1) * tile


@compiles
def test_the_command_prints_a_table(capsys):
    assert compile_report.main(["gather blocks", "--targets", "90"]) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.startswith("| gather blocks | sm_90 |")
    assert line.endswith("| none |")


def test_the_command_says_what_it_was_given(capsys):
    with pytest.raises(PagesimError, match="--targets is '75'; some of 80,90,100 are needed"):
        compile_report.main(["--targets", "75"])
    assert compile_report.main(["fp8", "--targets", "80"]) == 0
    assert "no e4m3 on sm_80, as expected" in capsys.readouterr().out


def test_interpreting_leaves_nothing_to_compile(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(PagesimError, match="TRITON_INTERPRET is 1 in the environment"):
        compile_for(KERNELS["gather blocks"](90)[0], 90)
