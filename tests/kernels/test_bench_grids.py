"""Grids: what they leave out because it means nothing, what they refuse, and what is measured by default."""

from __future__ import annotations

import pytest

from pagesim.errors import PagesimError
from pagesim.kernels.bench import peers, selection
from pagesim.kernels.bench.defaults import default_points, swap_shapes
from pagesim.kernels.bench.grids import AttentionGrid, SwapGrid, layers_of
from pagesim.kernels.bench.rows import BENCHES
from pagesim.kernels.bench.verdict import OPT_PIECES, OPT_TOKEN_BYTES
from pagesim.models import model, models


def test_a_parameter_that_means_nothing_to_an_op_is_left_out():
    grid = AttentionGrid(
        shapes=((2, 32),), prompts=((1, 8, 8), (1, 8, 32)), block_sizes=(1, 16), layouts=("NHD", "VLLM")
    )
    points = list(grid.points())
    counts = {op: sum(point.op == op for point in points) for op in grid.ops}
    assert counts == {
        "paged-decode": 4,
        "contiguous-decode": 1,  # no block size, and vLLM's layout is one of blocks
        "gather-decode": 4,
        "sdpa-decode": 1,
        "paged-prefill": 8,
        "sdpa-prefill": 1,  # the prompt without a prefix
    }
    assert len({str(point) for point in points}) == len(points)


def test_swaps_come_with_one_large_copy_of_their_size():
    points = list(SwapGrid(((2, 64, 3),), ("gather",), ("in",), beside_decode=True).points())
    assert [point.op for point in points] == ["pinned-copy", "swap", "decode-beside-swap"]
    assert points[0]["piece_bytes"] == 2 * 64 * 3


def test_iterations_that_swap_are_those_of_a_model():
    """Llama-3.1-8B: keys and values of its layers in blocks of 16, and the weights of a layer's products."""
    llama = model("llama-3.1-8b")
    points = list(SwapGrid((), ("gather", "zero-copy"), in_iterations=(64,)).points())
    assert [(point["strategy"], point["direction"]) for point in points] == [
        ("gather", "out"), ("gather", "in"), ("zero-copy", "out"), ("zero-copy", "in")
    ]  # fmt: skip
    assert points[0]["pieces"] == 2 * llama.layers
    assert points[0]["piece_bytes"] == 16 * llama.kv_heads * llama.head_dim * 2
    assert points[0]["n"] * points[0]["k"] == sum(n * k for n, k in layers_of(llama)[:4])
    with pytest.raises(PagesimError, match="blocks is 4097; it must be from 1 to 4096"):
        SwapGrid((), in_iterations=(4097,))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("bench", BENCHES)
def test_what_is_measured_by_default_is_distinct_and_quick_is_less(bench, device):
    whole, quick = (default_points(bench, device, quick) for quick in (False, True))
    assert 0 < len(quick) < len(whole)
    names = {op for op in (point.op for point in whole) if op not in peers.PEERS}
    assert {point.op for point in quick} <= names | set(peers.PEERS)


def test_a_models_products_are_those_of_its_layers():
    opt = layers_of(model("opt-13b"))
    assert opt[:4] == ((15360, 5120), (5120, 5120), (20480, 5120), (5120, 20480))
    gated = next(spec for spec in models() if spec.gated and spec.kv_heads < spec.heads)
    wide = (gated.heads + 2 * gated.kv_heads) * gated.head_dim
    assert layers_of(gated)[0] == (wide, gated.hidden)
    assert layers_of(gated)[2] == (2 * gated.ffn, gated.hidden)


def test_swaps_of_opt_13b_are_those_that_are_promised():
    assert swap_shapes(model("opt-13b"), (1, 16), 100) == (
        (OPT_PIECES, OPT_TOKEN_BYTES, 100),
        (OPT_PIECES, 16 * OPT_TOKEN_BYTES, 7),
    )


ASKED = {
    "attention": {
        "batch": [("0", "batch is 0; it must be from 1"), ("a", "batch is 'a'; it must be whole numbers")],
        "context": [
            ("-1", "context is '-1'"),
            ("99999999", "from 1 to 1048576"),
        ],
        "query": [("2000", "query is 2000; it must be at most context, 1024"), ("0", "query is 0")],
        "block_size": [
            ("5000", "block_size is 5000; it must be from 1 to 4096"),
            ("0", "block_size is 0"),
            ("", "block_size is ''"),
            ("16,", "block_size is '16,'"),
            ("1e3", "block_size is '1e3'"),
        ],
        "heads": [
            ("32/7", "heads is 32/7; it must be query heads / KV heads, the first a multiple of the second"),
            ("0/0", "heads is 0/0"),
            ("32/", "heads is '32/'; it must be query heads / KV heads, as 32/8,40/40"),
            ("a", "heads is 'a'"),
        ],
        "head_size": [("100", "head_size is 100; it must be one of 32, 64, 72, 80")],
        "dtype": [("fp64", "dtype is fp64; it must be one of fp16, bf16, fp32, fp8"), (",", "dtype is ','")],
        "layout": [("nhd", "layout is nhd; it must be one of NHD, HND, VLLM")],
        "splits": [
            ("4", "splits is for device cuda"),
            ("0", "splits is '0'; it must be auto"),
            ("²", "splits is '²'"),
        ],
        "ops": [("decode", "op is decode; it must be one of paged-decode")],
    },
    "swap": {
        "piece_bytes": [("24", "piece_bytes is 24; it must be a multiple of 16"), ("8", "piece_bytes is 8")],
        "pieces": [("0", "pieces is 0")],
        "blocks": [("99999999999999999999", "blocks is '99999999999999999999'")],
        "strategy": [("dma", "strategy is dma; it must be one of copy-each, copy-batch, gather, zero-copy")],
        "direction": [("up", "direction is up; it must be one of out, in")],
        "host_blocks": [("anywhere", "host_blocks is anywhere; it must be one of neighbours, scattered")],
    },
    "copy": {
        "size": [("8", "piece_bytes is 8")],
        "tokens": [("0", "tokens is 0")],
        "head_size": [("64,128", "head_size is 64,128; a single number is expected here")],
        "kv_heads": [("0", "heads is 0/0")],
    },
    "gemm": {
        "model": [("opt-31b", "'opt-31b'")],
        "tokens": [("0", "tokens is 0")],
        "dtype": [("fp8", "dtype is fp8; it must be one of fp16, bf16, fp32")],
    },
}


@pytest.mark.parametrize(
    ("bench", "name", "value", "said"),
    [
        (bench, name, value, said)
        for bench, options in ASKED.items()
        for name, cases in options.items()
        for value, said in cases
    ],
)
def test_what_is_off_is_named_with_its_value_and_its_bound(bench, name, value, said):
    with pytest.raises(PagesimError) as error:
        selection.points(bench, "cpu", False, {name: value})
    assert said in str(error.value)


def test_what_is_asked_for_replaces_the_defaults():
    points = selection.points(
        "attention", "cuda", False, {"batch": "1, 2", "splits": "auto,4", "ops": "paged-decode"}
    )
    assert [(point["batch"], point.parameters.get("splits")) for point in points] == [
        (1, None), (1, 4), (2, None), (2, 4)
    ]  # fmt: skip
    points = selection.points(
        "attention", "cpu", False, {"batch": "1", "query": "16", "context": "16,64", "heads": "8"}
    )
    assert [(point.op, point["context"], point["kv_heads"]) for point in points] == [
        ("paged-prefill", 16, 8), ("sdpa-prefill", 16, 8), ("paged-prefill", 64, 8)
    ]  # fmt: skip
    points = selection.points("copy", "cpu", False, {"blocks": "4"})
    assert [point.op for point in points] == ["copy-blocks", "gather-blocks", "scatter-blocks"]
    points = selection.points("copy", "cpu", False, {"tokens": "4", "size": "64"})
    assert [point.op for point in points] == ["device-copy", "reshape-and-cache"]
    points = selection.points("swap", "cpu", False, {"blocks": "4", "direction": "in"})
    assert [point.parameters.get("strategy") for point in points] == [
        None,
        "copy-each",
        "gather",
        "zero-copy",
    ]


def test_variants_are_of_our_own_kernels():
    asked = {"batch": "1", "queries": "1,4", "window": "0,32"}
    points = selection.points("attention", "cpu", False, asked)
    varied = {(point.op, point.parameters.get("queries"), point.parameters.get("window")) for point in points}
    both = {(q, w) for q in (None, 4) for w in (None, 32)}
    assert {point[1:] for point in varied if point[0] == "paged-decode"} == both
    assert {point[1:] for point in varied if point[0] == "sdpa-decode"} == {(None, None)}
    points = selection.points("attention", "cpu", False, {"batch": "1", "queries": "4"})
    assert {point.op for point in points} == {"paged-decode", "contiguous-decode"}
    prompts = selection.points("attention", "cpu", False, {"query": "64", "context": "64", "window": "16"})
    assert {(point.op, point["window"]) for point in prompts} == {("paged-prefill", 16)}


def test_shared_prefixes_and_latents_are_asked_for_alone():
    asked = {"batch": "2", "context": "64", "shared": "16,32", "dtype": "int8_per_token_head"}
    points = selection.points("attention", "cpu", False, asked)
    assert [(point.op, point["shared"]) for point in points] == [
        ("shared-decode", 16), ("cascade-decode", 16), ("shared-decode", 32), ("cascade-decode", 32)
    ]  # fmt: skip
    points = selection.points("attention", "cpu", False, {"ops": "mla-decode", "heads": "16,128"})
    assert [(point.op, point["q_heads"], point["head_size"]) for point in points[:2]] == [
        ("mla-decode", 16, 576), ("mla-decode", 128, 576)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"shared": "16", "ops": "cascade-decode"}, "ops: shared is measured without; leave it out"),
        ({"shared": "16", "dtype": "fp16,fp32"}, "dtype is fp16,fp32; shared takes one"),
        ({"shared": "16", "block_size": "8,16"}, "block_size is 8,16; shared takes one"),
        ({"shared": "24"}, "shared is 24; it must be a multiple of block_size, 16"),
        ({"ops": "mla-decode,paged-decode"}, "mla-decode is measured without others"),
        ({"ops": "mla-decode", "window": "8"}, "window: ops mla-decode is measured without; leave it out"),
        ({"ops": "mla-decode", "dtype": "fp8"}, "dtype is fp8; mla-decode has fp16, bf16 and fp32"),
    ],
)
def test_what_does_not_go_with_them_is_named(asked, said):
    with pytest.raises(PagesimError) as error:
        selection.points("attention", "cpu", False, asked)
    assert said in str(error.value)


def test_options_that_leave_nothing_are_refused():
    with pytest.raises(PagesimError, match="layout, ops: together these leave nothing to measure"):
        selection.points("attention", "cpu", False, {"layout": "VLLM", "ops": "contiguous-decode"})
