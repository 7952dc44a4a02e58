"""Grids: what they leave out because it means nothing, what they refuse, and what is measured by default."""

from __future__ import annotations

import pytest

from pagesim.errors import PagesimError
from pagesim.kernels.bench import peers, selection
from pagesim.kernels.bench.compare import compare
from pagesim.kernels.bench.defaults import default_points, layers_of, swap_shapes
from pagesim.kernels.bench.grid import OPS, Grid
from pagesim.kernels.bench.rows import BENCHES, MEASURED, PARAMETERS
from pagesim.models import model, models


def test_a_parameter_that_means_nothing_to_an_op_is_left_out():
    ops = ("paged-decode", "contiguous-decode", "sdpa-decode", "paged-prefill", "sdpa-prefill")
    values = {
        ("batch", "query", "context"): ((1, 8, 8), (1, 8, 32)),
        ("q_heads", "kv_heads"): ((4, 2),),
        "head_size": (64,),
        "dtype": ("fp16",),
        "block_size": (1, 16),
        "layout": ("NHD", "HND"),
    }
    points = list(Grid("attention", ops, values).points())
    counts = {op: sum(point.op == op for point in points) for op in ops}
    assert counts == {
        "paged-decode": 8,
        "contiguous-decode": 4,  # no block size
        "sdpa-decode": 2,
        "paged-prefill": 8,
        "sdpa-prefill": 1,  # the prompt without a prefix
    }
    assert len({str(point) for point in points}) == len(points)


def test_the_columns_of_every_op_are_columns_of_a_row():
    assert {name for ops in OPS.values() for op in ops.values() for name in op.columns} <= set(PARAMETERS)


def row(op, median_s, **columns):
    return {
        **dict.fromkeys((*PARAMETERS, *MEASURED)), "bench": "attention", "op": op, "status": "ok", "batch": 8,
        "context": 4096, "block_size": 16, "layout": "NHD", "median_s": median_s, **columns,
    }  # fmt: skip


def test_ours_is_compared_with_the_best_other_op_of_its_shape():
    rows = [
        row("paged-decode", 6.0),
        row("paged-decode", 1.0, window=64),
        row("flashinfer-decode", 5.0),
        row("vllm-triton-decode", 4.0, block_size=128),
        row("sdpa-decode", 8.0, block_size=None, layout=None),
        row("contiguous-decode", 1.0, block_size=None),
        row("sdpa-decode", None, status="failed"),
        row("paged-prefill", 2.0, query=512),
    ]
    ((ours, best, ratio),) = compare(rows)
    assert (ours["op"], ours["window"], best["op"], ratio) == ("paged-decode", None, "flashinfer-decode", 1.2)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("bench", BENCHES)
def test_what_is_measured_by_default_is_distinct_and_quick_is_less(bench, device):
    whole, quick = (default_points(bench, device, quick) for quick in (False, True))
    assert 0 < len(quick) < len(whole) or (device == "cpu" and quick == whole)
    names = {op for op in (point.op for point in whole) if op not in peers.PEERS}
    assert {point.op for point in quick} <= names | set(peers.PEERS)


def test_a_models_products_are_those_of_its_layers():
    opt = layers_of(model("opt-13b"))
    assert opt[:4] == ((15360, 5120), (5120, 5120), (20480, 5120), (5120, 20480))
    gated = next(spec for spec in models() if spec.gated and spec.kv_heads < spec.heads)
    wide = (gated.heads + 2 * gated.kv_heads) * gated.head_dim
    assert layers_of(gated)[0] == (wide, gated.hidden)
    assert layers_of(gated)[2] == (2 * gated.ffn, gated.hidden)


def test_swaps_of_opt_13b_are_those_of_the_paper():
    """80 pieces, the keys and values of 40 layers, of 10 KiB a token."""
    assert swap_shapes(model("opt-13b"), (1, 16), 100) == ((80, 10240, 100), (80, 163840, 7))


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
            ("32/", "heads is 32/; it must be query heads / KV heads"),
            ("a", "heads is a;"),
        ],
        "head_size": [("100", "head_size is 100; it must be one of 32, 64, 72, 80")],
        "dtype": [("fp64", "dtype is fp64; it must be one of fp16, bf16, fp32, fp8"), (",", "dtype is ','")],
        "ops": [("decode", "op is decode; it must be one of paged-decode")],
    },
    "swap": {
        "piece_bytes": [("24", "piece_bytes is 24; it must be a multiple of 16"), ("8", "piece_bytes is 8")],
        "pieces": [("0", "pieces is 0")],
        "blocks": [("99999999999999999999", "blocks is '99999999999999999999'")],
    },
    "gemm": {
        "model": [("opt-31b", "'opt-31b'")],
        "tokens": [("0", "tokens is 0")],
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
    points = selection.points("attention", "cuda", False, {"batch": "1, 2", "ops": "paged-decode"})
    assert [(point.op, point["batch"]) for point in points] == [("paged-decode", 1), ("paged-decode", 2)]
    points = selection.points(
        "attention", "cpu", False, {"batch": "1", "query": "16", "context": "16,64", "heads": "8"}
    )
    assert [(point.op, point["context"], point["kv_heads"]) for point in points] == [
        ("paged-prefill", 16, 8), ("sdpa-prefill", 16, 8), ("paged-prefill", 64, 8)
    ]  # fmt: skip
    points = selection.points("swap", "cpu", False, {"blocks": "4"})
    assert [point.parameters.get("strategy") for point in points] == [
        *["copy-each"] * 2, *["gather"] * 2, None, None
    ]  # fmt: skip
    assert {point["piece_bytes"] for point in points if point.op == "pinned-copy"} == {2 * 65536 * 4}


def test_variants_are_of_our_own_kernels():
    values = {
        ("batch", "context"): ((1, 64),), ("q_heads", "kv_heads"): ((4, 2),), "head_size": (64,),
        "dtype": ("fp16",), "layout": ("NHD",), "block_size": (16,), "queries": (1, 4), "window": (0, 32),
    }  # fmt: skip
    points = list(Grid("attention", ("paged-decode", "sdpa-decode"), values).points())
    varied = {(point.op, point.parameters.get("queries"), point.parameters.get("window")) for point in points}
    assert varied == {
        *(("paged-decode", queries, window) for queries in (None, 4) for window in (None, 32)),
        ("sdpa-decode", None, None),
    }


def test_one_pass_and_splits_are_ops_of_their_own():
    points = selection.points(
        "attention", "cpu", False, {"ops": "paged-decode-v1,paged-decode-v2,mla-decode"}
    )
    assert [point.op for point in points[:2]] == ["paged-decode-v1", "paged-decode-v2"]
    (latents, _) = [point for point in points if point.op == "mla-decode"]
    assert "kv_heads" not in latents.parameters


def test_options_that_leave_nothing_are_refused():
    with pytest.raises(PagesimError, match="dtype, ops: together these leave nothing to measure"):
        selection.points("attention", "cpu", False, {"dtype": "fp8", "ops": "sdpa-decode"})
