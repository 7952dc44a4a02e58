"""Driver of vLLM's V1 engine, 0.11.2 to 0.33.0, synchronous or with two batches in flight.

The release's own code: the engine's step with its queue of batches, the scheduler, the KV-cache manager, the
requests and their hashes. Ours: the clock, the model, which answers with numbered tokens, and the log, into
which the engine puts its outputs.
"""

from __future__ import annotations

import queue
import types
from collections import deque
from typing import Any

import v1_config
import vllm.v1.core.sched.scheduler as scheduler_module
import vllm.v1.engine.core as engine_module
from options import OptionsV1
from simulated import Clock, check_progress
from traces import Row, Tokens
from v1_log import Log, NotedRequest
from v1_model import Model
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.request import Request


class Engine(engine_module.EngineCoreProc):
    """The release's engine, set up without its processes: its own step, its own queue of batches."""

    def __init__(self, options: OptionsV1, model: Model, log: Log) -> None:
        self.options, self.log = options, log
        self.model_executor, self.output_queue = model, log
        self.vllm_config = v1_config.engine_config(options)
        self.hasher = v1_config.block_hasher(self.vllm_config)
        kind = AsyncScheduler if options.async_scheduling else scheduler_module.Scheduler
        self.scheduler = model.scheduler = kind(
            vllm_config=self.vllm_config,
            kv_cache_config=v1_config.kv_cache_config(options),
            structured_output_manager=v1_config.FreeText(),
            block_size=options.block_size,
            log_stats=False,
        )
        self.async_scheduling = options.async_scheduling
        self.batch_queue_size = 2 if options.async_scheduling else 1
        self.batch_queue = deque(maxlen=2) if options.async_scheduling else None
        self.step_fn = self.step_with_batch_queue if options.async_scheduling else self.step
        self.use_spec_decode = self.check_for_draft_tokens = options.speculative_tokens > 0
        self.aborts_queue: queue.Queue[Any] = queue.Queue()
        # It runs a language model, alone, and hands no caches on.
        self.is_ec_consumer = True
        self.ec_producer = self.is_mm_encoder_only = self.is_pooling_model = self.log_stats = False
        self._weight_version = 0

    def busy(self) -> bool:
        """Say whether the engine steps, rather than waiting for a request."""
        return self.scheduler.has_requests() or bool(self.batch_queue)

    def send(self, row: Row, prompt: list[int]) -> None:
        """Send each sample of a row as a request of its own, unless the prompt leaves no room for a token."""
        rejected = row.prompt_tokens >= self.options.max_model_len
        for sample, output_tokens in enumerate(row.output_tokens):
            name = f"{row.row}.{sample}" if len(row.output_tokens) > 1 else str(row.row)
            self.model_executor.samples[name] = row.row, sample
            self.log.note_request(name, row, output_tokens, rejected=rejected)
            if rejected:
                continue
            arguments = v1_config.known(
                Request,
                request_id=name,
                prompt_token_ids=list(prompt),
                sampling_params=SamplingParams(max_tokens=output_tokens, ignore_eos=True, temperature=0.0),
                pooling_params=None,
                eos_token_id=None,
                arrival_time=row.arrival_s,
                block_hasher=self.hasher,
                priority=row.priority,
            )
            self.scheduler.add_request(NotedRequest(**arguments))


def drive(rows: list[Row], options: OptionsV1) -> dict[str, list[dict[str, Any]]]:
    """Return the log of a trace, the rows of each table."""
    clock = Clock()
    scheduler_module.time = engine_module.time = clock
    engine_module.get_watch_dog = lambda: types.SimpleNamespace(feed=lambda: None)
    v1_config.without_encoder()
    tokens = Tokens({row.row: row for row in rows})
    log = Log(options, clock)
    engine = Engine(options, Model(options, clock, tokens, log), log)
    arrivals = deque(rows)
    while arrivals or engine.busy():
        if not engine.busy():
            clock.now = max(clock.now, arrivals[0].arrival_s)
        while arrivals and arrivals[0].arrival_s <= clock.now:
            row = arrivals.popleft()
            engine.send(row, tokens.prompt(row))
        if engine.busy():
            engine._process_engine_step()
        check_progress(log.steps)
    return {"steps": log.steps, "requests": list(log.requests.values())}
