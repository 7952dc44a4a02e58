"""Whether requests of known length all find room, one ending after another.

Source: SGLang 0.5.23, ``PrefillAdder.add_one_req_ignore_eos``.
"""

from __future__ import annotations

from collections.abc import Sequence

from pagesim.setup.compiled import mypyc_attr

Stay = tuple[int, int]
"""Tokens that a request is going to generate, and tokens that it gives back in the end."""


@mypyc_attr(allow_interpreted_subclasses=True)
class KnownFuture:
    """The requests of a pass in the order in which they end, where each generates what it asks for.

    The list is made with the first candidate. Later ones are inserted where the real engine does: one that
    ends after all others stands before the last one.
    """

    __slots__ = ("_stays",)

    def __init__(self) -> None:
        self._stays: list[Stay] | None = None

    def has_room(self, candidate: Stay, others: Sequence[Stay], left: int) -> bool:
        """Say whether all find room up to the end.

        Args:
            candidate: who is tried; stays in the list.
            others: who runs or was admitted; asked for with the first candidate only.
            left: tokens that are free now, what the candidate takes at once off.
        """
        stays = self._stays
        if stays is None:
            among = [stay for stay in (candidate, *others) if stay[0] > 0]
            stays = self._stays = sorted(among, key=lambda stay: stay[0])
        elif candidate[0] > 0:
            later = (place for place, stay in enumerate(stays) if candidate[0] <= stay[0])
            stays.insert(next(later, max(0, len(stays) - 1)), candidate)
        freed = 0
        for place, (to_come, held) in enumerate(stays):
            alive = len(stays) - place
            if left + freed - to_come * alive <= alive:
                return False
            freed += held
        return True
