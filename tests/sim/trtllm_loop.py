"""TensorRT-LLM's loop as docs/explanation/trtllm.md tells it: one list, walked from its front in every step.

Slow and plain: it knows nothing of pagesim. Steps take one unit of time; arrivals are whole units.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Job:
    """A request; the numbers of the rules are those of docs/explanation/trtllm.md."""

    number: int
    arrival: int
    prompt: int
    output: int
    asked: int
    context: int = 0  # tokens that must run before the next one is sampled
    position: int = 0  # those that have run
    generated: int = 0
    blocks: int = 0
    decodes: bool = False
    pauses: int = 0
    first_token: int = -1
    finish: int = -1

    @property
    def has_started(self) -> bool:
        return self.decodes or self.position > 0

    @property
    def rests(self) -> bool:
        """Whether its last token is in flight."""
        return self.generated == self.output


@dataclass
class Loop:
    """An engine; ``rows`` has of each step its start, who has started, who waits, its tokens, and pauses."""

    blocks: int
    size: int
    seats: int
    tokens: int
    chunks: bool
    policy: str
    chunking: str
    overlap: bool
    jobs: list[Job]
    now: int = 0
    active: list[Job] = field(default_factory=list)
    rows: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    overtaken: int = 0  # steps in which one that has started stands behind one that has not

    def whole(self, tokens: int) -> int:
        return -(-tokens // self.size)

    @property
    def free(self) -> int:
        return self.blocks - sum(job.blocks for job in self.active)

    # Rules 4 and 5: who fits

    def to_completion(self, job: Job) -> int:
        return self.whole(job.prompt + job.asked) - job.blocks

    def no_evict(self) -> list[Job]:
        free = self.free
        fitting = [job for job in self.active if job.decodes]
        free -= sum(self.to_completion(job) for job in fitting)
        for job in self.active:
            if job.decodes:
                continue
            if len(fitting) >= self.seats or self.to_completion(job) > free:
                break
            free -= self.to_completion(job)
            fitting.append(job)
        return sorted(fitting, key=lambda job: job.number)

    def one_step(self, job: Job) -> int:
        if job.rests:
            return 0
        if job.decodes:
            held = job.prompt + job.generated - 1
            return self.whole(held + 1) - self.whole(held)
        return 0 if job.has_started else self.whole(job.context)

    def max_utilization(self) -> tuple[list[Job], list[Job]]:
        fitting: list[Job] = []
        paused: list[Job] = []
        free, end, place = self.free, len(self.active), 0
        while place < end:
            job = self.active[place]
            if len(fitting) < self.seats and self.one_step(job) <= free:
                free -= self.one_step(job)
                fitting.append(job)
                place += 1
                continue
            started = [
                at for at in range(place, end) if self.active[at].has_started and not self.active[at].rests
            ]
            if not started:
                break
            end = started[-1]
            free += self.active[end].blocks
            paused.append(self.active[end])
        return fitting, paused

    # Rules 6 to 8: who runs

    def micro_batch(self, fitting: list[Job]) -> dict[int, int]:
        """Return the tokens of each that runs, by number."""
        runs: dict[int, int] = {}
        contexts: list[Job] = []
        used = 0
        for job in fitting:
            if job.rests:
                continue
            if job.decodes:
                runs[job.number] = 1
                used += 1
            elif self.chunks:
                contexts.append(job)
            elif used + job.context > self.tokens:
                break
            else:
                runs[job.number] = job.context
                used += job.context
        left = {job.number: job.context - job.position for job in contexts}
        budget = self.tokens - used
        if sum(left.values()) <= budget:
            return runs | left
        shares = dict.fromkeys(left, 0)
        if self.chunking == "FIRST_COME_FIRST_SERVED":
            for number, wanted in left.items():
                shares[number] = wanted if wanted <= budget else budget - budget % self.size
                budget -= shares[number]
        else:
            before = -1
            while sum(shares.values()) != before:
                before = sum(shares.values())
                for number, wanted in left.items():
                    more = min(self.size, wanted - shares[number])
                    if sum(shares.values()) + more <= budget:
                        shares[number] += more
        return runs | {number: tokens for number, tokens in shares.items() if tokens}

    # A step

    def run(self) -> None:
        coming = list(self.jobs)
        # When each batch in flight is over, and whose last tokens it gives.
        flights: list[tuple[int, list[Job]]] = []
        while coming or self.active:
            while coming and coming[0].arrival <= self.now and len(self.active) < self.seats:
                self.active.append(coming.pop(0))
            runs, paused = self.plan()
            if runs:
                start = max(self.now, flights[-1][0]) if flights else self.now
                unseen = sum(job.arrival <= self.now for job in coming)
                flights.append((start + 1, self.step(runs, start, unseen, paused)))
            if flights and (len(flights) > self.overlap or not runs):
                end, over = flights.pop(0)
                self.now = max(self.now, end)
                self.active = [job for job in self.active if job not in over]
            elif not runs:
                self.now = coming[0].arrival

    def plan(self) -> tuple[dict[int, int], int]:
        """Return the tokens of each that runs, by number, and how many are paused."""
        paused: list[Job] = []
        if self.policy == "MAX_UTILIZATION":
            fitting, paused = self.max_utilization()
        else:
            fitting = self.no_evict()
        runs = self.micro_batch(fitting)
        for job in paused:
            job.context, job.position = job.prompt + job.generated, 0
            job.blocks, job.decodes = 0, False
            job.pauses += 1
        return runs, len(paused)

    def step(self, runs: dict[int, int], start: int, unseen: int, paused: int) -> list[Job]:
        """Launch a batch; return those whose last token it gives."""
        for job in self.active:
            if job.number not in runs:
                continue
            if job.decodes:
                job.blocks = self.whole(job.prompt + job.generated)
            else:
                job.blocks = self.whole(job.context)
                job.position += runs[job.number]
        assert self.free >= 0
        started = [job.has_started for job in self.active]
        self.overtaken += started != sorted(started, reverse=True)
        self.rows.append(
            (start, sum(started), len(started) - sum(started) + unseen, sum(runs.values()), paused)
        )
        over = []
        for job in self.active:
            if job.number not in runs or (not job.decodes and job.position < job.context):
                continue
            job.decodes = True
            job.generated += 1
            if job.first_token < 0:
                job.first_token = start + 1
            if job.rests:
                job.finish = start + 1
                over.append(job)
        return over
