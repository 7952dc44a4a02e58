"""EngineRequest: a request from its arrival at the head of the queue until it leaves; Family: its samples."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from pagesim.kvcache import SequenceGroup
from pagesim.scheduling.beams import BeamSearch
from pagesim.scheduling.content import Content
from pagesim.setup.compiled import mypyc_attr


class Status(IntEnum):
    """How a request ended."""

    UNFINISHED = 0
    FINISHED = 1
    REJECTED = 2
    UNSCHEDULABLE = 3
    IGNORED = 4
    ABORTED = 5


class Family:
    """The samples of one request, where there are several: they live, wait and move together.

    Args:
        prompt: tokens.
        outputs: tokens that each sample generates.
        beams: the beam search that decides which of them survive, if one does.

    Attributes:
        numbers: which of the request's samples are not over.
        finals: their lengths in the end.
        ended: the samples that were over last.
        generated: tokens of samples that are over.
        beams: the beam search that decides which samples survive; None without one.
        alike: whether all generate as many tokens.
    """

    __slots__ = ("alike", "beams", "ended", "finals", "generated", "numbers")

    def __init__(self, prompt: int, outputs: Sequence[int], beams: BeamSearch | None) -> None:
        self.numbers = list(range(len(outputs)))
        self.finals = [prompt + output for output in outputs]
        self.ended: tuple[int, ...] = ()
        self.generated = 0
        self.beams = beams
        self.alike = min(outputs) == max(outputs)

    def over_at(self, length: int) -> list[int]:
        """Return the places of the samples whose last token makes them ``length`` long."""
        return [place for place, final in enumerate(self.finals) if final <= length]

    def end(self, places: Sequence[int], generated: int) -> None:
        """Let samples go that have generated so many tokens each."""
        self.ended = tuple(self.numbers[place] for place in places)
        self.generated += generated * len(places)
        for place in reversed(places):
            del self.numbers[place], self.finals[place]


@mypyc_attr(allow_interpreted_subclasses=True)
class EngineRequest(SequenceGroup):
    """A request as an engine serves it; what memory keeps of it is in `SequenceGroup`.

    Attributes:
        index: among the requests that the engine expects.
        row: in the trace.
        arrival: ticks.
        last_step: while it decodes, the value of ``BlockManager.steps`` at which a sample's last token is
            generated.
        since: the iteration from which on its memory follows from its length as it does now.
        family: its samples, if there are several.
        content: what its tokens are, where prompts are looked for in a prefix cache.
        cached: tokens of it that were found there when it was admitted last, and those that were loaded.
        loaded: tokens of it that were loaded from another tier since it was admitted last.
    """

    __slots__ = (
        "arrival",
        "cached",
        "family",
        "index",
        "last_step",
        "loaded",
        "row",
        "since",
    )

    def __init__(
        self,
        index: int,
        row: int,
        arrival: int,
        prompt: int,
        output: int,
        family: Family | None = None,
        content: Content | None = None,
    ) -> None:
        super().__init__(prompt, output, 1 if family is None else len(family.numbers))
        self.index = index
        self.row = row
        self.arrival = arrival
        self.last_step = -1
        self.since = 0
        self.family = family
        self.content = content
        self.cached = 0
        self.loaded = 0

    @property
    def final_length(self) -> int:
        """Tokens of the longest sample once it has finished."""
        return self.prompt + self.output

    @property
    def finals(self) -> Sequence[int]:
        """The lengths that its samples will have in the end."""
        return (self.prompt + self.output,) if self.family is None else self.family.finals

    @property
    def generated_before(self) -> int:
        """Tokens of its samples that are over."""
        return 0 if self.family is None else self.family.generated

    @property
    def generated_waiting(self) -> int:
        """Tokens generated so far, of a request that does not run."""
        return self.generated_before + self.samples * (self.length - self.prompt)
