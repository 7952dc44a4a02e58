"""A slow decoder: vLLM's waiting loop for pulled prompts, written once more, step by step and block by block.

It stands for one replica without prefix caching, one batch in flight, and a link that takes no time.
"""

from __future__ import annotations

from dataclasses import dataclass, field

BLOCK = 16
NAP = 10**9


@dataclass
class Sequence:
    """A request: tokens that it must have computed, and those whose KV it holds."""

    row: int
    prompt: int
    output: int
    computed: int = 0
    generated: int = 0
    blocks: int = 0
    pulled: bool = False

    @property
    def length(self) -> int:
        return self.prompt + self.generated


@dataclass
class SlowDecoder:
    """Serves requests that arrive at given ticks.

    Attributes:
        first_token, finish: ticks by row.
        preemptions: how many there were.
    """

    num_blocks: int
    max_num_seqs: int
    budget: int
    step: int
    token: int
    first_token: dict[int, int] = field(default_factory=dict)
    finish: dict[int, int] = field(default_factory=dict)
    preemptions: int = 0

    def __post_init__(self) -> None:
        self.waiting: list[Sequence] = []
        self.landing: list[Sequence] = []
        self.reported: list[Sequence] = []
        self.running: list[Sequence] = []

    def serve(self, arrivals: list[tuple[int, int, int, int]]) -> None:
        """Serve (ticks, row, prompt, output) in order."""
        now, coming = 0, list(arrivals)
        while coming or self.waiting or self.landing or self.running:
            if not (self.waiting or self.landing or self.running):
                now = max(now, coming[0][0])
            while coming and coming[0][0] <= now:
                _, row, prompt, output = coming.pop(0)
                self.waiting.append(Sequence(row, prompt, output))
            tokens = self.schedule()
            if not tokens:
                self.reported = list(self.landing)
                now += NAP
                continue
            now += self.step + self.token * sum(tokens.values())
            # What was posted in this step, or before it, is there and reported with its tokens.
            self.reported = list(self.landing)
            self.update(tokens, now)

    @property
    def free(self) -> int:
        return self.num_blocks - sum(each.blocks for each in (*self.landing, *self.running))

    def schedule(self) -> dict[int, int]:
        """Return the tokens that each row computes in the next step."""
        tokens: dict[int, int] = {}
        budget, preempted = self.budget, False
        place = 0
        while place < len(self.running) and budget > 0:
            request = self.running[place]
            place += 1
            count = min(request.length - request.computed, budget)
            wanted = -(-(request.computed + count) // BLOCK) - request.blocks
            while wanted > self.free and request in self.running:
                victim = self.running.pop()
                victim.blocks = victim.computed = 0
                self.waiting.insert(0, victim)
                self.preemptions += 1
                preempted = True
            if request not in self.running:
                break
            request.blocks += wanted
            tokens[request.row] = count
            budget -= count
        if preempted:
            return tokens
        for request in list(self.landing):
            if budget <= 0 or len(self.running) >= self.max_num_seqs:
                return tokens
            if request in self.reported:
                self.landing.remove(request)
                request.computed = request.prompt - 1
                self.running.append(request)
                tokens[request.row] = 1
                budget -= 1
        while self.waiting and budget > 0 and len(self.running) < self.max_num_seqs:
            request = self.waiting[0]
            whole = -(-request.length // BLOCK)
            if not request.pulled:
                missing = sum(
                    -(-each.length // BLOCK) - each.blocks
                    for each in self.running
                    if each.computed + tokens.get(each.row, 0) < each.length
                )
                if whole > self.free - missing:
                    break
                request.pulled = True
                request.blocks = whole
                self.landing.append(self.waiting.pop(0))
                continue
            if whole > self.free:
                break
            count = min(request.length, budget)
            request.blocks = -(-count // BLOCK)
            self.running.append(self.waiting.pop(0))
            tokens[request.row] = count
            budget -= count
        return tokens

    def update(self, tokens: dict[int, int], now: int) -> None:
        """Give tokens to the rows that computed all that they have."""
        for request in list(self.running):
            request.computed += tokens.get(request.row, 0)
            if request.row not in tokens or request.computed < request.length:
                continue
            request.generated += 1
            self.first_token.setdefault(request.row, now)
            if request.generated == request.output:
                self.finish[request.row] = now
                self.running.remove(request)
