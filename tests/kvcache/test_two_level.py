"""Jenga's pages: the worked examples of its paper (arXiv 2503.18292v1), and who takes which page."""

from __future__ import annotations

from itertools import pairwise
from math import lcm

import numpy as np
import pytest

from pagesim.allocators import OutOfBlocks
from pagesim.kvcache import Full, JengaManager, KVGroup, SequenceGroup, SlidingWindow, TwoLevelPages

IMAGE, TEXT = 0, 1


def example() -> TwoLevelPages:
    """Return the pages of footnote 1 and Fig. 6: 256 bytes of an image token, 384 of a text token."""
    large = lcm(256, 384)
    assert large == 768
    return TwoLevelPages(3, [large // 256, large // 384])


def one(pages: TwoLevelPages, request: str, of: int) -> int:
    """Take one small page of a type; return its number."""
    return pages.take(request, [int(of == IMAGE), int(of == TEXT)])[of][0]


# The paper's worked examples


@pytest.mark.parametrize(
    "order",
    [
        (IMAGE, IMAGE, IMAGE, TEXT, TEXT, IMAGE),
        (IMAGE, TEXT, IMAGE, IMAGE, IMAGE, TEXT),
    ],
)
def test_four_image_and_two_text_tokens_take_three_large_pages(order: tuple[int, ...]) -> None:
    pages = example()
    taken = [(of, one(pages, "request", of)) for of in order]
    large = {(of, page // (3 if of == IMAGE else 2)) for of, page in taken}
    assert large == {(IMAGE, 0), (TEXT, 1), (IMAGE, 2)}, "Fig. 6"
    assert sorted(page for of, page in taken if of == TEXT) == [2, 3], "P2 and P3 of Fig. 6"
    assert pages.cut * 768 == 2304
    assert sum((256, 384)[of] for of in order) == 1792
    assert pages.empty(IMAGE) * 256 == 2304 - 1792, "two image pages are empty"


def test_with_pages_of_one_size_more_than_half_of_them_is_empty() -> None:
    # PagedAttention on the same request: every token has room in all five layers.
    tokens, layers, token = 6, 5, 128
    allocated, used = tokens * layers * token, 4 * 256 + 2 * 384
    assert (allocated, allocated - used) == (3840, 2048)
    assert (allocated - used) / allocated == pytest.approx(0.533, abs=5e-4)


def test_the_large_page_of_two_and_three_kilobytes_has_six() -> None:
    sizes = [KVGroup(1, Full(), page_bytes=2048), KVGroup(1, SlidingWindow(4), page_bytes=3072)]
    assert JengaManager(5, sizes, longest=10, in_flight=10).page_bytes == 6144


@pytest.mark.parametrize(
    ("layers", "windows", "window", "tokens", "waste"),
    [(26, 13, 4096, 8192, 0.25), (36, 27, 32768, 131072, 0.5625)],
    ids=["Gemma-2", "Ministral"],
)
def test_what_windows_would_waste_is_given_back(
    layers: int, windows: int, window: int, tokens: int, waste: float
) -> None:
    # A page has a byte of each of its layers for each of 16 tokens.
    groups = [
        KVGroup(16, Full(), page_bytes=16 * (layers - windows)),
        KVGroup(16, SlidingWindow(window), page_bytes=16 * windows),
    ]
    memory = JengaManager(100_000, groups, longest=tokens, in_flight=tokens)
    request = SequenceGroup(tokens)
    memory.admit(request, tokens)
    whole = np.dot(memory.pages, memory.group_bytes)
    assert whole == layers * tokens, "PagedAttention keeps all of it"
    memory.free_skipped_blocks(request)
    kept = np.dot(memory.pages, memory.group_bytes)
    assert 1 - kept / whole == pytest.approx(waste, abs=1e-3)


def test_image_tokens_in_all_layers_waste_most_of_the_memory() -> None:
    # Llama 3.2 11B Vision: 32 layers of self and 8 of cross attention; mean lengths of MMMU-pro.
    images, texts = 6193, 43
    needed, allocated = 32 * texts + 8 * images, 40 * (texts + images)
    assert (needed, allocated) == (50_920, 249_440)
    assert 1 - needed / allocated == pytest.approx(0.796, abs=5e-4)


def test_pages_of_one_request_lie_together_and_come_back_whole() -> None:
    # Fig. 8: two requests in turn, four small pages in a large one.
    pages = TwoLevelPages(4, [4])
    taken: dict[str, list[int]] = {"A": [], "B": []}
    for _ in range(4):
        for name in "AB":
            taken[name] += pages.take(name, [1])[0]
    assert {page // 4 for page in taken["A"]} == {0}
    assert {page // 4 for page in taken["B"]} == {1}
    pages.give_back(0, "A", taken["A"])
    assert list(pages.whole) == [2, 3, 0]


# The order in which pages are taken


def test_a_request_takes_its_own_empty_page_then_a_large_one_then_any() -> None:
    pages = TwoLevelPages(2, [3])
    first = pages.take("A", [1])[0]
    assert pages.take("B", [1])[0] == [3], "not one that is kept for A"
    assert pages.take("A", [1])[0] == [1], "kept for A"
    assert pages.take("C", [1])[0] == [2], "no large page is left: any other empty one"
    assert (first, pages.empty(0)) == ([0], 2)


def test_a_large_page_is_whole_again_when_its_last_small_page_is_empty() -> None:
    pages = TwoLevelPages(1, [3, 2])
    a, b = pages.take("A", [1, 0])[0], pages.take("B", [1, 0])[0]
    pages.give_back(0, "A", a)
    assert pages.least_cut([0, 1]) == [0, 1]
    assert not pages.whole
    pages.give_back(0, "B", b)
    assert pages.take("A", [0, 2]) == [[], [0, 1]], "and can be cut for another type"


def test_one_type_leaves_another_the_large_page_that_it_needs() -> None:
    pages = TwoLevelPages(3, [3, 2])
    assert (one(pages, "A", IMAGE), one(pages, "A", TEXT)) == (0, 2)
    # One large page is left, and B needs it for its second text page: its image page is one of A's.
    assert pages.least_cut([1, 2]) == [0, 1]
    assert pages.take("B", [1, 2]) == [[1], [4, 5]]
    pages.check_integrity([[0, 1], [2, 4, 5]])


# The contract


def memory_of(num_blocks: int = 6) -> JengaManager:
    groups = [KVGroup(4, Full(), page_bytes=8), KVGroup(4, SlidingWindow(5), page_bytes=12)]
    return JengaManager(num_blocks, groups, longest=200, in_flight=200)


def test_what_does_not_fit_is_refused_and_changes_nothing() -> None:
    memory = memory_of()
    request = SequenceGroup(60)
    assert memory.blocks_to_admit(request, 60) > memory.free_blocks
    with pytest.raises(OutOfBlocks):
        memory.admit(request, 60)
    memory.check_integrity()
    assert memory.free_blocks == memory.num_blocks == 6


def test_empty_pages_of_others_count_as_room() -> None:
    memory = memory_of(num_blocks=2)
    first, second = SequenceGroup(1), SequenceGroup(4)
    memory.admit(first, 1)
    assert memory.free_blocks == 0
    assert memory.can_admit(second, 4)
    memory.admit(second, 4)
    memory.check_integrity()
    assert not memory.can_admit(SequenceGroup(1), 4 * 2), "two full pages more than are empty"


def test_what_a_window_gives_back_is_taken_again_by_the_same_request() -> None:
    memory = memory_of(num_blocks=40)
    request = SequenceGroup(9)
    memory.admit(request, 9)
    memory.start_decoding(request)
    cut = []
    for _ in range(60):
        memory.allocate_step(1)
        memory.check_integrity()
        cut.append(memory.two_level.cut)
    assert memory.pages == [-(-69 // 4), 2]
    full = -(-18 // 3)
    assert cut[-1] == full + 1, "two small pages of the window stay in one large page"
    assert all(0 <= later - earlier <= 1 for earlier, later in pairwise(cut))
