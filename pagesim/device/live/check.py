"""Check: sequences read through block tables equal the same sequences computed contiguously.

Between two iterations, outside the measured time, a sequence is recomputed from its token ids with the same
weights. This uses torch's own attention, without blocks, tables, copies or swaps. Then its keys and values in
the cache, the attention output over them, and the logits of the iteration are compared.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from pagesim.allocators import Copy
from pagesim.device.live.batch import DeviceBatch
from pagesim.device.live.cached_attention import CachedAttention
from pagesim.device.live.executor import MeasuredExecutor
from pagesim.scheduling.batch import Batch
from pagesim.scheduling.request import EngineRequest
from pagesim.sim.spans import Span, numbers_of

BOUNDS = {torch.float32: 1e-3, torch.float16: 0.05, torch.bfloat16: 0.25}
"""Largest allowed difference relative to the largest value, by data type. Layers amplify rounding errors of
the first ones; a wrong token differs by the order of 1."""

MEASURES = ("keys_values", "attention", "logits")

_ALWAYS = 12
_THINNER = 1.15


class Checker:
    """Checks a sample of sequences and iterations, by kind of event.

    Of every kind of event that ``_events`` distinguishes, the first dozen are checked, and then fewer and
    fewer.

    Args:
        executor: executor to check; its pools should be poisoned.
        seed: seed of the choice of sequences.
    """

    def __init__(self, executor: MeasuredExecutor, *, seed: int) -> None:
        self.executor = executor
        self.bound = BOUNDS[executor.model.dtype]
        self.worst = dict.fromkeys(MEASURES, 0.0)
        self.failures: list[str] = []
        self.looked: Counter[str] = Counter()
        self._seen: Counter[str] = Counter()
        self._next: dict[str, int] = {}
        self._random = Random(seed)

    @property
    def passed(self) -> bool:
        """Whether something was checked and everything checked was right."""
        return not self.failures and bool(self.looked)

    def report(self) -> dict[str, Any]:
        """Return the findings for a summary; errors that are not finite are None."""
        return {
            "passed": self.passed,
            "bound": self.bound,
            "sequences": dict(self.looked),
            "max_relative_error": {
                name: error if math.isfinite(error) else None for name, error in self.worst.items()
            },
            "failures": len(self.failures),
            "first_failure": self.failures[0] if self.failures else None,
        }

    def look(self, batch: Batch, spans: list[Span], copies: Sequence[Copy], logits: Tensor) -> None:
        """Check an iteration that was just carried out.

        Args:
            batch: the batch as planned.
            spans: the spans it computed, those of one token first.
            copies: blocks that were copied for it.
            logits: logits of each span's last token, ``[S, vocab]``.
        """
        row_of = {span.sample: row for row, span in enumerate(spans)}
        present: dict[str, list[tuple[EngineRequest, int]]] = {}
        for kind, request, place in self._events(batch, spans, copies):
            present.setdefault(kind, []).append((request, place))
        for kind, candidates in present.items():
            self._seen[kind] += 1
            if self._seen[kind] < self._next.get(kind, 0):
                continue
            seen = self._seen[kind]
            self._next[kind] = seen + 1 if seen < _ALWAYS else math.ceil(seen * _THINNER)
            request, place = self._random.choice(candidates)
            row = row_of.get((request.row, numbers_of(request)[place]))
            self._compare(kind, request, place, None if row is None else logits[row])

    def _events(
        self, batch: Batch, spans: list[Span], copies: Sequence[Copy]
    ) -> Iterator[tuple[str, EngineRequest, int]]:
        """Yield the events of each sequence: kind, request, and index of the sample."""
        memory = self.executor.memory
        written = {target for _, target in copies}
        resumed, admitted, incomplete = set(batch.resumed), set(batch.prompts), set(batch.incomplete)
        for request, _, place, start, stop in spans:
            decoded = stop - start == 1
            if decoded:
                yield "decoded", request, place
            elif start > request.cached or request in incomplete:
                yield "chunk", request, place
            else:
                yield "prompt", request, place
            if request in admitted and request.cached:
                yield "prefix_found", request, place
            if not decoded and request.length > request.prompt:
                yield "recomputed", request, place
            if request in resumed:
                yield "swapped", request, place
            if written and not written.isdisjoint(memory.blocks_of(request, place)):
                yield "copied", request, place
        if memory.shares:
            for request in batch.prompts:
                for place in range(1, request.samples):
                    yield "forked", request, place

    def _compare(self, kind: str, request: EngineRequest, place: int, logits: Tensor | None) -> None:
        executor, spec = self.executor, self.executor.model.spec
        number = numbers_of(request)[place]
        length = executor.scheduler.stored_length(request)
        device = executor.pools.device
        ids = torch.from_numpy(executor.tokens.of(request, number, 0, length)).to(device)
        positions = torch.arange(length, device=device)
        middle = self._random.randrange(spec.layers)
        layers = sorted({0, middle, spec.layers - 1})
        alone = _Contiguous(layers)
        expected = executor.model.forward(ids, positions, positions[-1:], alone)[0]
        row = executor.tables.row(request, number, place, length)
        size = executor.pools.block_size
        blocks = torch.from_numpy(executor.tables.array[row : row + 1, : -(-length // size)].copy()).to(
            device
        )
        errors = dict.fromkeys(MEASURES, 0.0)
        for layer in layers:
            queries, keys, values, read = alone.seen[layer]
            cache = executor.pools.caches[layer]
            for here, right in ((cache.key_cache, keys), (cache.value_cache, values)):
                stored = here[blocks[0].long()].flatten(0, 1)[:length]
                errors["keys_values"] = float(np.maximum(errors["keys_values"], _error(stored, right)))
            ours = torch.empty_like(queries[-1:])
            lengths = torch.tensor([length], dtype=torch.int32, device=device)
            attend = CachedAttention(executor.pools, _contexts_only(length))
            attend.decode(layer, queries[-1:].contiguous(), blocks, lengths, ours)
            errors["attention"] = float(np.maximum(errors["attention"], _error(ours, read[-1:])))
        if logits is not None:
            errors["logits"] = _error(logits, expected)
        self.looked[kind] += 1
        for name, error in errors.items():
            self.worst[name] = float(np.maximum(self.worst[name], error))  # NaN stays
            if not error <= self.bound:
                self.failures.append(
                    f"iteration {len(executor.records) - 1}, request {request.row}, sample {number} ({kind}, "
                    f"{length} tokens): "
                    f"{name.replace('_', ' and ')} are off by {error:.3g} of the largest value"
                )


class _Contiguous:
    """Contiguous attention of one sequence: an ``Attend`` that records some layers' inputs and outputs."""

    def __init__(self, layers: list[int]) -> None:
        self.seen: dict[int, tuple[Tensor, Tensor, Tensor, Tensor]] = {}
        self._layers = layers

    def __call__(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        heads_first = [part.transpose(0, 1)[None] for part in (queries, keys, values)]
        read = scaled_dot_product_attention(
            heads_first[0],
            heads_first[1],
            heads_first[2],
            is_causal=True,
            enable_gqa=queries.shape[1] != keys.shape[1],
        )[0].transpose(0, 1)
        if layer in self._layers:
            self.seen[layer] = queries, keys, values, read
        return read


def _contexts_only(length: int) -> DeviceBatch:
    """Return a batch that contains only the length of its one context."""
    nothing = torch.empty(0, dtype=torch.int64)
    return DeviceBatch(
        nothing, nothing, nothing, nothing, nothing, nothing, nothing, nothing, [length], longest_query=0
    )


def _error(ours: Tensor, right: Tensor) -> float:
    ours, right = ours.float(), right.float()
    return float((ours - right).abs().max() / right.abs().max())
