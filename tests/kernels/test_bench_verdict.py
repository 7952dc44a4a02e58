"""What is promised, held against rows; and the figures that rows can fill."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pagesim.kernels.bench import defaults
from pagesim.kernels.bench.defaults import default_points
from pagesim.kernels.bench.plots import figures
from pagesim.kernels.bench.rows import MEASURED, Point, Row
from pagesim.kernels.bench.verdict import Bar, verdict

COPY = 4000.0
LINK = 50.0


def row(point: Point, fraction: float, device: str = "cuda", **measured: object) -> Row:
    """Return the row of a point that reached a fraction of what it is compared with."""
    moved = 10**9
    reference = LINK if point.bench == "swap" else COPY
    return {
        **point.row(),
        **dict.fromkeys(MEASURED),
        "status": "ok",
        "bytes_moved": moved,
        "fraction": fraction,
        "median_s": moved / (fraction * reference * 1e9),
        "machine": {"device": device},
        **measured,
    }


def rows(fractions: dict[str, float]) -> list[Row]:
    """Return a row for every point that ``bench all`` measures on a GPU, at the fraction of its op."""
    points = [point for bench in ("copy", "attention", "swap") for point in default_points(bench, "cuda")]
    made = []
    for point in points:
        if point.op == "swap":
            fraction = fractions[point["strategy"]]
            if point["strategy"] == "copy-each":
                fraction *= min(1, point["piece_bytes"] / (256 << 10))
        else:
            fraction = fractions.get(point.op, 0.5)
        made.append(row(point, fraction))
        if point.op == "paged-decode" and point["dtype"] == "fp8":
            made[-1]["median_s"] /= fractions["fp8"]
    return made


KEPT = {
    "fp8": 1.75,  # times the speed of fp16
    "paged-decode": 0.91,
    "contiguous-decode": 0.91,
    "paged-prefill": 0.36,
    "gather": 0.93,
    "copy-each": 0.8,
    "copy-batch": 0.9,
    "zero-copy": 0.6,
    "reshape-and-cache": 0.81,
    "copy-blocks": 0.82,
}


def by_promise(bars: list[Bar]) -> dict[str, Bar]:
    return {bar.promise.split(",")[0]: bar for bar in bars}


def test_promises_that_are_kept():
    bars = verdict(rows(KEPT))
    assert [bar.kept for bar in bars] == [True, True, True, None, True, True, True, True, True, True]
    found = by_promise(bars)
    assert found["paged decode"].measured == "91.0%, the worst of 20"
    assert found["paged against contiguous"].measured == "100.0%, the worst of 20"
    assert found["block 16 against block 128"].measured == "100.0%, the worst of 4"
    assert found["paged decode against the best peer"].measured == "no peer is installed"
    assert found["paged decode of FP8 caches"].measured == "1.75 times, the least of 1"
    assert found["paged prefill"].measured == "72.0%, the worst of 6"
    assert found["gather swap"].measured == "93.0%, the worst of 4"


@pytest.mark.parametrize(
    ("op", "fraction", "missed"),
    [
        ("paged-decode", 0.895, {"paged decode"}),
        ("fp8", 1.69, {"paged decode of FP8 caches"}),
        ("contiguous-decode", 0.94, {"paged against contiguous"}),
        ("paged-prefill", 0.34, {"paged prefill"}),
        ("gather", 0.89, {"gather swap"}),
        ("reshape-and-cache", 0.79, {"cache write (reshape-and-cache)"}),
        ("copy-blocks", 0.79, {"block copy"}),
    ],
)
def test_a_promise_that_is_missed_is_told(op, fraction, missed):
    bars = by_promise(verdict(rows({**KEPT, op: fraction})))
    assert {name for name, bar in bars.items() if bar.kept is False} == missed


def test_one_slow_block_size_is_enough_to_miss():
    made = rows(KEPT)
    slow = next(r for r in made if r["op"] == "paged-decode" and r["block_size"] == 16 and r["batch"] == 256)
    slow["median_s"] *= 1.06
    bars = by_promise(verdict(made))
    assert bars["block 16 against block 128"].kept is False
    assert bars["block 16 against block 128"].measured == "106.0%, the worst of 4"


def test_the_papers_curve_needs_copies_that_gain_from_larger_blocks():
    made = rows(KEPT)
    assert by_promise(verdict(made))["a copy a block"].measured == (
        "3% of one pinned copy at 1, 80% at 256 tokens a block"
    )
    for each in made:
        if each["strategy"] == "copy-each":
            each["fraction"] = 0.8
    assert by_promise(verdict(made))["a copy a block"].kept is False


def test_the_best_peer_counts_at_small_batches():
    ours = next(
        point
        for point in default_points("attention", "cuda")
        if point.op == "paged-decode" and point["batch"] == 8 and point["block_size"] == 16
    )
    flashinfer, vllm = (replace(ours, op=op) for op in ("flashinfer-decode", "vllm-triton-decode"))
    cuda, tensor = (
        replace(flashinfer, parameters={**flashinfer.parameters, "cores": cores})
        for cores in ("cuda", "tensor")
    )
    made = [row(ours, 0.5), row(cuda, 0.25), row(tensor, 0.55), row(vllm, 0.4)]
    bar = by_promise(verdict(made))["paged decode against the best peer"]
    assert (bar.kept, bar.measured) == (
        True,
        "110.0%, the worst of 1; flashinfer (cuda cores) 50% to 50%, flashinfer (tensor cores) 110% to 110%, "
        "vllm-triton 80% to 80%",
    )
    made[2] = row(tensor, 0.58)
    assert by_promise(verdict(made))["paged decode against the best peer"].kept is False
    made[2]["status"] = "failed"
    assert by_promise(verdict(made))["paged decode against the best peer"].kept is True


def test_a_form_or_splits_that_were_forced_are_no_promise():
    made = [
        {**each, "tile": 64} for each in rows({**KEPT, "paged-decode": 0.1}) if each["op"] == "paged-decode"
    ]
    assert all(bar.kept is None for bar in verdict(made))


@pytest.mark.parametrize("block_size", [16, 128, 256])
def test_every_point_of_a_peer_has_one_of_ours_beside_it(block_size, monkeypatch):
    monkeypatch.setattr(defaults, "peers_found", lambda: ["flashinfer-decode", "flash-attn-2-decode"])
    points = default_points("attention", "cuda")
    shapes = {
        op: {
            (point["batch"], point["context"], point["q_heads"])
            for point in points
            if point.op == op and point["block_size"] == block_size and point["dtype"] == "fp16"
        }
        for op in ("flashinfer-decode", "flash-attn-2-decode", "paged-decode")
    }
    assert len(shapes["flashinfer-decode"]) == 10
    assert shapes["flashinfer-decode"] == shapes["flash-attn-2-decode"] <= shapes["paged-decode"]


def test_nothing_is_promised_of_what_was_not_measured_or_measured_on_a_cpu():
    cpu = [{**each, "machine": {"device": "cpu"}} for each in rows(KEPT)]
    for made in ([], cpu):
        assert all(bar.kept is None for bar in verdict(made))
        assert verdict(made)[0].measured == "not measured"


def test_figures_are_drawn_where_a_line_has_two_points():
    assert figures([]) == {}
    assert set(figures(rows(KEPT))) == {
        "decode_over_block_size", "decode_over_context", "swap_over_piece_size"
    }  # fmt: skip
    one = [each for each in rows(KEPT) if each["block_size"] == 16 and each["batch"] == 64][:1]
    assert figures(one) == {}


def test_figures_show_what_was_measured():
    made = [each for each in rows(KEPT) if each["op"] in ("paged-decode", "contiguous-decode")]
    figure = figures(made)["decode_over_block_size"]
    panels = {axes.get_title(): axes for axes in figure.axes}
    axes = panels["32/8 heads of 128, fp16, NHD"]
    lines = {line.get_label(): line for line in axes.get_lines()}
    line = lines["paged-decode, batch × context 64 × 4096"]
    assert list(line.get_xdata()) == [1, 2, 4, 8, 16, 32, 64, 128, 256]
    assert list(line.get_ydata()) == pytest.approx([91.0] * 9)
    assert list(lines["contiguous-decode, batch × context 64 × 4096"].get_ydata()) == pytest.approx(
        [91.0] * 2
    )
    assert [tick.get_text() for tick in axes.get_xticklabels()] == [str(1 << power) for power in range(9)]
