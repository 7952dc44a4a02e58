"""Driver of vLLM's first engine, 0.1.7 to 0.2.7.

The release's own code: the engine's step with its forks and stops, the scheduler, the block manager, the
sequences. Ours: the clock and the workers, which take the time of an affine cost and answer with tokens.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import vllm.core.scheduler as scheduler_module
import vllm.engine.llm_engine as engine_module
import vllm.sequence as sequence_module
from options import OptionsV0
from simulated import Clock, StepCost, check_progress
from traces import Row
from vllm.core.scheduler import PreemptionMode, Scheduler
from vllm.engine.llm_engine import LLMEngine
from vllm.sampling_params import SamplingParams
from vllm.sequence import SequenceStatus
from vllm.utils import Counter

END, OTHER = 2, 100
"""The token that ends a sample, and every other one."""


class Config:
    """A log's options under the names of vLLM's configuration of the scheduler and the cache."""

    max_paddings = 256  # tokens of padding in a prefill, of 0.2.7; the default
    sliding_window = None

    def __init__(self, options: OptionsV0) -> None:
        self.max_num_batched_tokens = options.max_num_batched_tokens
        self.max_num_seqs = options.max_num_seqs
        self.max_model_len = options.max_model_len
        self.block_size = options.block_size
        self.num_gpu_blocks = options.num_blocks
        self.num_cpu_blocks = options.cpu_blocks


class LoggedScheduler(Scheduler):
    """The release's scheduler, which logs a row a schedule.

    Attributes:
        steps: the log's rows.
        last: what it scheduled last, as vLLM's ``SchedulerOutputs``.
    """

    def __init__(self, options: OptionsV0, clock: Clock, requests: dict[str, dict[str, Any]]) -> None:
        super().__init__(Config(options), Config(options))
        self.options, self.clock, self.requests = options, clock, requests
        self.cost = StepCost.parse(options.cost)
        self.steps: list[dict[str, Any]] = []
        self.preempted = 0

    def _preempt(self, group: Any, blocks_to_swap_out: Any, preemption_mode: Any = None) -> None:
        if self.options.preemption is not None:
            preemption_mode = PreemptionMode[self.options.preemption.upper()]
        swapped = len(self.swapped)
        super()._preempt(group, blocks_to_swap_out, preemption_mode)
        self.preempted += 1
        request = self.requests[group.request_id]
        request["recomputes" if len(self.swapped) == swapped else "swaps"] += 1

    def schedule(self) -> Any:
        self.preempted = 0
        metadata, scheduled = super().schedule()
        groups = scheduled.scheduled_seq_groups
        running = [sequence for group in groups for sequence in running_of(group)]
        context = sum(sequence.get_len() for sequence in running)
        tokens = scheduled.num_batched_tokens
        self.last, self.step_s = scheduled, 0.0
        if not scheduled.is_empty():
            self.step_s = self.cost.step_s(tokens, context)
        for group in groups:
            request = self.requests[group.request_id]
            if request["first_scheduled_s"] is None:
                request["first_scheduled_s"] = self.clock.now
        for group in scheduled.ignored_seq_groups:
            self.requests[group.request_id].update(status="ignored", finish_s=self.clock.now)
        row = {
            "step": len(self.steps),
            "clock": self.clock.now,
            "num_running": len(self.running),
            "num_running_seqs": sum(len(running_of(group)) for group in self.running),
            "num_waiting": len(self.waiting),
            "num_swapped": len(self.swapped),
            "free_gpu_blocks": self.block_manager.get_num_free_gpu_blocks(),
            "free_cpu_blocks": self.block_manager.get_num_free_cpu_blocks(),
            "num_batched_tokens": tokens,
            "num_tokens": context if scheduled.prompt_run else len(running),
            "sum_context_tokens": context,
            "step_s": self.step_s,
            "blocks_swapped_in": len(scheduled.blocks_to_swap_in),
            "blocks_swapped_out": len(scheduled.blocks_to_swap_out),
            "blocks_copied": sum(map(len, scheduled.blocks_to_copy.values())),
            "num_preempted": self.preempted,
        }
        self.steps.append(row)
        return metadata, scheduled


class Engine(LLMEngine):
    """The release's engine, set up without workers: its own step, and answers of ours."""

    def __init__(self, options: OptionsV0, clock: Clock, rows: list[Row]) -> None:
        self.rows = {str(row.row): row for row in rows}
        self.requests = {
            str(row.row): {
                "request_id": row.row,
                "arrival_s": row.arrival_s,
                "prompt_tokens": row.prompt_tokens,
                "output_tokens": "",
                "n": len(row.output_tokens),
                "first_scheduled_s": None,
                "first_token_s": None,
                "finish_s": None,
                "recomputes": 0,
                "swaps": 0,
                "status": "unfinished",
            }
            for row in sorted(rows, key=lambda row: row.row)
        }
        self.clock = clock
        self.scheduler_config = self.cache_config = Config(options)
        self.scheduler = LoggedScheduler(options, clock, self.requests)
        self.seq_counter = Counter()
        self.tokenizer = type("Tokenizer", (), {"eos_token_id": END})
        self.log_stats = False

    def send(self, row: Row) -> None:
        """Send a row of the trace: one request, whose samples vLLM forks."""
        samples = len(row.output_tokens)
        sampling = SamplingParams(n=samples, best_of=samples, max_tokens=max(row.output_tokens))
        prompt = [OTHER] * row.prompt_tokens
        self.add_request(str(row.row), None, sampling, prompt, arrival_time=row.arrival_s)

    def note_outputs(self) -> None:
        """Note in the requests which of them the step behind gave a token to, and which it ended."""
        for group in self.scheduler.last.scheduled_seq_groups:
            request = self.requests[group.request_id]
            if request["first_token_s"] is None:
                request["first_token_s"] = self.clock.now
            if group.is_finished():
                lengths = [sequence.get_output_len() for sequence in group.get_seqs()]
                request.update(
                    status="finished", finish_s=self.clock.now, output_tokens=";".join(map(str, lengths))
                )

    def _run_workers(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Take the step's time and return the tokens of each group, as the workers of the release do."""
        self.clock.now += self.scheduler.step_s
        scheduled = self.scheduler.last
        answers = [self._answer(group, scheduled.prompt_run) for group in scheduled.scheduled_seq_groups]
        # 0.2.7 has the answers of each worker, and prompts' probabilities among them.
        if "driver_kwargs" not in kwargs:
            return answers
        return [[sequence_module.SequenceGroupOutput(answer, None) for answer in answers]]

    def _decode_sequence(self, *args: Any) -> None:
        """Leave the tokens as they are: no text is asked for."""

    def _answer(self, group: Any, prompt_run: bool) -> list[Any]:
        """Return the tokens of a group: after its prompt one a sample, later one a running sequence."""
        lengths = self.rows[group.request_id].output_tokens
        sequences = running_of(group)
        if prompt_run and group.num_seqs() == 1 and len(lengths) > 1:
            return [answer(sequences[0], ends=length == 1) for length in lengths]
        # The sequence that ran the prompt has the smallest number and is the last sample.
        numbers = sorted(sequence.seq_id for sequence in group.get_seqs())
        samples = [lengths[numbers.index(sequence.seq_id) - 1] for sequence in sequences]
        return [
            answer(sequence, ends=sequence.get_output_len() + 1 >= length)
            for sequence, length in zip(sequences, samples, strict=True)
        ]


def running_of(group: Any) -> list[Any]:
    """Return the sequences of a group that run."""
    return group.get_seqs(status=SequenceStatus.RUNNING)


def answer(sequence: Any, *, ends: bool) -> Any:
    """Return a token of a sequence under the release's name of it."""
    kind = getattr(sequence_module, "SequenceOutput", None) or sequence_module.SequenceOutputs
    token = END if ends else OTHER
    return kind(sequence.seq_id, token, {token: -1.0})


def drive(rows: list[Row], options: OptionsV0) -> dict[str, list[dict[str, Any]]]:
    """Return the log of a trace, the rows of each table."""
    clock = Clock()
    scheduler_module.time = engine_module.time = clock
    engine = Engine(options, clock, rows)
    steps, arrivals = engine.scheduler.steps, deque(rows)
    while arrivals or engine.has_unfinished_requests():
        if not engine.has_unfinished_requests():
            clock.now = max(clock.now, arrivals[0].arrival_s)
        while arrivals and arrivals[0].arrival_s <= clock.now:
            engine.send(arrivals.popleft())
        engine.step()
        engine.note_outputs()
        check_progress(steps)
    return {"steps": steps, "requests": list(engine.requests.values())}
