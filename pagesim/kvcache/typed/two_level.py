"""Two levels of pages: large pages of one size, each split on demand into small pages of one type.

Source: Jenga (arXiv 2503.18292v1), sections 4.1 and 4.3; where the paper leaves something open, a comment
says what is done here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class _Type:
    """The small pages of one type, by number; those of a large page are consecutive.

    Attributes:
        ratio: small pages per large page.
        used: number of used small pages in each large page that is split into this type.
        empty: empty small pages, each with the request it is kept for; the one empty longest comes first.
        kept: empty small pages by the request they are kept for.
    """

    ratio: int
    used: dict[int, int] = field(default_factory=dict)
    empty: dict[int, Hashable] = field(default_factory=dict)
    kept: dict[Hashable, dict[int, None]] = field(default_factory=dict)

    def keep(self, page: int, request: Hashable) -> None:
        self.empty[page] = request
        self.kept.setdefault(request, {})[page] = None

    def use(self, page: int) -> None:
        request = self.empty.pop(page)
        pages = self.kept[request]
        del pages[page]
        if not pages:
            del self.kept[request]
        self.used[page // self.ratio] += 1


class TwoLevelPages:
    """Large pages, and the small pages of several types that they are split into.

    A request first uses an empty small page that is kept for it. Otherwise it splits a large page, whose
    small pages are then kept for it; failing that, it uses any empty small page of the type. A large page
    becomes whole again when none of its small pages is used.

    Args:
        large: number of large pages.
        ratios: small pages per large page, for each type.

    Attributes:
        large: number of large pages, split or whole.
        whole: large pages that are not split, in allocation order.
    """

    __slots__ = ("_types", "large", "whole")

    def __init__(self, large: int, ratios: Sequence[int]) -> None:
        self.large = large
        self.whole = deque(range(large))
        self._types = [_Type(ratio) for ratio in ratios]

    @property
    def cut(self) -> int:
        """Number of large pages that are split."""
        return self.large - len(self.whole)

    def empty(self, number: int) -> int:
        """Return the number of empty small pages of a type, in split large pages."""
        return len(self._types[number].empty)

    def least_cut(self, pages: Sequence[int]) -> list[int]:
        """Return the large pages of each type that one request must split to get these small pages."""
        return [
            max(0, -(-(wanted - len(each.empty)) // each.ratio))
            for wanted, each in zip(pages, self._types, strict=True)
        ]

    def whole_for(self, pages: Sequence[int]) -> list[int]:
        """Return the large pages of each type that these small pages fill."""
        return [-(-wanted // each.ratio) for wanted, each in zip(pages, self._types, strict=True)]

    def take(self, request: Hashable, pages: Sequence[int]) -> list[list[int]]:
        """Allocate small pages of each type; by `least_cut`, there is room for them.

        The paper does not say how types share scarce large pages. Here a request splits as many as its pages
        would fill, if there are enough; else only as many as it must, so no type takes what another needs.
        """
        quotas = self.whole_for(pages)
        if sum(quotas) > len(self.whole):
            quotas = self.least_cut(pages)
        return [
            self._take(each, request, wanted, quota)
            for each, wanted, quota in zip(self._types, pages, quotas, strict=True)
        ]

    def give_back(self, number: int, request: Hashable, pages: Sequence[int]) -> None:
        """Free small pages of a type; they stay kept for their request while their large page is in use."""
        each = self._types[number]
        for page in pages:
            large = page // each.ratio
            each.used[large] -= 1
            each.keep(page, request)
            if not each.used[large]:
                del each.used[large]
                for empty in range(large * each.ratio, (large + 1) * each.ratio):
                    kept = each.kept[each.empty[empty]]
                    del kept[empty]
                    if not kept:
                        del each.kept[each.empty[empty]]
                    del each.empty[empty]
                self.whole.append(large)

    def _take(self, each: _Type, request: Hashable, wanted: int, quota: int) -> list[int]:
        taken = []
        for _ in range(wanted):
            own = each.kept.get(request)
            if not own and quota:
                quota -= 1
                large = self.whole.popleft()
                each.used[large] = 0
                for page in range(large * each.ratio, (large + 1) * each.ratio):
                    each.keep(page, request)
                own = each.kept[request]
            # The paper allows any page; here it is the one that has been empty longest.
            page = next(iter(own or each.empty))
            each.use(page)
            taken.append(page)
        return taken

    def check_integrity(self, held: Sequence[Sequence[int]]) -> None:
        """Raise AssertionError unless exactly these small pages of each type are used, each once."""
        cut: list[int] = []
        for each, pages in zip(self._types, held, strict=True):
            assert len(set(pages)) == len(pages), "a small page is held twice"
            of_large = dict.fromkeys(each.used, 0)
            for page in pages:
                of_large[page // each.ratio] += 1
            assert of_large == each.used, "used small pages are miscounted"
            assert all(of_large.values()), "a large page stays cut though all its small pages are empty"
            every = {large * each.ratio + at for large in each.used for at in range(each.ratio)}
            assert set(each.empty) == every - set(pages), "empty small pages are lost"
            kept = {page: request for request, own in each.kept.items() for page in own}
            assert kept == each.empty, "empty pages are kept for others than they say"
            cut += each.used
        assert sorted([*cut, *self.whole]) == list(range(self.large)), "large pages are lost, or cut twice"
