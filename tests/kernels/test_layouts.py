"""Layouts: shapes, where an element is, conversion from each to each."""

from __future__ import annotations

import pytest

from pagesim import PagesimError

torch = pytest.importorskip("torch", reason="torch is not installed")

from pagesim.kernels import HND, LAYOUTS, NHD, VLLM, Sizes, convert_layout  # noqa: E402

SIZES = Sizes(num_blocks=5, block_size=8, kv_heads=3, head_dim=80)
BOTH = [(a, b) for a in LAYOUTS for b in LAYOUTS]


def test_shapes_are_those_that_the_names_stand_for():
    assert NHD.shapes(SIZES, 2) == ((5, 8, 3, 80), (5, 8, 3, 80))
    assert HND.shapes(SIZES, 2) == ((5, 3, 8, 80), (5, 3, 8, 80))
    assert VLLM.shapes(SIZES, 2) == ((5, 3, 10, 8, 8), (5, 3, 80, 8))
    assert VLLM.shapes(SIZES, 1)[0] == (5, 3, 5, 8, 16)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float8_e4m3fn], ids=str)
def test_a_cache_tells_its_sizes(layout, dtype):
    for storage in (layout.key, layout.value):
        cache = torch.empty(storage.shape(SIZES, dtype.itemsize), dtype=dtype)
        assert storage.sizes(cache) == SIZES


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_strides_say_where_an_element_is(layout):
    plain = torch.randn(SIZES)
    for storage in (layout.key, layout.value):
        cache = storage.from_plain(plain)
        at = storage.strides(cache)
        for block, token, head, d in [(0, 0, 0, 0), (4, 7, 2, 79), (2, 3, 1, 42)]:
            place = block * at.block + token * at.token + head * at.head
            place += d // at.lanes * at.chunk + d % at.lanes
            assert cache.flatten()[place] == plain[block, token, head, d]


@pytest.mark.parametrize(("source", "target"), BOTH)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float8_e4m3fn], ids=str)
def test_conversion_keeps_every_number(source, target, dtype):
    plain = torch.randn(2, *SIZES).to(dtype)
    key, value = LAYOUTS[source].key.from_plain(plain[0]), LAYOUTS[source].value.from_plain(plain[1])
    new_key, new_value = convert_layout(key, value, source, target)
    assert (tuple(new_key.shape), tuple(new_value.shape)) == LAYOUTS[target].shapes(SIZES, dtype.itemsize)
    assert torch.equal(LAYOUTS[target].key.to_plain(new_key).float(), plain[0].float())
    assert torch.equal(LAYOUTS[target].value.to_plain(new_value).float(), plain[1].float())
    assert new_key.is_contiguous()
    assert new_key.data_ptr() != key.data_ptr()


def test_a_wrong_name_and_wrong_axes_are_said():
    cache = torch.empty(2, 3, 4, 64)
    with pytest.raises(PagesimError, match="layout is 'NDH'; it must be one of NHD, HND, VLLM"):
        convert_layout(cache, cache, "NDH", "NHD")
    with pytest.raises(PagesimError, match=r"key_cache has 4 axes; layout VLLM has \[block, head, chunk"):
        convert_layout(cache, cache, "VLLM", "NHD")


def test_heads_that_are_no_whole_chunks_are_refused_where_keys_lie_in_chunks():
    """Of 72 numbers in 16 bits the chunks of 8 are whole, in a byte those of 16 are not."""
    sizes = Sizes(num_blocks=4, block_size=16, kv_heads=2, head_dim=72)
    assert VLLM.shapes(sizes, 2) == ((4, 2, 9, 16, 8), (4, 2, 72, 16))
    assert NHD.shapes(sizes, 1) == ((4, 16, 2, 72),) * 2
    with pytest.raises(
        PagesimError, match="head_dim is 72; layout VLLM has keys in chunks of 16 elements of 1"
    ):
        VLLM.shapes(sizes, 1)
