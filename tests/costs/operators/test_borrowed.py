"""What was not timed is carried from what was: by the ratio of bounds, by release, or from a like shape."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pagesim.costs.base import AttentionSpan
from pagesim.costs.operators.aiconfigurator import read_system
from pagesim.costs.operators.attention import Attention, Heads
from pagesim.costs.operators.bounds import decode_bound, experts_bound, product_bound, prompts_bound
from pagesim.costs.operators.experts import experts
from pagesim.costs.operators.gemm import Products, shape_seconds
from pagesim.costs.operators.iteration import Operators
from pagesim.costs.operators.products import Product
from pagesim.costs.operators.reduces import EAGER_S, reduces
from pagesim.costs.operators.states import delta_net
from pagesim.costs.operators.tables import Chip, OperatorTable, bundled_tables, chip_of
from pagesim.errors import PagesimError
from pagesim.hardware import gpu
from pagesim.models import model
from pagesim.models.weights import weight_dtype
from tests.costs.operators.conftest import SYSTEM, decode_ms, gemm_ms, prompt_ms

H100 = gpu("h100")
NEAR = {"rel": 0.003}


def test_bounds_are_a_launch_and_the_longer_of_bytes_and_operations():
    # 3.35 TB/s and 989.4 TFLOP/s, of which 80 % are reached; int4 has 4.125 bits with its scales.
    int4, bf16 = weight_dtype("int4"), weight_dtype("bf16")
    few = 3e-6 + (4096 * 4096 * 4.125 / 8 + 2 * 8192) / (0.8 * 3.35e12)
    assert product_bound(H100, int4, 4096, 4096, [1])[0] == pytest.approx(few)
    many = 3e-6 + 2 * 8192 * 4096 * 4096 / (0.8 * 989.4e12)
    assert product_bound(H100, int4, 4096, 4096, [8192])[0] == pytest.approx(many)
    assert decode_bound(H100, 4096, [1000])[0] == pytest.approx(3e-6 + 4_096_000 / (0.8 * 3.35e12))
    pairs = 3e-6 + 4 * 4096 * 1e8 / (0.8 * 989.4e12)
    assert prompts_bound(H100, 4096, 4096, [10_000], [1e8])[0] == pytest.approx(pairs)
    # One token touches 2 of 8 experts of 3·1024·512 weights; 4 of these are on each of 2 GPUs.
    one = 3e-6 + (4 * 0.25 * 3 * 1024 * 512 * 2 + 4 * 1024) / (0.8 * 3.35e12)
    assert experts_bound(H100, bf16, (1024, 512, 2, 8), 1, 2, [1])[0] == pytest.approx(one)


def test_products_of_another_type_go_by_the_ratio_of_bounds(chip: Chip):
    table = Products(chip)
    sizes = np.array([1, 256, 4096])
    found = table.seconds([Product("x", 4096, 4096, "int4_wo", 3)], sizes)
    bounds = [product_bound(H100, weight_dtype(name), 4096, 4096, sizes) for name in ("int4", "bf16")]
    expected = [3 * gemm_ms(m, 4096, 4096) / 1e3 * a / b for m, a, b in zip(sizes, *bounds, strict=True)]
    assert found == pytest.approx(expected, **NEAR)
    assert bounds[0][0] < 0.6 * bounds[1][0]  # a quarter of the bytes, and a launch
    assert bounds[0][2] == bounds[1][2]  # as many operations of 16 bits
    assert table.notes == [
        "products with int4 weights were not timed on h100: those with bf16 count, times the ratio of their "
        "bounds"
    ]


def test_a_timing_that_is_much_too_long_moves_no_other():
    seconds = np.array([[[[5.0, 5.0, 9.0, 5.0, 5.0, 20.0]]]])
    axes = (np.array([64]), np.array([64]), np.array([1, 2, 4, 8, 16, 32]))
    table = OperatorTable(("gemm", "fp8"), "vllm 1.0", np.zeros((1, 0), np.int64), axes, seconds)
    assert shape_seconds(table, 64, 64) == pytest.approx([5, 5, 5, 5, 5, 20])


def test_products_of_one_chip_in_two_servers_take_about_as_long():
    """B200 and GB200 have the same chip and the same memory. Single timings are up to twice apart."""
    ratios = []
    for n, k in ((2560, 8192), (8192, 2048), (14336, 8192), (8192, 7168), (4096, 4096), (8192, 8192)):
        one, other = (bundled_tables(name).find("gemm", "fp8")[0] for name in ("b200", "gb200"))
        rows = one.axes[2] <= 128
        ratios.append(shape_seconds(one, n, k)[rows] / shape_seconds(other, n, k)[rows])
    assert np.abs(np.log(ratios)).max() < 0.1


def test_tables_stand_for_no_other_gpu():
    assert chip_of(H100) is not None
    for other in ("h20", "h100-pcie", "mi300x", "v100"):
        assert chip_of(gpu(other)) is None, "the roofline is nearer"


def test_attention_over_a_cache_in_fp8_goes_by_its_bytes(chip: Chip):
    table = Attention(chip, "fp8")
    decode = table.decoding(Heads(32, 8, 128))
    assert decode is not None
    batch, context = np.array([64]), np.array([8192])
    tokens = [64 * 8192]
    ratio = decode_bound(H100, 2048, tokens) / decode_bound(H100, 4096, tokens)
    assert decode.at(batch, context)[0, 0] == pytest.approx(decode_ms(64, 8192, 8) / 1e3 * ratio[0], **NEAR)
    assert any("a cache in fp8 was not timed on h100" in note for note in table.notes)


def test_heads_that_were_not_timed_have_stand_ins(chip: Chip):
    table = Attention(chip, "bfloat16")

    def decode(*heads: int) -> float:
        plane = table.decoding(Heads(*heads))
        assert plane is not None
        return float(plane.at(np.array([5]), np.array([1024]))[0, 0])

    # b sequences of 32 KV heads are 4·b of 8.
    assert decode(128, 32, 128) == pytest.approx(decode_ms(20, 1024, 8) / 1e3, **NEAR)
    assert table.notes == []
    # Half as wide: half the bytes.
    ratio = decode_bound(H100, 2048, [5 * 1024])[0] / decode_bound(H100, 4096, [5 * 1024])[0]
    assert decode(32, 8, 64) == pytest.approx(decode_ms(5, 1024, 8) / 1e3 * ratio, **NEAR)
    assert "attention of 32 heads over 8 of width 64 was not timed" in table.notes[0]
    # Seven heads over one: most like eight over two.
    decode(7, 1, 128)
    assert "that of 8 over 2 of width 128 counts" in table.notes[1]


def test_prompts_of_more_heads_and_chunks_go_by_what_was_timed(chip: Chip):
    table = Attention(chip, "bfloat16")
    whole = table.prompts(Heads(128, 32, 128))
    chunk = table.prompts(Heads(32, 8, 128, AttentionSpan("chunk", 512)))
    assert whole is not None
    assert chunk is not None
    one = np.array([1])
    assert whole.at(one, np.array([1024]))[0, 0] == pytest.approx(prompt_ms(4, 1024, 32) / 1e3, **NEAR)
    assert whole.most == (1 << 15) // 4
    # Four chunks of 512 in 2048 tokens have a quarter of the pairs.
    share = 4 * 512 * 513 / (2048 * 2049)
    assert chunk.at(one, np.array([2048]))[0, 0] == pytest.approx(
        share * prompt_ms(1, 2048, 32) / 1e3, **NEAR
    )


def test_all_reduces_of_the_nearest_release_count_where_releases_differ(store: Path, put_table):
    def rows(milliseconds: float) -> list[dict[str, Any]]:
        return [
            {"num_gpus": 2, "message_size": 1 << s, "backend": f"vllm_{how}", "latency": milliseconds}
            for s in range(7, 25)
            for how in ("graph", "eager")
        ]

    put_table("comm/vllm/1.2.0/custom_allreduce_perf", rows(1.0))
    put_table("comm/vllm/1.0.0/custom_allreduce_perf", rows(0.4))
    tables = read_system(SYSTEM, tables=store)

    def found(release: str) -> tuple[float, tuple[str, ...]]:
        those = reduces(Chip(H100, tables, release), 2)
        assert those is not None
        return round(float(those.seconds(np.array([300_000.0]), graph=True)[0]), 5), those.notes

    assert found("vllm 1.2.3") == (0.001, (
        "all-reduces among 2 GPUs differ by 2.5 times between vllm 1.2.0 and vllm 1.0.0: those of vllm 1.2.0 "
        "are taken, the nearest to vllm 1.2.3",
    ))  # fmt: skip
    assert found("vllm 0.9")[0] == 0.0004
    assert found("") == (0.001, ())
    put_table("comm/vllm/1.0.0/custom_allreduce_perf", rows(0.8))
    tables = read_system(SYSTEM, tables=store)
    assert found("vllm 0.9") == (0.001, ())  # 1.25 times is not much


def test_all_reduces_are_straight_between_sizes_and_nccls_beyond(store: Path, put_table):
    put_table(
        "comm/nccl/2.1/nccl_perf",
        [
            {
                "num_gpus": 2,
                "message_size": 1 << s,
                "op_name": "all_reduce",
                "nccl_dtype": "half",
                "latency": 9.0,
            }
            for s in range(7, 28)
        ],
    )
    those = reduces(Chip(H100, read_system(SYSTEM, tables=store)), 2)
    assert those is not None
    elements = np.array([300_000.0, 1 << 26])
    assert those.seconds(elements, graph=True) == pytest.approx([0.007e-3, 9e-3], **NEAR)
    assert those.seconds(elements, graph=False) == pytest.approx([0.023e-3 + EAGER_S, 9e-3 + EAGER_S], **NEAR)
    assert reduces(Chip(H100, read_system(SYSTEM, tables=store)), 8) is None


def test_the_kernel_of_experts_can_be_chosen(store: Path, put_table):
    sizes = [1 << each for each in range(12)]
    shape = {"hidden_size": 2048, "inter_size": 768, "topk": 8, "num_experts": 128, "moe_tp_size": 1}
    shape |= {"moe_ep_size": 1, "distribution": "balanced", "moe_dtype": "nvfp4"}
    rows = [
        {**shape, "num_tokens": tokens, "kernel_source": kernel, "latency": ms}
        for tokens in sizes
        for kernel, ms in (("vllm_fused_moe", 3.0), ("vllm_x_flashinfer_trtllm_y", 1.0))
    ]
    put_table("moe/vllm/1.2.0/moe_perf", rows)
    chip = Chip(H100, read_system(SYSTEM, tables=store))

    def seconds(kernel: str | None) -> float:
        found = experts(chip, (2048, 768, 8, 128), "nvfp4", kernel=kernel)
        assert found is not None
        return float(found.at(np.array([64]))[0])

    assert seconds("triton") == pytest.approx(3e-3, **NEAR)
    assert seconds("flashinfer_trtllm") == pytest.approx(1e-3, **NEAR)
    with pytest.raises(PagesimError, match="moe_backend is 'cutlass'; it must be one of triton"):
        seconds("cutlass")


def test_experts_of_another_shape_go_by_the_ratio_of_bounds(chip: Chip):
    bf16 = weight_dtype("bf16")
    sizes = np.array([1, 64, 4096])
    measured = 0.02e-3 * sizes**0.5
    wanted, timed = (2048, 768, 8, 64), (2048, 768, 8, 128)
    found = experts(chip, wanted, "bfloat16")
    assert found is not None
    ratio = experts_bound(H100, bf16, wanted, 1, 1, sizes) / experts_bound(H100, bf16, timed, 1, 1, sizes)
    assert found.at(sizes) == pytest.approx(measured * ratio, **NEAR)
    assert "experts of this shape in bf16 were not timed on h100: those of hidden 2048" in found.notes[0]
    fp8 = experts(chip, timed, "fp8")
    assert fp8 is not None
    ratio = experts_bound(H100, weight_dtype("fp8"), timed, 1, 1, sizes)
    ratio = ratio / experts_bound(H100, bf16, timed, 1, 1, sizes)
    assert fp8.at(sizes) == pytest.approx(measured * ratio, **NEAR)


def test_experts_of_another_shape_are_nearer_than_those_of_twice_the_bits(store: Path, put_table):
    fields = {"hidden_size": 2048, "inter_size": 768, "topk": 8, "num_experts": 16, "moe_tp_size": 1}
    fields |= {"moe_ep_size": 1, "distribution": "balanced", "moe_dtype": "fp8_block", "kernel_source": "a"}
    put_table(
        "moe/vllm/1.1.0/moe_perf", [{**fields, "num_tokens": 1 << t, "latency": 1.0} for t in range(12)]
    )
    # In bfloat16 just this shape was timed; an eighth as many experts are less unlike than twice the bits.
    found = experts(Chip(H100, read_system(SYSTEM, tables=store)), (2048, 768, 8, 128), "fp8")
    assert found is not None
    assert found.table.name[1] == "fp8_block"


def test_latent_attention_of_another_model_has_projections_of_its_own():
    measured = chip_of(gpu("h200"))
    assert measured is not None
    spec = model("deepseek-v3")
    narrow = replace(spec, name="narrow", hidden=spec.hidden // 2)
    found = Operators(measured, narrow, tp=8)
    found.terms()
    assert any("projections of latent attention" in note for note in found.notes)
    own = Operators(measured, spec, tp=8)
    own.terms()
    assert not any("projections" in note for note in own.notes)
    assert own.used["decode"].name == ("latent decode", "fp8_block", "bfloat16")


def test_recurrent_layers_of_other_heads_go_by_their_value_heads():
    measured = chip_of(gpu("h100"))
    assert measured is not None
    timed, wider = delta_net(measured, 2048, 16, 32), delta_net(measured, 2048, 16, 40)
    assert timed is not None
    assert wider is not None
    one, length = np.array([1]), np.array([4096])
    ratio = wider.prompts.at(one, length) / timed.prompts.at(one, length)
    assert ratio[0, 0] == pytest.approx(40 / 32)
    assert "gated delta nets of 16 and 40 heads were not timed" in wider.notes[0]
