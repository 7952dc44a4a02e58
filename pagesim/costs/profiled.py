"""The cost model of a profile: its fitted terms, added up, in whole ticks."""

from __future__ import annotations

from collections.abc import Sequence

from pagesim.costs.assumptions import of_experts
from pagesim.costs.base import UNBOUNDED, DecodeRun, IterationShape, Reach, ReachAhead
from pagesim.costs.profiles import DecodeAttention, DecodeTable, Profile, Shape, check_attends_to_all
from pagesim.costs.specs import ModelSpec
from pagesim.costs.specs.layers import ChunkLayer, StateLayer, WindowLayer
from pagesim.errors import PagesimError
from pagesim.sim.clock import to_ticks


class Profiled:
    """Seconds = linear layers + LM head + cache writes + attention + copies + swaps + overhead, of a profile.

    Where the host needs longer to launch the kernels of the first four, it counts instead of them. Experts,
    layers that do not look back on all tokens, and states are terms of their own where a profile has them.

    Decode attention is linear in the context as long as sequences are cut alike, or up to the next context of
    a table, so a run of decode steps adds up exactly and ends there.

    Args:
        profile: of this model.
        model, tp, block_size, kv_dtype: of the run.

    Attributes:
        beyond: by axis, the largest size that was asked for beyond what was measured.
        reaches: see `Reaching`.
        notes: see `Assuming`.

    Raises:
        PagesimError: the profile is for another model, division, element or block size, or the model has
            layers that the profile has no term of.
    """

    def __init__(
        self, profile: Profile, model: ModelSpec, *, tp: int = 1, block_size: int = 16, kv_dtype: str = "fp16"
    ) -> None:
        _check(profile, model, tp, block_size, kv_dtype)
        terms = profile.terms
        self._terms = terms
        self._decode = terms.at("decode", block_size)
        self._prefill = terms.at("prefill", block_size)
        self._copy = terms.moving("copy", block_size)
        self._out = terms.moving("swap_out", block_size)
        self._in = terms.moving("swap_in", block_size)
        self._reaching = terms.reaching
        self._states = terms.states
        self.reaches: tuple[Reach, ...] | None = None
        if terms.reaching or terms.states is not None:
            self.reaches = tuple(Reach(each.kind, each.size) for each in terms.reaching)
        self._ranges = profile.ranges
        self._most_decode = (0, 0)
        if "decode" in profile.ranges:
            self._most_decode = profile.ranges["decode"].most, profile.ranges["decode"].most_context
        self._host_decode, self._host_prompt, self._host_mixed = (
            to_ticks(seconds)
            for seconds in (terms.launching.decode_s, terms.launching.prompt_s, terms.launching.mixed_s)
        )
        self._fixed: dict[tuple[int, int, bool], tuple[int, int]] = {}
        self.beyond: dict[str, int] = {}
        measured = profile.origins["linear"] in ("measured", "imported")
        self.notes = () if measured else of_experts(model, f"profile:{profile.name}")
        if profile.release:
            self.notes = (f"profile {profile.name}: {profile.sentence}",)

    def iteration(self, shape: IterationShape) -> int:
        moving = 0
        if shape.blocks_out or shape.blocks_in or shape.blocks_copied:
            moving = to_ticks(
                self._out(shape.blocks_out) + self._in(shape.blocks_in) + self._copy(shape.blocks_copied)
            )
            self._note("swap_out", "blocks swapped out at once", shape.blocks_out)
            self._note("swap_in", "blocks swapped in at once", shape.blocks_in)
            self._note("copy", "blocks copied at once", shape.blocks_copied)
        if not (shape.tokens or shape.launches):
            return moving
        attention, host = 0, self._host_decode
        if shape.query_key_pairs:
            host = self._host_mixed if shape.decoding else self._host_prompt
            prompt = shape.tokens - shape.decoding - shape.drafts
            attention = to_ticks(self._prefill(prompt, shape.query_key_pairs))
            self._note("prefill", "prompt tokens in an iteration", prompt)
            if self._reaching:
                attention += sum(self._reached_prompts(shape, prompt))
        if shape.decoding:
            attention += self._attend(shape.decoding, shape.decode_context)[0]
            if self._reaching:
                attention += sum(self._reached(shape))
        if self._states is not None:
            attention += self._of_states(shape)
        device, overhead = self._of(shape.tokens, shape.sampled, shape.query_key_pairs > 0)
        return moving + overhead + max(host, device + attention)

    def parts(self, shape: IterationShape) -> dict[str, int]:
        seconds = {
            "swaps": self._out(shape.blocks_out) + self._in(shape.blocks_in),
            "copies": self._copy(shape.blocks_copied),
        }
        moving = {name: to_ticks(each) for name, each in seconds.items()}
        if not (shape.tokens or shape.launches):
            return moving
        terms, tokens = self._terms, shape.tokens
        reduces = terms.reduces(eager=shape.query_key_pairs > 0)
        computing = {
            "linear layers": to_ticks(terms.linear(tokens)),
            "LM head": to_ticks(terms.head(shape.sampled)),
            "cache writes": to_ticks(terms.write(tokens)),
            "all-reduces": 0 if reduces is None else to_ticks(reduces(tokens)),
            "prompt attention": 0,
            "decode attention": 0,
        }
        if terms.experts is not None:
            computing["experts"] = to_ticks(terms.experts(tokens))
        if shape.query_key_pairs:
            prompt = tokens - shape.decoding - shape.drafts
            computing["prompt attention"] = to_ticks(self._prefill(prompt, shape.query_key_pairs))
        if shape.decoding:
            computing["decode attention"] = self._attend(shape.decoding, shape.decode_context)[0]
        for number, each in enumerate(self._reaching):
            prompt = tokens - shape.decoding - shape.drafts
            ticks = self._reached_prompts(shape, prompt)[number] if shape.query_key_pairs else 0
            ticks += self._reached(shape)[number] if shape.decoding else 0
            name = f"{each.kind} attention"
            computing[name] = computing.get(name, 0) + ticks
        if self._states is not None:
            computing["states"] = self._of_states(shape)
        overhead = self._of(tokens, shape.sampled, shape.query_key_pairs > 0)[1]
        waiting = self.iteration(shape) - sum(moving.values()) - sum(computing.values()) - overhead
        return {"overhead": overhead, **computing, "waiting for the host": max(0, waiting), **moving}

    def decode(self, sequences: int, context: int) -> DecodeRun:
        ahead = (context, sequences, UNBOUNDED)
        return self.decode_reached(sequences, context, (ahead,) * len(self._reaching))

    def decode_reached(self, sequences: int, context: int, reached: Sequence[ReachAhead]) -> DecodeRun:
        attention, a_token, steps = self._attend(sequences, context)
        device, overhead = self._of(sequences, sequences, False)
        first, increment, host = device + attention, a_token * sequences, self._host_decode
        for each, (tokens, growth, holds) in zip(self._reaching, reached, strict=True):
            further, a_token, until = _line(each.decode, sequences, tokens)
            first, increment = first + further, increment + a_token * growth
            steps = min(steps, holds)
            if until is not None and growth:
                steps = min(steps, -(-((until + 1) * sequences - tokens) // growth))
        if self._states is not None:
            first += to_ticks(self._states.decode(sequences))
        if first >= host:
            return overhead + first, increment, steps
        # As long as the device waits for the host, a longer context costs nothing.
        waits = (host - first) // increment + 1 if increment else steps
        return overhead + host, 0, min(steps, waits)

    def _attend(self, sequences: int, context: int) -> tuple[int, int, int]:
        """Return ticks of decode attention, ticks a token of context, and for how many steps these hold."""
        first, a_token, until = _line(self._decode, sequences, context)
        mean = context // sequences
        batch, longest = self._most_decode
        if batch:
            if sequences > batch:
                self._note("decode", "sequences that decode", sequences)
            if mean > longest:
                self.beyond["mean context"] = max(mean, self.beyond.get("mean context", 0))
        return first, a_token, UNBOUNDED if until is None else until - mean + 1

    def _reached(self, shape: IterationShape) -> list[int]:
        """Return ticks of decode attention within each reach."""
        tokens = shape.reached or (shape.decode_context,) * len(self._reaching)
        return [
            _line(each.decode, shape.decoding, read)[0]
            for each, read in zip(self._reaching, tokens, strict=True)
        ]

    def _reached_prompts(self, shape: IterationShape, prompt: int) -> list[int]:
        """Return ticks of prompts' attention within each reach."""
        pairs = shape.reached_pairs or (shape.query_key_pairs,) * len(self._reaching)
        return [
            to_ticks(each.prefill(prompt, within)) for each, within in zip(self._reaching, pairs, strict=True)
        ]

    def _of_states(self, shape: IterationShape) -> int:
        """Return ticks of recurrent layers."""
        assert self._states is not None
        ticks = to_ticks(self._states.decode(shape.decoding))
        prompts = shape.computed_prompts
        if prompts:
            tokens = shape.tokens - shape.decoding - shape.drafts
            ticks += to_ticks(self._states.prefill.at(prompts, tokens / prompts))
        return ticks

    def _of(self, tokens: int, sampled: int, eager: bool) -> tuple[int, int]:
        """Return the device's ticks, and the overhead's, that depend on neither context nor blocks."""
        known = self._fixed.get((tokens, sampled, eager))
        if known is None:
            terms = self._terms
            seconds = terms.linear(tokens) + terms.head(sampled) + terms.write(tokens)
            reduces = terms.reduces(eager=eager)
            if reduces is not None:
                seconds += reduces(tokens)
            if terms.experts is not None:
                seconds += terms.experts(tokens)
            device = to_ticks(seconds)
            overhead = max(to_ticks(terms.overhead(max(1, sampled))), 1 - device)
            known = self._fixed[tokens, sampled, eager] = device, overhead
            self._note("linear", "tokens in an iteration", tokens)
            self._note("write", "tokens written to the cache at once", tokens)
            self._note("head", "sequences that get a token", sampled)
        return known

    def _note(self, term: str, axis: str, size: int) -> None:
        given = self._ranges.get(term)
        if given is not None and size > given.most:
            self.beyond[axis] = max(size, self.beyond.get(axis, 0))


def _line(term: DecodeAttention | DecodeTable, sequences: int, tokens: int) -> tuple[int, int, int | None]:
    """Return ticks over so many tokens, ticks a further one, and up to which mean that holds."""
    fixed, token_s, until = term.line(sequences, tokens)
    a_token = to_ticks(token_s)
    return to_ticks(fixed) + a_token * tokens, a_token, until


def _check(profile: Profile, model: ModelSpec, tp: int, block_size: int, kv_dtype: str) -> None:
    name = f"profile {profile.name}"
    _check_layers(profile, model)
    if Shape.of(model) != profile.model:
        raise PagesimError(
            f"{name} is for {profile.model.name}, not {model.name}; calibrate {model.name}, "
            f"or make one with `pagesim profile rescale {profile.name} --model {model.name}`"
        )
    if tp != profile.tp:
        raise PagesimError(f"{name} is for tp {profile.tp}, not {tp}; calibrate with --tp {tp}")
    if kv_dtype != profile.kv_dtype and {kv_dtype, profile.kv_dtype} != {"fp16", "bf16"}:
        raise PagesimError(
            f"{name} was measured with kv_dtype {profile.kv_dtype}, not {kv_dtype}; calibrate with that"
        )
    if not profile.takes(block_size):
        known = ", ".join(map(str, profile.block_sizes)) or "none"
        raise PagesimError(f"{name} was not measured at block_size {block_size}; it knows {known}")


def _check_layers(profile: Profile, model: ModelSpec) -> None:
    """Make sure that there is a term of every layer."""
    reaches = {Reach(each.kind, each.size) for each in profile.terms.reaching}
    wanted = {
        Reach(layer.kind, layer.window if isinstance(layer, WindowLayer) else layer.chunk)
        for layer in model.cache_layers
        if isinstance(layer, WindowLayer | ChunkLayer)
    }
    states = any(isinstance(layer, StateLayer) for layer in model.cache_layers)
    sparse = any(layer.kind == "indexer" for layer in model.cache_layers)
    if sparse or reaches != wanted or states != (profile.terms.states is not None):
        check_attends_to_all(model, f"profile {profile.name}")
