"""Look-up: how many tokens of a request a tier can supply beyond those on the device."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pagesim.kvcache.tiers import WRITING, ChunkRun, Spans, TierChain
from pagesim.scheduling.offload.chunking import OffloadGroup
from pagesim.scheduling.offload.tracked import Tracked
from pagesim.setup.compiled import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class TierLookUp:
    """Looks up requests in a chain of tiers.

    Groups that keep all tokens bound the length first. The other groups then shorten it in turn, largest
    window first, until none does. For a group with a drafter's KV, one more chunk is looked up and then
    dropped; this is repeated only after a group without it has shortened the length.

    Source: vLLM 0.33.0, v1/kv_connector/v1/offloading/scheduler.py, ``get_num_new_matched_tokens``.

    Args:
        groups: the model's KV cache groups.
        chunks: the chain with the chunks that are stored.
    """

    def __init__(self, groups: Sequence[OffloadGroup], chunks: TierChain) -> None:
        self._groups = groups
        self._chunks = chunks
        self._whole = [group for group in groups if group.keeps_all]
        self._others = sorted(
            [group for group in groups if not group.keeps_all], key=lambda group: -group.window
        )
        self._state_chunk = next((group.tokens for group in groups if group.has_states), None)

    def tokens(self, tracked: Tracked, local: int, loading: Spans[bool] | None) -> int | None:
        """Return how many tokens of a request can be loaded.

        Args:
            tracked: the request.
            local: number of its leading tokens on the device.
            loading: chunks being loaded for other requests; None if these are not waited for.

        Returns:
            Tokens of whole chunks beyond the local ones; None if this is unknown until some chunk has been
            written, or has been loaded for another request.
        """
        known = most = tracked.request.length
        if self._others:
            most -= 1
            if self._state_chunk:
                most = most // self._state_chunk * self._state_chunk
        gained, waits = 0, False
        due = [*self._whole, *self._others]
        dropped: set[int] = set()
        while due:
            passed_other = False
            groups, due = due, []
            for group in groups:
                size = group.tokens
                chunks = known // size
                most = min(most, chunks * size)
                if most - local < size:
                    return 0
                further = int(group.group.drafts and group.number not in dropped)
                end = min(-(-most // size) + further, chunks)
                start = local // size
                if group.keeps_all:
                    if self._chunks.readers_of(tracked.segment(group, start), start) is None:
                        return 0  # the usual case: the next chunk was never stored
                    found = self._leading(tracked.runs(group, start, end))
                else:
                    runs = tracked.runs(group, start, end)
                    needed = group.window_before(min(most, (end - further) * size)) + further
                    found = self._window(runs, needed, group.window + further)
                if found == 0:
                    return 0
                if found is None:
                    waits = True
                else:
                    if further:
                        found -= 1
                        dropped.add(group.number)
                    most = min(most, size * (start + found))
                new = most - local
                if new < size:
                    return 0
                if new < gained:
                    if not group.group.drafts:
                        dropped.clear()
                    if waits:
                        waits, due = False, [*self._whole, *self._others]
                    elif passed_other and not due:
                        due = self._others
                passed_other = passed_other or not group.keeps_all
                gained = new
        if waits or (loading is not None and self._is_loading(tracked, local, local + gained, loading)):
            return None
        return gained

    def _leading(self, runs: Iterable[ChunkRun]) -> int | None:
        """Return how many leading chunks are stored; None if one of them is still being written."""
        found, writing = 0, False
        for run in runs:
            for first, end, readers in self._chunks.cut(run):
                if readers is None:
                    return None if writing else found
                found += end - first
                writing = writing or readers == WRITING
        return None if writing else found

    def _window(self, runs: Sequence[ChunkRun], needed: int, elsewhere: int) -> int | None:
        """Return where the last contiguous row that fills a window ends, else the length of the leading row.

        Args:
            runs: runs of consecutive chunks.
            needed: chunks that a window ending with the last of them needs.
            elsewhere: chunks that a window ending anywhere else needs.
        """
        row, writing = 0, False
        for run in reversed(runs):
            for first, end, readers in reversed(self._chunks.cut(run)):
                if readers is None:
                    row, writing, needed = 0, False, elsewhere
                    continue
                writing = writing or readers == WRITING
                if row + end - first >= needed:
                    return None if writing else end + row - runs[0][1]
                row += end - first
        return None if writing else row

    def _is_loading(self, tracked: Tracked, start: int, end: int, loading: Spans[bool]) -> bool:
        """Return whether any chunk that would be loaded is being loaded for another request."""
        for group in self._groups:
            last = -(-end // group.tokens)
            first = start // group.tokens
            if not group.keeps_all:
                first = max(first, last - group.window_before(end))
            if loading.touches(tracked.runs(group, first, last)):
                return True
        return False
