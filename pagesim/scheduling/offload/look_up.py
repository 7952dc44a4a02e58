"""Look-up: how many tokens of a request a tier can bring, beyond those that the device has."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pagesim.kvcache.tiers import ChunkKey, ChunkStore
from pagesim.scheduling.offload.chunking import OffloadGroup
from pagesim.scheduling.offload.tracked import Tracked


class LookUp:
    """Looks requests up in a tier.

    Groups that keep all tokens bound the length first. Then each of the others makes it shorter in turn, the
    one with the largest window first, until none does.

    Source: vLLM 0.33.0, v1/kv_connector/v1/offloading/scheduler.py, ``get_num_new_matched_tokens``.

    Args:
        groups: of the model.
        store: of the tier.
    """

    def __init__(self, groups: Sequence[OffloadGroup], store: ChunkStore) -> None:
        self._groups = groups
        self._store = store
        self._whole = [group for group in groups if group.keeps_all]
        self._others = sorted(
            [group for group in groups if not group.keeps_all], key=lambda group: -group.window
        )
        self._state_chunk = next((group.tokens for group in groups if group.has_states), None)

    def tokens(self, tracked: Tracked, local: int, loading: Collection[ChunkKey]) -> int | None:
        """Return how many tokens of a request can be loaded.

        Args:
            tracked: the request.
            local: its leading tokens that the device has.
            loading: chunks that other requests load.

        Returns:
            Whole chunks' tokens beyond the local ones; None where that is known only when some chunk has been
            written, or loaded by another request.
        """
        known = most = tracked.request.length
        if self._others:
            most -= 1
            if self._state_chunk:
                most = most // self._state_chunk * self._state_chunk
        gained, waits = 0, False
        due = [*self._whole, *self._others]
        while due:
            passed_other = False
            groups, due = due, []
            for group in groups:
                size = group.tokens
                chunks = known // size
                most = min(most, chunks * size)
                if most - local < size:
                    return 0
                end = min(-(-most // size), chunks)
                start = local // size
                keys = tracked.keys(group, start, end)
                if group.keeps_all:
                    found = self._leading(keys)
                else:
                    found = self._window(keys, group, group.window_before(min(most, end * size)))
                if found == 0:
                    return 0
                if found is None:
                    waits = True
                else:
                    most = min(most, size * (start + found))
                new = most - local
                if new < size:
                    return 0
                if new < gained:
                    if waits:
                        waits, due = False, [*self._whole, *self._others]
                    elif passed_other and not due:
                        due = self._others
                passed_other = passed_other or not group.keeps_all
                gained = new
        if waits or self._is_loading(tracked, local, local + gained, loading):
            return None
        return gained

    def _leading(self, keys: Sequence[ChunkKey]) -> int | None:
        """Return how many leading chunks are there; None where one of them is being written."""
        store, found, writing = self._store, 0, False
        for key in keys:
            if key not in store:
                break
            found += 1
            writing = writing or store.is_writing(key)
        return None if writing else found

    def _window(self, keys: Sequence[ChunkKey], group: OffloadGroup, needed: int) -> int | None:
        """Return where the last run of as many chunks ends as a window needs, or how many lead.

        Args:
            keys: of the chunks.
            group: of which they are.
            needed: chunks that a window needs which ends with the last of them.
        """
        store, run, writing = self._store, 0, False
        for place in range(len(keys) - 1, -1, -1):
            if keys[place] in store:
                run += 1
                writing = writing or store.is_writing(keys[place])
            else:
                run, writing, needed = 0, False, group.window
            if run == needed:
                return None if writing else place + needed
        return None if writing else run

    def _is_loading(self, tracked: Tracked, start: int, end: int, loading: Collection[ChunkKey]) -> bool:
        """Say whether any chunk that would be loaded is being loaded for another request."""
        if not loading:
            return False
        for group in self._groups:
            keys = tracked.keys(group, start // group.tokens, -(-end // group.tokens))
            if not group.keeps_all:
                keys = keys[-group.window_before(end) :]
            if any(key in loading for key in keys):
                return True
        return False
