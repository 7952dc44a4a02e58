"""The scheduler's contract, and the plan that it makes for one iteration."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from pagesim.kvcache import Allocator, Copy
from pagesim.scheduling.dead_ends import DeadEnd
from pagesim.scheduling.group import Arrivals, Group


class Choice(NamedTuple):
    """How a victim was preempted, where that was free to choose.

    Attributes:
        group: the victim, of one sequence.
        swaps: whether it was swapped out; if not, it is recomputed.
        blocks: that it held.
        swap, recompute: what either costs, in ticks.
    """

    group: Group
    swaps: bool
    blocks: int
    swap: int
    recompute: int


class Plan:
    """One iteration: who runs, and what happened to memory on the way.

    Attributes:
        prompts: groups whose whole prompt (or what must be recomputed) runs in this iteration.
        resumed: groups that came back from the swap space.
        recomputed: groups that lost their memory and wait again.
        swapped_out: groups that moved to the swap space.
        choices: how victims were preempted, where that was free to choose.
        stuck: groups that can never go on, and why; they leave with what they have.
        leaked: groups that got memory back which the real engine would never free.
        ignored: requests that the real engine drops when their turn comes.
        incomplete: those of ``prompts`` of which only a first chunk runs.
        completed: groups whose last chunk runs.
        rebased: running groups whose length does not grow by one in this iteration.
        skipped: those of them that decode and get no token.
        caught_up: groups that were skipped and get a token again.
        decodes: whether everybody who runs gets a token; if not, prompts run alone and the others wait.
        launches: whether the model is run even if there is nothing to compute.
        counts_empty: whether an iteration that computes and moves nothing is one all the same, of no length.
        sequences: sequences that the running groups consist of.
        decoding: those of them that get a token and have had one before.
        batched_tokens: tokens as the scheduler's own limit counts them.
        tokens: tokens whose KV is computed, a padded one included.
        context_tokens: over the running sequences, tokens whose KV exists once the iteration has run.
        decode_context: the part of it that belongs to decoding sequences.
        query_key_pairs: over the prompts, pairs of a query and a key that it attends to (causal).
        copies: blocks copied on write; swaps_out, swaps_in: blocks moved.

    What a plan does not say is as it is here, on the class: most plans say little, and there are many.
    """

    prompts: tuple[Group, ...] = ()
    resumed: tuple[Group, ...] = ()
    recomputed: tuple[Group, ...] = ()
    swapped_out: tuple[Group, ...] = ()
    choices: tuple[Choice, ...] = ()
    stuck: tuple[tuple[Group, DeadEnd], ...] = ()
    leaked: tuple[Group, ...] = ()
    ignored: tuple[Group, ...] = ()
    incomplete: tuple[Group, ...] = ()
    completed: tuple[Group, ...] = ()
    rebased: tuple[Group, ...] = ()
    skipped: tuple[Group, ...] = ()
    caught_up: tuple[Group, ...] = ()
    decodes = True
    launches = False
    counts_empty = False
    sequences = 0
    decoding = 0
    batched_tokens = 0
    tokens = 0
    context_tokens = 0
    decode_context = 0
    query_key_pairs = 0
    copies: tuple[Copy, ...] = ()
    swaps_out: tuple[Copy, ...] = ()
    swaps_in: tuple[Copy, ...] = ()

    @property
    def is_iteration(self) -> bool:
        """Whether anything is computed or moved; if not, the plan takes no time and leaves no record."""
        if self.tokens or self.swaps_out or self.swaps_in:
            return True
        return self.counts_empty and bool(self.ignored or self.recomputed)


class Scheduler(Protocol):
    """Decides, iteration by iteration, who runs; applies its decisions to the memory as it takes them.

    Decisions within an iteration depend on what the earlier ones left free, so a scheduler works on the
    allocator itself, as the real ones do, and reports what it did.

    The engine's loop is: ``plan(now)``; if that is an iteration, time passes; ``steady()`` says for how many
    further iterations nothing would be decided, and ``advance(steps)`` takes them at once; ``finish()``
    collects who has generated the last token.
    """

    memory: Allocator  # empty at first
    running_groups: int
    running_sequences: int

    @property
    def waiting(self) -> int:
        """Requests that have arrived and do not run and are not swapped out."""

    @property
    def swapped(self) -> int:
        """Groups in the swap space."""

    @property
    def next_arrival(self) -> int | None:
        """When the next request arrives, in ticks; None when no more will."""

    @property
    def next_context(self) -> int:
        """Tokens that the running sequences will hold in the next iteration if it only decodes."""

    def accepts(self, prompt_tokens: int, output_tokens: int, samples: int) -> bool:
        """Say whether an empty system could ever serve such a request; if not, it is turned away."""

    def expect(self, arrivals: Arrivals) -> None:
        """Say, once and before anything else happens, who is going to arrive.

        Raises:
            PagesimError: the scheduler does not serve such requests under its options.
        """

    def announce(self) -> None:
        """Say that one more request has been added to the end of those that are expected."""

    def plan(self, now: int) -> Plan:
        """Let arrivals up to ``now`` in and decide the next iteration."""

    def steady(self) -> int:
        """Return for how many iterations after the planned one no decision can differ, if nobody arrives."""

    def undisturbed(self, now: int) -> int:
        """Let arrivals up to ``now`` in; say for how many iterations everybody who runs just goes on.

        Nobody is admitted in these iterations, nobody makes room and nobody is over: they need no plan, and
        ``advance`` takes them. 0 if the next must be planned.
        """

    @property
    def arrival_matters(self) -> bool:
        """Whether the next arrival could change a decision before somebody finishes."""

    def advance(self, steps: int) -> None:
        """Run that many iterations (at most what ``steady`` said) like the planned one, prompts left out."""

    def abort(self, row: int, now: int) -> int:
        """A request's client goes away: free what it holds and forget it, wherever it is.

        Args:
            row: of the trace; it arrived by ``now`` and is not over.
            now: ticks; between two iterations.

        Returns:
            Tokens that were generated for it in vain.

        Raises:
            PagesimError: the scheduler cannot let anybody go.
        """

    def finish(self) -> list[Group]:
        """End the iteration: free the samples whose last token was generated, and fork beams.

        Returns:
            The groups of these samples, in the order in which they ran; those without samples are over.
        """

    def running(self) -> Iterable[Group]:
        """Return the running groups in their order."""

    def blocked_externally(self) -> bool:
        """Say whether free memory would hold the head of the queue and only no placement exists."""
