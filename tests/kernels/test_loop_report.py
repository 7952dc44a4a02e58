"""What a turn of a compiled main loop issues and has in flight, of our kernels and of vLLM's."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pagesim import PagesimError

MISSING = [package for package in ("torch", "triton") if find_spec(package) is None]
if MISSING:
    pytest.skip(f"{' and '.join(MISSING)} not installed", allow_module_level=True)

import triton  # noqa: E402

from pagesim.kernels import loop_report, vllm_source  # noqa: E402
from pagesim.kernels.aot import compile_for  # noqa: E402
from pagesim.kernels.compile_report import KERNELS  # noqa: E402
from pagesim.kernels.main_loop import buffer_bytes, loop_instructions  # noqa: E402

if TYPE_CHECKING:
    from pagesim.kernels.aot import MachineCode
    from pagesim.kernels.launch import Launch

compiles = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") == "1", reason="TRITON_INTERPRET=1: nothing is compiled"
)
ROOT = Path(__file__).parents[2]
FP16 = "decode fp16 32/8, block 128"

CODE = """\
kernel:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/              @!P1 BRA `(.L_x_2) ;
.L_x_0:
        /*0020*/                   LDGSTS.E.BYPASS.128 [R3], desc[UR12][R4.64] ;
        /*0030*/                   HMMA.16816.F32 R8, R8, R10, R8 ;
.L_x_1:
        /*0040*/                   LDG.E R2, desc[UR12][R4.64] ;
        /*0050*/               @P3 BRA `(.L_x_1) ;
        /*0060*/               @P2 BRA `(.L_x_0) ;
.L_x_2:
        /*0070*/                   EXIT ;
.L_x_3:
        /*0080*/                   BRA `(.L_x_3);
"""


def test_the_main_loop_is_the_one_that_loads_most():
    assert loop_instructions(CODE) == 5
    assert loop_instructions(CODE.replace(".128", "")) == 5
    assert loop_instructions(CODE.partition("@P2")[0]) == 2


def test_code_without_a_loop_that_loads_has_no_main_loop():
    assert loop_instructions(CODE.partition(".L_x_0:")[0] + ".L_x_3:\n /*80*/ BRA `(.L_x_3);") == 0


def test_tiles_that_are_copied_ahead_are_counted_and_nothing_else():
    ahead = "%keys = ttg.local_alloc : () -> !ttg.memdesc<2x64x128xf16, #shared, #smem, mutable> loc(#l)\n"
    ids = "%ids = ttg.local_alloc : () -> !ttg.memdesc<2x64xi32, #shared1, #smem, mutable> loc(#l)\n"
    held = "%q = ttg.local_alloc %x : (tensor<16x128xf16, #b>) -> !ttg.memdesc<16x128xf16, #shared, #smem>\n"
    assert buffer_bytes(ahead + ids + held) == 2 * 64 * 128 * 2
    assert buffer_bytes(ahead + ahead.replace("f16", "i8")) == 2 * 64 * 128 * 3
    assert buffer_bytes(held) == 0


@pytest.fixture(scope="module")
def compiled() -> tuple[Launch, MachineCode]:
    launch = KERNELS[FP16](90)
    return launch, compile_for(launch, 90)


@compiles
def test_a_turn_takes_a_tile_of_keys_and_one_of_values(compiled):
    launch, code = compiled
    assert loop_report.turn_bytes(launch) == 2 * 64 * 128 * 2
    assert code.flying == (launch.num_stages - 1) * loop_report.turn_bytes(launch)


@compiles
def test_every_scheduler_issues_for_its_share_of_the_warps(compiled):
    launch, code = compiled
    assert loop_report.issue_slots(launch, code) == code.loop  # four warps, four schedulers, 32 KB a turn
    assert loop_report.issue_slots(launch, replace(code, warps=8)) == 2 * code.loop
    half = replace(launch, arguments={**launch.arguments, "TILE": 32})
    assert loop_report.issue_slots(half, code) == 2 * code.loop


@compiles
def test_what_no_asynchronous_copy_brings_is_not_in_flight(compiled):
    assert loop_report.table_row("x", *compiled).endswith(" 192 |")
    launch, code = compiled
    assert loop_report.table_row("x", launch, replace(code, flying=0)).endswith(" – |")


ATTENTION = """\
import torch
import vllm.envs as envs
from vllm.logger import init_logger
from vllm.platforms import current_platform
from vllm.triton_utils import tl, triton
from vllm.v1.attention.ops.triton_attention_helpers import doubled
from vllm.v1.kv_cache_interface import KVQuantMode

logger = init_logger(__name__)
float8_info = torch.finfo(current_platform.fp8_dtype())


@triton.jit
def kernel_unified_attention(
    output_ptr, key_cache_ptr, sink_ptr, stride: tl.int64, TILE_SIZE: tl.constexpr, HEAD_SIZE: tl.constexpr,
    KV_QUANT_MODE: tl.constexpr = 0, FP8_MAX: tl.constexpr = float8_info.max,
):
    at = tl.arange(0, TILE_SIZE)[:, None] * stride + tl.arange(0, HEAD_SIZE)[None, :]
    tl.store(output_ptr + at, doubled(tl.load(key_cache_ptr + at)))


def unified_attention(q, k, v, out, kv_quant_mode, seq_threshold_3D=None, **others):
    tile = 32 if seq_threshold_3D is None else 16
    kernel_unified_attention[(1,)](
        output_ptr=out, key_cache_ptr=k, sink_ptr=None, stride=k.stride(1), TILE_SIZE=tile,
        HEAD_SIZE=q.shape[2], KV_QUANT_MODE=kv_quant_mode, num_warps=8,
    )
"""
HELPERS = """\
from vllm.triton_utils import tl, triton


@triton.jit
def doubled(x):
    return x + x
"""


@pytest.fixture
def unpacked(tmp_path) -> Path:
    """Return a folder like that of an unpacked wheel, with a kernel that is launched as vLLM's is."""
    ops = tmp_path / "vllm/v1/attention/ops"
    ops.mkdir(parents=True)
    (ops / "triton_unified_attention.py").write_text(ATTENTION, encoding="utf-8")
    (ops / "triton_attention_helpers.py").write_text(HELPERS, encoding="utf-8")
    return tmp_path


SHAPE = {"q_heads": 32, "kv_heads": 8, "head_dim": 128, "block_size": 16}


def test_the_wrapper_itself_chooses_what_is_started(unpacked):
    module = vllm_source.unified_attention(unpacked)
    launch = vllm_source.decode_launch(module, **SHAPE)
    assert launch.arguments["TILE_SIZE"] == 32
    assert launch.arguments["FP8_MAX"] == 448  # a default of the kernel's own
    assert (launch.num_warps, launch.num_stages) == (8, 3)
    assert vllm_source.decode_launch(module, **SHAPE, split=True).arguments["TILE_SIZE"] == 16


def test_modes_of_the_cache_are_vllms_numbers(unpacked):
    import torch

    module = vllm_source.unified_attention(unpacked)
    for kv_dtype, token_scales, mode in (
        (None, False, 0),
        (torch.float8_e4m3fn, False, 1),
        (torch.int8, True, 2),
        (torch.float8_e4m3fn, True, 3),
    ):
        launch = vllm_source.decode_launch(module, **SHAPE, kv_dtype=kv_dtype, token_scales=token_scales)
        assert launch.arguments["KV_QUANT_MODE"] == mode


@compiles
def test_its_kernel_is_compiled_as_ours_are(unpacked):
    launch = vllm_source.decode_launch(vllm_source.unified_attention(unpacked), **SHAPE)
    code = compile_for(launch, 90)
    assert code.warps == 8
    assert code.wide_loads
    assert loop_report.turn_bytes(launch) == 2 * 32 * 128 * 2


def test_loading_it_leaves_no_stand_in_behind(unpacked):
    before = {name for name in sys.modules if name.split(".")[0] == "vllm"}
    vllm_source.unified_attention(unpacked)
    assert {name for name in sys.modules if name.split(".")[0] == "vllm"} == before


def test_a_folder_without_vllm_is_named(tmp_path):
    with pytest.raises(PagesimError, match=f"--vllm is {tmp_path}; the folder that holds vllm/"):
        list(loop_report.report(90, tmp_path))


def test_a_vllm_that_needs_more_is_named(unpacked):
    file = unpacked / "vllm/v1/attention/ops/triton_attention_helpers.py"
    file.write_text("from vllm.utils import something", encoding="utf-8")
    with pytest.raises(PagesimError, match=r"vLLM 0\.33's kernel is needed, and this: .*vllm\.utils"):
        vllm_source.unified_attention(unpacked)


@compiles
@pytest.mark.slow
def test_the_documented_table_is_what_is_compiled():
    page = (ROOT / "docs/kernels.md").read_text(encoding="utf-8").partition("\n## Beside vLLM's kernel\n")[2]
    if f"by triton {triton.__version__}" not in page:
        pytest.skip(f"the table is another triton's, not that of {triton.__version__}")
    table = page.partition(loop_report.HEADER)[2].partition("\n\n")[0].strip().splitlines()
    folder = os.environ.get("PAGESIM_VLLM")
    made = [*loop_report.report(90, Path(folder) if folder else None)][2:]
    assert len(made) >= 7
    assert table[: len(made)] == made
    if not folder:
        pytest.skip("PAGESIM_VLLM names no folder that holds vLLM 0.33; only our rows were compared")
