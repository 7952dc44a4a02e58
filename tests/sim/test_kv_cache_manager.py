"""Tests of KVCacheManager: who is given blocks, by hand-counted blocks of 4 tokens."""

from __future__ import annotations

import pytest

from pagesim.kvcache import BlockManager, PrefixManager
from pagesim.scheduling.request import EngineRequest
from pagesim.scheduling.vllm_v1.kv_cache_manager import KVCacheManager


def request(prompt: int) -> EngineRequest:
    return EngineRequest(0, 0, 0, prompt, 10)


def manager(blocks: int, *, full_isl: bool = True) -> tuple[KVCacheManager, BlockManager]:
    memory = PrefixManager(blocks, 4)
    return KVCacheManager(memory, None, full_isl=full_isl), memory


def test_a_request_gets_blocks_for_the_tokens_of_its_step_and_no_more():
    serves, memory = manager(10)
    first = request(20)
    assert serves.admit(first, 6, spare=0)
    assert memory.free_blocks == 8  # 6 tokens are in two blocks
    assert serves.allocate_slots(first, 8)
    assert memory.free_blocks == 8  # the second one has room for two more
    assert serves.allocate_slots(first, 9)
    assert memory.free_blocks == 7


def test_a_running_request_that_finds_no_block_changes_nothing():
    serves, memory = manager(3)
    first = request(12)
    assert serves.admit(first, 12, spare=0)
    assert not serves.allocate_slots(first, 13)
    assert (memory.free_blocks, first.tokens) == (0, 12)


@pytest.mark.parametrize(("full_isl", "is_admitted"), [(True, False), (False, True)])
def test_a_waiting_request_must_fit_whole_where_its_whole_length_is_asked_for(full_isl, is_admitted):
    serves, memory = manager(4, full_isl=full_isl)
    assert serves.admit(request(20), 8, spare=0) is is_admitted
    assert memory.free_blocks == (2 if is_admitted else 4)


def test_an_admission_leaves_the_watermark_free():
    serves, memory = manager(5)
    assert not serves.admit(request(16), 16, spare=2)
    assert serves.admit(request(16), 16, spare=1)
    assert memory.free_blocks == 1


def test_what_is_reserved_for_others_is_not_given_to_a_request_that_is_loaded():
    serves, memory = manager(6)
    loaded = request(16)
    assert not serves.admit(loaded, 12, spare=0, external=8, reserved=4)  # 3 blocks and 4 of 6
    assert (memory.free_blocks, loaded.uncommitted_tokens) == (6, 0)
    assert serves.admit(loaded, 12, spare=0, external=8, reserved=3)
    assert (memory.free_blocks, loaded.uncommitted_tokens) == (3, 8)


def test_a_request_that_was_loaded_runs_only_if_all_of_it_fits_beside_the_watermark():
    serves, memory = manager(5)
    loaded = request(16)
    assert serves.admit(loaded, 8, spare=0, external=8)
    loaded.uncommitted_tokens = 0
    assert not serves.allocate_slots(loaded, 12, spare=2, is_waiting=True)  # two blocks more, and two
    assert serves.allocate_slots(loaded, 12, spare=1, is_waiting=True)
    assert memory.free_blocks == 2
