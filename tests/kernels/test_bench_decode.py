"""The bench of shared prefixes and of latents: what is measured, that it is right, and what it moves."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from pagesim import PagesimError  # noqa: E402
from pagesim.kernels.bench import attention, copies  # noqa: E402
from pagesim.kernels.bench.decode_grids import LatentGrid, SharedPrefixGrid  # noqa: E402
from pagesim.kernels.bench.grids import AttentionGrid, CopyGrid  # noqa: E402
from pagesim.kernels.bench.session import Session  # noqa: E402

SMALL = {"heads": ((4, 2),), "head_size": 64, "dtype": "fp32"}


def cases(grid):
    session = Session("cpu")
    return {point.op: attention.prepare(point, session) for point in grid.points()}


def test_a_cascade_stands_beside_plain_decode_over_the_same_tables():
    plain, cascade = SharedPrefixGrid(((3, 64, 48),), **SMALL).points()
    assert (plain.op, cascade.op) == ("shared-decode", "cascade-decode")
    assert plain.parameters == cascade.parameters


def test_both_are_right_and_move_shared_tokens_once():
    made = cases(SharedPrefixGrid(((3, 64, 48),), **SMALL))
    tokens = 48 + 3 * 16
    moved = tokens * 2 * 2 * 64 * 4 + 2 * 3 * 4 * 64 * 4 + 4 * 3 * 4  # keys and values, q and out, tables
    for case in made.values():
        assert case.check() <= 1e-5
        assert case.bytes_moved == moved
        assert case.flops == 4 * 3 * 64 * 4 * 64


def test_decode_over_latents_is_right_and_moves_each_latent_once():
    (case,) = cases(LatentGrid(((2, 40),), q_heads=(3,), block_sizes=(16,), dtype="fp32")).values()
    assert case.check() <= 1e-5
    assert case.bytes_moved == 2 * 40 * 576 * 4 + 2 * 3 * (576 + 512) * 4 + 4 * 2 * 3
    assert case.flops == 2 * 2 * 40 * 3 * (576 + 512)


BYTES = ("fp8_per_token_head", "int8_per_token_head")


@pytest.mark.parametrize("dtype", BYTES)
def test_scales_of_tokens_are_read_and_counted(dtype):
    grid = AttentionGrid(
        shapes=((2, 40),), prompts=((2, 8, 40),), heads=((4, 2),), head_sizes=(64,), dtypes=(dtype,)
    )
    made = cases(grid)
    assert made.keys() == {"paged-decode", "contiguous-decode", "gather-decode", "paged-prefill"}
    for case in made.values():
        assert case.check() <= 2e-3  # queries and outputs in fp16
    vectors = 2 * 2 * 40 * 2 * (64 + 4)  # keys and values of two sequences and heads, each with its scale
    assert made["contiguous-decode"].bytes_moved == vectors + 2 * 2 * 4 * 64 * 2
    assert made["paged-decode"].bytes_moved == vectors + 2 * 2 * 4 * 64 * 2 + 4 * 2 * 3
    assert all(
        case.check() <= 2e-3
        for case in cases(SharedPrefixGrid(((3, 64, 48),), **{**SMALL, "dtype": dtype})).values()
    )


@pytest.mark.parametrize("dtype", BYTES)
def test_a_cache_write_computes_scales(dtype):
    grid = CopyGrid((), (33,), (), kv_heads=(2,), dtypes=(dtype,), ops=("reshape-and-cache",))
    (point,) = grid.points()
    case = copies.prepare(point, Session("cpu"))
    assert 0 < case.check() <= case.tolerance
    assert case.bytes_moved == 2 * 33 * 2 * (128 + 4 + 128 * 2) + 8 * 33


def test_windows_and_several_queries_are_right_and_move_what_is_seen():
    shapes = {"shapes": ((2, 40),), "heads": ((4, 2),), "head_sizes": (64,), "dtypes": ("fp32",)}
    grid = AttentionGrid(**shapes, queries=(3,), windows=(10,), ops=("paged-decode", "contiguous-decode"))
    for case in cases(grid).values():
        assert case.check() <= 1e-5
        assert case.flops == 4 * 2 * 3 * 10 * 4 * 64
    contiguous = cases(grid)["contiguous-decode"]
    tokens, rows = 10 + 2, 3
    assert contiguous.bytes_moved == 2 * (2 * tokens * 2 * 64 + 2 * rows * 4 * 64) * 4
    (case,) = cases(AttentionGrid(prompts=((2, 8, 40),), **{**shapes, "shapes": ()}, windows=(16,))).values()
    assert case.check() <= 1e-5
    assert case.flops == 4 * 2 * 8 * 16 * 4 * 64


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: SharedPrefixGrid(((2, 64, 40),)), "shared is 40; it must be a multiple of block_size, 16"),
        (lambda: SharedPrefixGrid(((2, 64, 80),)), "shared is 80; .* up to context, 64"),
        (lambda: SharedPrefixGrid(((0, 64, 16),)), "batch is 0; it must be from 1"),
        (lambda: LatentGrid(((1, 0),)), "context is 0; it must be from 1"),
        (lambda: LatentGrid(((1, 64),), dtype="fp8"), "dtype is fp8; mla-decode has fp16, bf16 and fp32"),
    ],
)
def test_what_is_off_is_named(make, sentence):
    with pytest.raises(PagesimError, match=sentence):
        make()
