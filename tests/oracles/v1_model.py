"""Model of vLLM's V1 engine: what it calls an executor, which takes time and answers with numbered tokens."""

from __future__ import annotations

import random
from typing import Any

import v1_config
from options import OptionsV1
from simulated import Clock, StepCost
from traces import Tokens
from v1_log import Log
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput


class Batch:
    """A batch that was launched: a future of its tokens. To wait for it is to move the clock."""

    def __init__(self, model: Model, scheduled: Any, end: float) -> None:
        self.model, self.scheduled, self.end = model, scheduled, end
        requests = model.scheduler.requests
        self.sampling = {
            name
            for name in scheduled.num_scheduled_tokens
            if requests[name].num_computed_tokens >= requests[name].num_tokens
        }

    def done(self) -> bool:
        return self.model.clock.now >= self.end

    def add_done_callback(self, call: Any) -> None:
        """Ignore what vLLM would call on a failure."""

    def result(self) -> ModelRunnerOutput:
        self.model.clock.now = max(self.model.clock.now, self.end)
        return self.model.output(self)


class Model:
    """The executor of an engine.

    Attributes:
        scheduler: the engine's; set once it is there.
        samples: of each request its row of the trace, and which of that row's samples it is.
    """

    scheduler: Any

    def __init__(self, options: OptionsV1, clock: Clock, tokens: Tokens, log: Log) -> None:
        self.options, self.clock, self.tokens, self.log = options, clock, tokens, log
        self.cost = StepCost.parse(options.cost)
        self.samples: dict[str, tuple[int, int]] = {}
        self.busy_until = 0.0
        self.launched: Batch | None = None
        self.drafts: DraftTokenIds | None = None

    def execute_model(self, scheduled: Any, non_block: bool = True) -> Batch:
        """Launch what was just scheduled, behind the batch before it; an empty batch is done at once."""
        tokens = scheduled.total_num_scheduled_tokens
        requests = self.scheduler.requests
        context = sum(requests[name].num_computed_tokens for name in scheduled.num_scheduled_tokens)
        start, step_s = self.clock.now, 0.0
        if tokens:
            start, step_s = max(start, self.busy_until), self.cost.step_s(tokens, context)
            self.busy_until = start + step_s
        self.log.note_schedule(self.scheduler, scheduled, context, start, step_s)
        self.launched = Batch(self, scheduled, start + step_s)
        return self.launched

    def sample_tokens(self, grammar: Any, non_block: bool = True) -> Batch | None:
        return self.launched

    def take_draft_token_ids(self) -> DraftTokenIds | None:
        return self.drafts

    def output(self, batch: Batch) -> ModelRunnerOutput:
        """Return a batch's tokens: one a request that samples, and one more a draft that is accepted."""
        names = list(batch.scheduled.num_scheduled_tokens)
        sampled, drafts = [], []
        for name in names:
            request = self.scheduler.requests.get(name)
            known = end = 0
            if request is not None and name in batch.sampling:
                known = request.num_output_tokens
                drafted = len(batch.scheduled.scheduled_spec_decode_tokens.get(name, ()))
                end = known + 1 + self._accepted(name, drafted, known)
            sampled.append(v1_config.sampled_tokens(self._answer(name, known, end)))
            drafts.append(self._answer(name, end, end + self.options.speculative_tokens) if end else [])
        if self.options.speculative_tokens:
            self.drafts = DraftTokenIds(names, drafts)
        return ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: at for at, name in enumerate(names)},
            sampled_token_ids=sampled,
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
        )

    def _answer(self, name: str, start: int, end: int) -> list[int]:
        """Return some of the tokens that a request generates, from one to before another."""
        row, sample = self.samples[name]
        return [self.tokens.output(row, sample, at) for at in range(start, end)]

    def _accepted(self, name: str, drafted: int, known: int) -> int:
        """Return how many drafts are accepted after ``known`` tokens, by a generator of the request's."""
        row, sample = self.samples[name]
        draws = random.Random(100_003 * (8 * row + sample) + known)
        accepted = 0
        while accepted < drafted and draws.random() < self.options.acceptance:
            accepted += 1
        return accepted
