"""Compare the store of a tier with the manager of vLLM 0.33.0's host memory, operation by operation.

Run it with Python files of vLLM 0.33.0, as ``make golden`` unpacks them:

    python tests/oracles/offload_store.py --vllm FOLDER [--operations 10000] [--seeds 12]

It carries out the same random look-ups, loads, stores and ends of requests on both, and stops at the first
that has another answer, evicts other chunks or in another order, or leaves another count of free, evictable
or pending chunks. All that it takes beside pagesim is what pagesim's tests have (torch).
"""

from __future__ import annotations

import argparse
import random
import sys
from itertools import product
from pathlib import Path
from typing import Any

from stubs import StubFinder

from pagesim.kvcache.tiers import EVICTIONS, ChunkRun, ChunkStore, RequestUse, joined, segment, singles

UNUSED = """
    vllm.config vllm.distributed vllm.logger vllm.model_executor vllm.platforms vllm.v1.kv_hints
    vllm.v1.kv_offload.config vllm.v1.metrics
"""
"""What the manager imports and none of these operations calls."""


class Both:
    """A manager of vLLM and a store of a tier, to which the same happens."""

    def __init__(self, eviction: str, threshold: int, seed: int) -> None:
        from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager

        self.drawn = random.Random(seed)
        capacity, tracked = self.drawn.choice((1, 3, 8, 20, 60)), self.drawn.choice((2, 5, 12, 40, 64_000))
        self.manager = CPUOffloadingManager(
            num_chunks=capacity, cache_policy=eviction, store_threshold=threshold, max_tracker_size=tracked
        )
        self.store = ChunkStore(capacity, EVICTIONS[eviction](capacity), threshold=threshold, tracked=tracked)
        self.requests: list[tuple[list[ChunkRun], Any, RequestUse]] = []
        self.begun = 0
        self.evicted = 0
        self.jobs: list[tuple[str, tuple[list[ChunkRun], Any, RequestUse], list[ChunkRun]]] = []

    def step(self) -> None:
        """Do something, and compare."""
        doing, drawn = self.drawn.random(), self.drawn
        if doing < 0.12 or not self.requests:
            self.arrive()
        elif doing < 0.3:
            self.load(drawn.choice(self.requests))
        elif doing < 0.6:
            self.offer(drawn.choice(self.requests))
        elif doing < 0.9 and self.jobs:
            self.complete(self.jobs.pop(drawn.randrange(len(self.jobs))))
        elif doing > 0.9 and len(self.requests) > 4:
            self.finish(drawn.choice(self.requests))
        theirs = self.manager
        assert (self.store.free, self.store.evictable, self.store.writing) == (
            theirs._get_num_free_chunks(),
            theirs._num_evictable_cache_chunks,
            theirs._num_write_pending_chunks,
        )

    def arrive(self) -> None:
        from vllm.v1.kv_offload.base import ReqContext

        self.begun += 1
        length = self.drawn.randint(1, 9)
        prompt, shared = self.drawn.randrange(6), self.drawn.randint(0, length)
        keys = [
            (segment(prompt if place < shared else 1000 + self.begun, 16), place, place + 1)
            for place in range(length)
        ]
        context = ReqContext(req_id=str(self.begun))
        for key in keys:
            context.set_offload_key_position(named(key), 16 * key[2])
        self.manager.on_new_request(context)
        self.requests.append((keys, context, RequestUse()))

    def load(self, request: tuple[list[ChunkRun], Any, RequestUse]) -> None:
        keys, context, use = request
        found = []
        for key in keys:
            ready = bool(self.store.ready(key))
            answer = self.manager.lookup(named(key), context).name
            assert answer == ("HIT" if ready else "HIT_PENDING" if key in self.store else "MISS")
            if not ready:
                break
            found.append(key)
        if found:
            some = found[self.drawn.randrange(len(found)) :]
            self.manager.prepare_load([named(key) for key in some], context)
            self.store.pin(use, joined(some))
            self.jobs.append(("load", request, some))

    def offer(self, request: tuple[list[ChunkRun], Any, RequestUse]) -> None:
        keys, context, use = request
        first = self.drawn.randrange(len(keys))
        some = keys[first : self.drawn.randint(first + 1, len(keys))]
        theirs = self.manager.prepare_store([named(key) for key in some], context)
        ours = self.store.offer(use, joined(some))
        assert (ours is None) == (theirs is None)
        if ours is not None:
            assert [named(key) for key in singles(ours)] == theirs.keys_to_store
            victims = [key for run in self.store.victims for key in reversed(singles([run]))]
            assert [named(key) for key in victims] == theirs.evicted_keys
            self.evicted += len(victims)
            self.jobs.append(("store", request, ours))

    def complete(self, job: tuple[str, tuple[list[ChunkRun], Any, RequestUse], list[ChunkRun]]) -> None:
        kind, (_, context, _), keys = job
        if kind == "load":
            self.manager.complete_load([named(key) for key in singles(keys)], context)
            self.store.unpin(keys)
        else:
            self.manager.complete_store([named(key) for key in singles(keys)], context)
            self.store.written(keys)

    def finish(self, request: tuple[list[ChunkRun], Any, RequestUse]) -> None:
        if all(job[1] is not request for job in self.jobs):
            self.manager.on_request_finished(request[1])
            self.store.finish(request[2])
            self.requests.remove(request)


def named(key: ChunkRun) -> bytes:
    """Return what vLLM calls a chunk."""
    from vllm.v1.kv_offload.base import make_offload_key

    found: bytes = make_offload_key(f"{key[0]}:{key[1]}".encode().ljust(32), 0)
    return found


def main() -> None:
    """Compare, and say how much was the same."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--vllm", type=Path, required=True, help="folder that holds vLLM 0.33.0's package")
    parser.add_argument("--operations", type=int, default=10_000)
    parser.add_argument("--seeds", type=int, default=12)
    asked = parser.parse_args()
    sys.meta_path.insert(0, StubFinder({*UNUSED.split(), "transformers"}))
    sys.path.insert(0, str(asked.vllm.resolve()))
    operations = evicted = 0
    for eviction, threshold, seed in product(("lru", "arc"), (1, 2, 3), range(asked.seeds)):
        both = Both(eviction, threshold, seed)
        for _ in range(asked.operations):
            both.step()
        operations += asked.operations
        evicted += both.evicted
    print(f"{operations:,} operations, {evicted:,} evictions: all equal")


if __name__ == "__main__":
    main()
