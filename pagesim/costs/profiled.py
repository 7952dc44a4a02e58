"""The cost model of a profile: the sum of its fitted terms in whole ticks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pagesim.costs.assumptions import of_experts
from pagesim.costs.attended import attended
from pagesim.costs.base import UNBOUNDED, AnyShape, AttentionSpan, DecodeRun, SpanAhead
from pagesim.costs.engines import UNKNOWN, EngineTime
from pagesim.costs.lines import TickLines
from pagesim.costs.profiles import ANY_BLOCK, Profile, Shape
from pagesim.errors import PagesimError
from pagesim.models import ModelSpec
from pagesim.sim.clock import to_ticks

MOST_PROMPTS = 1 << 16
"""Cached prompt-attention times at most; many requests share a prompt length."""

_OfTokens = tuple[float, float, float, float, float]
"""Seconds of linear layers, cache writes, experts, and all-reduces without and with a prompt."""


class Profiled:
    """Profile costs: the sum of a profile's terms for computing, all-reduces, transfers and overhead.

    If the host takes longer to launch the kernels than the device to run them, the host's time counts.

    Decode attention is linear in the context between two knots of its table. A run of decode steps therefore
    adds up exactly, and ends at the next knot.

    Args:
        profile: profile of this model.
        model, tp, block_size, kv_dtype: settings of the run.
        engine: the engine's own time, used if the profile has no overhead.

    Attributes:
        profile: the profile with its terms.
        beyond: largest size requested beyond the measured range, by operator and axis, such as ``linear:
            tokens in an iteration``.
        spans: see `ReadsSpans`.
        notes: see `Assuming`.

    Raises:
        PagesimError: the profile is for another model, tensor parallel degree, data type or block size, or
            lacks a term for some of the model's layers.
    """

    def __init__(
        self,
        profile: Profile,
        model: ModelSpec,
        *,
        tp: int = 1,
        block_size: int = 16,
        kv_dtype: str = "fp16",
        engine: EngineTime = UNKNOWN,
    ) -> None:
        _check(profile, model, tp, block_size, kv_dtype)
        self.profile = profile
        terms = profile.terms
        self._terms = terms
        if engine.of_sampler and profile.machine.get("sampler"):
            engine = replace(engine, iteration_s=0.0)
        self._engine = engine
        measured_at = block_size if block_size in profile.block_sizes else ANY_BLOCK
        self._a_block = 1 if measured_at else block_size
        self._decode = TickLines(terms.decode[measured_at])
        mixed = terms.decode_mixed.get(measured_at)
        self._mixed = self._decode if mixed is None else TickLines(mixed)
        drafted = terms.decode_drafts.get(measured_at)
        self._drafted = None if drafted is None else TickLines(drafted)
        self._prefill = terms.prefill[measured_at]
        self._copy = terms.copy_[measured_at]
        self._out = terms.swap_out[measured_at]
        self._in = terms.swap_in[measured_at]
        spans = _spans(model, kv_dtype, tp)
        self.spans: tuple[AttentionSpan, ...] | None = None
        if spans or terms.states is not None:
            self.spans = spans
        self._within = [terms.reached[_name(span)] for span in spans]
        self._lines_within = [TickLines(each.decode) for each in self._within]
        self._ranges = profile.ranges
        of_decode = ("decode", *(f"decode {_name(span)}" for span in spans))
        decode = next((self._ranges[each] for each in of_decode if each in self._ranges), None)
        self._most_decoding = decode.most if decode is not None and decode.most else UNBOUNDED
        self._longest = decode.most_context if decode is not None and decode.most else UNBOUNDED
        self._host_decode, self._host_prompt, self._host_mixed = (
            to_ticks(seconds)
            for seconds in (terms.launching.decode_s, terms.launching.prompt_s, terms.launching.mixed_s)
        )
        # Iterations with a prompt and up to this many tokens are launched by graphs.
        self._graphed = engine.graphs_to if terms.launching.unless_graphed else 0
        # Caches: `_OfTokens` by tokens; LM head seconds and overhead ticks by sampled positions; device and
        # overhead ticks by decoding sequences in decode-only steps; and ticks of prompt attention.
        self._by_tokens: dict[int, _OfTokens] = {}
        self._by_sampled: dict[int, tuple[float, int]] = {}
        self._decoding: dict[int, tuple[int, int]] = {}
        self._prompts: dict[tuple[int, int, tuple[int, ...]], int] = {}
        self.beyond: dict[str, int] = {}
        measured = profile.origins["linear"] in ("measured", "imported")
        self.notes = () if measured else of_experts(model, f"profile:{profile.name}")

    def iteration(self, shape: AnyShape) -> int:
        moving = 0
        if shape.blocks_out or shape.blocks_in or shape.blocks_copied:
            moving = to_ticks(self._swaps(shape) + self._copy(shape.blocks_copied * self._a_block))
            self._note("swap_out", "blocks swapped out at once", shape.blocks_out)
            self._note("swap_in", "blocks swapped in at once", shape.blocks_in)
            self._note("copy", "blocks copied at once", shape.blocks_copied)
        if not (shape.tokens or shape.launches):
            return moving
        attention, host = 0, self._host_decode
        if shape.query_key_pairs:
            if shape.tokens > self._graphed:
                host = self._host_mixed if shape.decoding else self._host_prompt
            prompt = shape.tokens - shape.decoding - shape.drafts
            attention = self._of_prompts(shape, prompt)
            self._note("prefill", "prompt tokens in an iteration", prompt)
        if shape.decoding:
            attention += self._of_decoding(shape)
        device, overhead = self._of(shape.tokens, shape.sampled, shape.query_key_pairs > 0)
        return moving + overhead + max(host, device + attention)

    def parts(self, shape: AnyShape) -> dict[str, int]:
        seconds = {
            "swaps": self._swaps(shape),
            "copies": self._copy(shape.blocks_copied * self._a_block),
        }
        moving = {name: to_ticks(each) for name, each in seconds.items()}
        if not (shape.tokens or shape.launches):
            return moving
        terms, tokens = self._terms, shape.tokens
        prompted = shape.query_key_pairs > 0
        prompt = tokens - shape.decoding - shape.drafts
        computing = {
            "linear layers": to_ticks(terms.linear(tokens)),
            "experts": 0 if terms.experts is None else to_ticks(terms.experts(tokens)),
            "LM head": to_ticks(terms.head(shape.sampled)),
            "cache writes": to_ticks(terms.write(tokens)),
            "all-reduces": to_ticks(self._reduce(tokens, prompted)),
            "prompt attention": self._of_prompts(shape, prompt) if prompted else 0,
            "decode attention": 0,
        }
        if shape.decoding:
            computing["decode attention"] = self._of_decoding(shape)
        overhead = self._of(tokens, shape.sampled, prompted)[1]
        waiting = self.iteration(shape) - sum(moving.values()) - sum(computing.values()) - overhead
        computing = {name: ticks for name, ticks in computing.items() if ticks or name != "experts"}
        return {"overhead": overhead, **computing, "waiting for the host": max(0, waiting), **moving}

    def decode(self, sequences: int, context: int) -> DecodeRun:
        if self.spans is None:
            attention, a_token, steps = self._attend(sequences, context, self._decode)
            return self._from(sequences, attention, a_token * sequences, steps)
        # Assume that all tokens are within every span.
        everywhere = [(context, sequences, UNBOUNDED)] * len(self._within)
        return self.decode_reached(sequences, context, everywhere)

    def decode_reached(self, sequences: int, context: int, reached: Sequence[SpanAhead]) -> DecodeRun:
        attention, a_token, steps = self._attend(sequences, context, self._decode)
        increment = a_token * sequences
        for lines, (tokens, growth, holds) in zip(self._lines_within, reached, strict=True):
            ticks, a_token, until = lines(sequences, tokens)
            attention += ticks
            if holds < steps:
                steps = holds
            if growth:
                increment += a_token * growth
                if until is not None:
                    # Steps until the mean within the span exceeds the end of this line.
                    holds = -(-((until + 1) * sequences - tokens) // growth)
                    if holds < steps:
                        steps = holds
        if self._terms.states is not None:
            attention += to_ticks(self._terms.states.decode(sequences))
        return self._from(sequences, attention, increment, steps)

    def _from(self, sequences: int, attention: int, increment: int, steps: int) -> DecodeRun:
        """Return the run with ``attention`` ticks of attention at first, and ``increment`` more per step."""
        fixed = self._decoding.get(sequences)
        if fixed is None:
            fixed = self._decoding[sequences] = self._of(sequences, sequences, False)
        device, overhead = fixed
        first, host = device + attention, self._host_decode
        if first >= host:
            return overhead + first, increment, steps
        # As long as the device waits for the host, a longer context costs no time.
        waits = (host - first) // increment + 1 if increment else steps
        return overhead + host, 0, min(steps, waits)

    def _swaps(self, shape: AnyShape) -> float:
        return self._out(shape.blocks_out * self._a_block) + self._in(shape.blocks_in * self._a_block)

    def _of_prompts(self, shape: AnyShape, prompt: int) -> int:
        """Return the ticks of the prompts' attention and states."""
        key = prompt, shape.query_key_pairs, shape.reached_pairs
        known = self._prompts.get(key)
        if known is None:
            if len(self._prompts) == MOST_PROMPTS:
                self._prompts.clear()
            known = self._prompts[key] = self._attend_in_prompts(*key)
        return known

    def _attend_in_prompts(self, prompt: int, pairs: int, reached: tuple[int, ...]) -> int:
        tokens = max(1, prompt)
        ticks = to_ticks(self._prefill(prompt, pairs / tokens))
        for each, within in zip(self._within, reached or (pairs,) * len(self._within), strict=True):
            ticks += to_ticks(each.prefill(prompt, within / tokens))
        if self._terms.states is not None:
            ticks += to_ticks(self._terms.states.prefill(prompt))
        return ticks

    def _of_decoding(self, shape: AnyShape) -> int:
        """Return the ticks of the decoding sequences' attention and states."""
        lines = self._mixed if shape.query_key_pairs else self._decode
        ticks = self._attend(shape.decoding, shape.decode_context, lines)[0]
        if shape.drafts:
            ticks += self._verify(shape)
        return ticks if self.spans is None else ticks + self._look_back(shape)

    def _look_back(self, shape: AnyShape) -> int:
        """Return the ticks of decoding in layers with a span or a recurrent state."""
        ticks = 0
        reached = shape.reached or (shape.decode_context,) * len(self._within)
        for lines, tokens in zip(self._lines_within, reached, strict=True):
            ticks += lines(shape.decoding, tokens)[0]
        if self._terms.states is not None:
            ticks += to_ticks(self._terms.states.decode(shape.decoding))
        return ticks

    def _verify(self, shape: AnyShape) -> int:
        """Return the ticks that drafts add to decode attention, linear in the queries per sequence."""
        drafts = self.profile.queries - 1
        if shape.drafts > drafts * shape.decoding and "decode" in self._ranges:
            queries = 1 - (-shape.drafts // shape.decoding)
            self._beyond("decode", "queries of a sequence", queries)
        if self._drafted is None:
            return 0
        one = self._decode(shape.decoding, shape.decode_context)[0]
        many = self._drafted(shape.decoding, shape.decode_context)[0]
        return max(0, many - one) * shape.drafts // (drafts * shape.decoding)

    def _attend(self, sequences: int, context: int, lines: TickLines) -> tuple[int, int, int]:
        """Return decode attention's ticks, ticks per context token, and the number of steps they hold for."""
        ticks, a_token, until = lines(sequences, context)
        mean = context // sequences
        if sequences > self._most_decoding:
            self._note("decode", "sequences that decode", sequences)
        if mean > self._longest:
            self._beyond("decode", "tokens of mean context", mean)
        return ticks, a_token, UNBOUNDED if until is None else until - mean + 1

    def _of(self, tokens: int, sampled: int, prompted: bool) -> tuple[int, int]:
        """Return the device and overhead ticks that depend on neither context nor blocks."""
        known = self._by_tokens.get(tokens)
        if known is None:
            known = self._by_tokens[tokens] = self._of_tokens(tokens)
        of_sampled = self._by_sampled.get(sampled)
        if of_sampled is None:
            of_sampled = self._by_sampled[sampled] = self._of_sampled(sampled)
        head, overhead = of_sampled
        linear, write, experts, reduce, reduce_prompted = known
        seconds = linear + head + write + experts
        device = to_ticks(seconds + (reduce_prompted if prompted else reduce))
        return device, overhead if overhead + device > 0 else 1 - device

    def _of_tokens(self, tokens: int) -> _OfTokens:
        terms = self._terms
        self._note("linear", "tokens in an iteration", tokens)
        self._note("write", "tokens written to the cache at once", tokens)
        experts = 0.0 if terms.experts is None else terms.experts(tokens)
        reduces = self._reduce(tokens, False), self._reduce(tokens, True)
        return terms.linear(tokens), terms.write(tokens), experts, *reduces

    def _of_sampled(self, sampled: int) -> tuple[float, int]:
        """Return the seconds of the LM head, and the engine's own ticks."""
        self._note("head", "sequences that get a token", sampled)
        terms, engine = self._terms, self._engine
        if terms.overhead is not None:
            own = terms.overhead(max(1, sampled))
        else:
            own = engine.iteration_s + engine.sequence_s * sampled
        return terms.head(sampled), to_ticks(own)

    def _reduce(self, tokens: int, prompted: bool) -> float:
        """Return the seconds of all-reduces."""
        terms = self._terms
        eager = prompted and tokens > self._graphed and terms.all_reduce_eager is not None
        reduce = terms.all_reduce_eager if eager else terms.all_reduce
        return 0.0 if reduce is None else reduce(tokens)

    def _note(self, term: str, axis: str, size: int) -> None:
        given = self._ranges.get(term)
        if given is not None and size > given.most:
            self._beyond(term, axis, size)

    def _beyond(self, term: str, axis: str, size: int) -> None:
        name = f"{term}: {axis}"
        self.beyond[name] = max(size, self.beyond.get(name, 0))


def _spans(model: ModelSpec, kv_dtype: str, tp: int) -> tuple[AttentionSpan, ...]:
    """Return the spans of the layers without full attention."""
    return tuple(span for span in attended(model, kv_dtype, tp) if span is not None)


def _width(dtype: str) -> str:
    """Return a data type, with fp16 and bf16 treated as one since they move the same bytes."""
    return "16 bit" if dtype in ("fp16", "bf16") else dtype


def _name(span: AttentionSpan) -> str:
    return f"{span.kind}:{span.size}"


def _check(profile: Profile, model: ModelSpec, tp: int, block_size: int, kv_dtype: str) -> None:
    name = f"profile {profile.name}"
    if Shape.of(model) != profile.model:
        raise PagesimError(
            f"{name} is for {profile.model.name}, not {model.name}; calibrate {model.name}, "
            f"or make one with `pagesim profile rescale {profile.name} --model {model.name}`"
        )
    if tp != profile.tp:
        raise PagesimError(f"{name} is for tp {profile.tp}, not {tp}; calibrate with --tp {tp}")
    if _width(kv_dtype) != _width(profile.kv_dtype):
        raise PagesimError(
            f"{name} was measured with kv_dtype {profile.kv_dtype}, not {kv_dtype}; calibrate with that"
        )
    # Reference kernels are calibrated in fp32, on a CPU.
    dtype = "bf16" if profile.dtype in ("fp16", "fp32") else profile.dtype
    # An analytic profile is always made for this model.
    if profile.kind != "analytic" and _width(dtype) != _width(model.weights_in_words):
        raise PagesimError(
            f"{name} is of weights in {dtype}, not {model.weights_in_words}; import or calibrate one of "
            "those, or choose cost roofline"
        )
    needed = {_name(span) for span in _spans(model, kv_dtype, tp)} - set(profile.terms.reached)
    if needed or (model.state_layers and profile.terms.states is None):
        raise PagesimError(
            f"{name} knows attention to {', '.join(('all tokens', *profile.terms.reached))} only, and the "
            f"layers of {model.name} are {model.layers_in_words}; choose cost roofline or affine"
        )
    if block_size not in profile.block_sizes and ANY_BLOCK not in profile.block_sizes:
        known = ", ".join(map(str, profile.block_sizes)) or "none"
        raise PagesimError(f"{name} was not measured at block_size {block_size}; it knows {known}")
