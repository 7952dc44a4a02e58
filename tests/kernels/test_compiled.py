"""Kernels compiled ahead of time for three GPUs: spills, wide loads, shared memory, tensor cores, depth."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

from pagesim import PagesimError

MISSING = [package for package in ("torch", "triton") if find_spec(package) is None]
if MISSING:
    pytest.skip(f"{' and '.join(MISSING)} not installed", allow_module_level=True)

from pagesim.kernels import compile_report  # noqa: E402
from pagesim.kernels.aot import TARGETS, compile_for  # noqa: E402
from pagesim.kernels.compile_report import HEADER, KERNELS, faults, needs_e4m3, table_row  # noqa: E402

if TYPE_CHECKING:
    from pagesim.kernels.aot import MachineCode

compiles = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") == "1", reason="TRITON_INTERPRET=1: nothing is compiled"
)
QUICK = [
    "decode fp16 32/8, block 16",
    "decode fp16 32/8, block 128",
    "decode fp16 32/8, block 16, 8 splits",
    "reduction of 8 splits",
    "decode fp8 KV, fp16 queries",
    "decode int8 KV, scales a token",
    "prefill fp16 32/8, block 16",
    "reshape and cache int8, scales a token",
    "gather blocks",
    "zero-copy swap",
]

Compile = Callable[[str, int], "MachineCode"]


@pytest.fixture(scope="module")
def compiled(pytestconfig: pytest.Config) -> Iterator[Compile]:
    """Return a function that compiles a kernel for a target; at the end the table of all is printed."""
    seen: dict[tuple[str, int], MachineCode] = {}

    def compile_one(name: str, target: int) -> MachineCode:
        if (name, target) not in seen:
            seen[name, target] = compile_for(KERNELS[name](target), target)
        return seen[name, target]

    yield compile_one
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        print("", HEADER, *(table_row(*key, code) for key, code in seen.items()), sep="\n")


@compiles
@pytest.mark.parametrize("name", QUICK)
def test_machine_code_has_no_faults(name, compiled):
    assert faults(name, compiled(name, 90)) == []


@compiles
@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", KERNELS)
def test_machine_code_has_no_faults_on_the_whole_grid(name, target, compiled):
    if needs_e4m3(name) and target == 80:
        with pytest.raises(Exception, match=r"\A") as refused:
            compiled(name, target)
        # A function that a kernel calls is refused in the error's cause, or in that one's.
        said, error = "", refused.value
        while error is not None:
            said, error = f"{said} {error}", error.__cause__
        assert "fp8e4nv not supported in this architecture" in said
    else:
        assert faults(name, compiled(name, target)) == []


@compiles
@pytest.mark.slow_but("decode fp8 KV, fp16 queries", "decode int8 KV, scales a token")
@pytest.mark.parametrize("name", compile_report.THREE_PROGRAMS)
def test_a_multiprocessor_holds_three_programs_of_decode_from_bytes(name, compiled):
    assert compiled(name, 90).programs >= 3


@compiles
@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("listed", "grid"),
    [
        ("decode fp16 32/8, work list", "decode fp16 32/8, block 16, 8 splits"),
        ("decode fp16 32/8, block 128, work list", "decode fp16 32/8, block 128, 8 splits"),
        ("reduction of a work list", "reduction of 8 splits"),
    ],
)
def test_a_work_list_costs_no_program_of_a_multiprocessor(listed, grid, target, compiled):
    assert compiled(listed, target).programs >= compiled(grid, target).programs


@compiles
def test_fp8_is_loaded_like_fp16(compiled):
    """Keys and values in 16 bytes a thread; what is narrower are lengths and block ids."""
    fp8, fp16 = compiled("decode fp8 KV, fp16 queries", 90), compiled("decode fp16 32/8, block 16", 90)
    assert fp8.narrow_loads / fp8.wide_loads <= 1.05
    assert fp8.shared < fp16.shared


@compiles
@pytest.mark.slow_but("decode fp16 head 72-decode fp16 head 80")
@pytest.mark.parametrize(
    ("name", "like"),
    [
        ("decode fp16 head 72", "decode fp16 head 80"),
        ("decode fp16 head 120, block 128", "decode fp16 32/8, block 128"),
        ("prefill fp16 head 72", "prefill fp16 32/8, block 16"),
        ("reshape and cache fp16, head 72", "reshape and cache fp16, NHD"),
        ("gather to a padded batch, head 72", "gather to a padded batch"),
    ],
)
def test_rows_of_whole_16_bytes_are_loaded_like_those_of_a_power_of_two(name, like, compiled):
    """Of a stride Triton looks whether it is a multiple of 16 numbers, and 72 and 120 are multiples of 8."""
    odd, even = compiled(name, 90), compiled(like, 90)
    assert odd.wide_loads >= even.wide_loads
    assert odd.narrow_loads <= 1.2 * even.narrow_loads


@compiles
def test_programs_follow_from_what_each_takes(compiled):
    code = replace(compiled("gather blocks", 90), warps=4, shared=0, registers=32)
    assert code.programs == 16  # 64 warps
    assert replace(code, registers=168).programs == 3
    assert replace(code, registers=169).programs == 2
    assert replace(code, shared=75 << 10).programs == 3
    assert replace(code, shared=76 << 10).programs == 2


@compiles
def test_faults_are_named(compiled):
    sound = compiled("gather blocks", 90)
    for broken, fault in (
        (replace(sound, local=3, stack=16), "3 spills, 16 bytes of stack"),
        (replace(sound, shared=300 << 10), "307200 bytes of shared memory, 232448 at most"),
        (replace(sound, wide_loads=0), "no load of 16 bytes"),
    ):
        assert faults("gather blocks", broken) == [fault]
    assert faults("decode", sound) == ["no tensor-core instruction"]
    wide = replace(sound, registers=200, tensor=1)
    assert faults("decode int8 KV, scales a token", wide) == ["2 programs a multiprocessor, 3 are needed"]


@compiles
@pytest.mark.slow
def test_spills_are_seen():
    """With half the warps 64 rows of accumulators do not fit into registers."""
    launch = replace(KERNELS["decode fp16 64/1, block 16"](80), num_warps=4)
    (fault,) = faults("decode", compile_for(launch, 80))
    assert "spills" in fault


@compiles
def test_narrow_loads_are_seen():
    """A cache that begins at no multiple of 16 bytes, or a stride of none, cannot be loaded 16 at a time."""
    launch = KERNELS["gather blocks"](90)
    odd = replace(launch, arguments={**launch.arguments, "stride_block": 1021, "words_a_block": 1021})
    assert faults("gather blocks", compile_for(odd, 90)) == ["no load of 16 bytes"]


@compiles
@pytest.mark.parametrize(
    "name",
    [
        "decode fp16 32/8, block 16",
        pytest.param("decode fp16 32/8, block 128, 4 stages", marks=pytest.mark.slow),
    ],
)
def test_all_stages_but_one_are_in_flight(name, compiled):
    """Were the block id not carried along, half of them would be: its load would be a stage of its own."""
    launch = KERNELS[name](90)
    tile = 2 * launch.arguments["TILE"] * launch.arguments["PADDED_DIM"] * 2  # bytes of keys and values
    assert compiled(name, 90).shared >= (launch.num_stages - 1) * tile


@compiles
def test_prefill_loads_the_diagonal_ahead_too(compiled):
    """Both loops have a copy of each tile for every stage: before the loop, but for the one in it."""
    launch = KERNELS["prefill fp16 32/8, block 16"](90)
    tile = 2 * launch.arguments["TILE"] * launch.arguments["PADDED_DIM"] * 2  # bytes of keys and values
    copies = tile // (16 * 32 * launch.num_warps)
    assert compiled("prefill fp16 32/8, block 16", 90).ahead == 2 * launch.num_stages * copies


@compiles
def test_prefill_scales_a_score_and_subtracts_the_maximum_in_one_instruction(compiled):
    launch = KERNELS["prefill fp16 32/8, block 16"](90)
    scores = launch.arguments["ROWS"] * launch.arguments["TILE"] // (32 * launch.num_warps)
    assert compiled("prefill fp16 32/8, block 16", 90).fused >= 2 * scores


@compiles
def test_the_swaps_kernel_moves_16_bytes_at_a_time(compiled):
    code = compiled("zero-copy swap", 90)
    assert code.wide_loads == code.wide_stores == 8
    assert code.shared == 0


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
        compile_for(KERNELS["gather blocks"](90), 90)
