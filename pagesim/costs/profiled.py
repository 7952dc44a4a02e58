"""The cost model of a profile: its fitted terms, added up, in whole ticks."""

from __future__ import annotations

from pagesim.costs.assumptions import of_experts
from pagesim.costs.base import UNBOUNDED, DecodeRun, IterationShape
from pagesim.costs.profiles import Profile, Shape, check_attends_to_all
from pagesim.costs.specs import ModelSpec
from pagesim.errors import PagesimError
from pagesim.sim.clock import to_ticks


class Profiled:
    """Seconds = linear layers + LM head + cache writes + attention + copies + swaps + overhead, of a profile.

    Where the host needs longer to launch the kernels of the first four, it counts instead of them.

    Decode attention is linear in the context as long as sequences are cut alike, so a run of decode steps
    adds up exactly and ends where they are cut anew.

    Args:
        profile: of this model.
        model, tp, block_size, kv_dtype: of the run.

    Attributes:
        beyond: by axis, the largest size that was asked for beyond what was measured.
        notes: see `Assuming`.

    Raises:
        PagesimError: the profile is for another model, division, element or block size, or the model has
            layers that do not look back on all tokens.
    """

    def __init__(
        self, profile: Profile, model: ModelSpec, *, tp: int = 1, block_size: int = 16, kv_dtype: str = "fp16"
    ) -> None:
        _check(profile, model, tp, block_size, kv_dtype)
        terms = profile.terms
        self._terms = terms
        self._decode = terms.decode[block_size]
        self._prefill = terms.prefill[block_size]
        self._copy = terms.copy_[block_size]
        self._out = terms.swap_out[block_size]
        self._in = terms.swap_in[block_size]
        self._ranges = profile.ranges
        self._most_decode = (0, 0)
        if "decode" in profile.ranges:
            self._most_decode = profile.ranges["decode"].most, profile.ranges["decode"].most_context
        self._host_decode, self._host_prompt, self._host_mixed = (
            to_ticks(seconds)
            for seconds in (terms.launching.decode_s, terms.launching.prompt_s, terms.launching.mixed_s)
        )
        self._fixed: dict[tuple[int, int], tuple[int, int]] = {}
        self.beyond: dict[str, int] = {}
        measured = profile.origins["linear"] in ("measured", "imported")
        self.notes = () if measured else of_experts(model, f"profile:{profile.name}")

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
        if shape.decoding:
            attention += self._attend(shape.decoding, shape.decode_context)[0]
        device, overhead = self._of(shape.tokens, shape.sampled)
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
        computing = {
            "linear layers": to_ticks(terms.linear(tokens)),
            "LM head": to_ticks(terms.head(shape.sampled)),
            "cache writes": to_ticks(terms.write(tokens)),
            "all-reduces": 0 if terms.all_reduce is None else to_ticks(terms.all_reduce(tokens)),
            "prompt attention": 0,
            "decode attention": 0,
        }
        if shape.query_key_pairs:
            prompt = tokens - shape.decoding - shape.drafts
            computing["prompt attention"] = to_ticks(self._prefill(prompt, shape.query_key_pairs))
        if shape.decoding:
            computing["decode attention"] = self._attend(shape.decoding, shape.decode_context)[0]
        overhead = self._of(tokens, shape.sampled)[1]
        waiting = self.iteration(shape) - sum(moving.values()) - sum(computing.values()) - overhead
        return {"overhead": overhead, **computing, "waiting for the host": max(0, waiting), **moving}

    def decode(self, sequences: int, context: int) -> DecodeRun:
        attention, a_token, steps = self._attend(sequences, context)
        device, overhead = self._of(sequences, sequences)
        first, increment, host = device + attention, a_token * sequences, self._host_decode
        if first >= host:
            return overhead + first, increment, steps
        # As long as the device waits for the host, a longer context costs nothing.
        waits = (host - first) // increment + 1 if increment else steps
        return overhead + host, 0, min(steps, waits)

    def _attend(self, sequences: int, context: int) -> tuple[int, int, int]:
        """Return ticks of decode attention, ticks a token of context, and for how many steps these hold."""
        fixed, context_s, until = self._decode.line(sequences, context)
        a_token = to_ticks(context_s)
        mean = context // sequences
        batch, longest = self._most_decode
        if batch:
            if sequences > batch:
                self._note("decode", "sequences that decode", sequences)
            if mean > longest:
                self.beyond["mean context"] = max(mean, self.beyond.get("mean context", 0))
        return to_ticks(fixed) + a_token * context, a_token, UNBOUNDED if until is None else until - mean + 1

    def _of(self, tokens: int, sampled: int) -> tuple[int, int]:
        """Return the device's ticks, and the overhead's, that depend on neither context nor blocks."""
        known = self._fixed.get((tokens, sampled))
        if known is None:
            terms = self._terms
            seconds = terms.linear(tokens) + terms.head(sampled) + terms.write(tokens)
            if terms.all_reduce is not None:
                seconds += terms.all_reduce(tokens)
            device = to_ticks(seconds)
            overhead = max(to_ticks(terms.overhead(max(1, sampled))), 1 - device)
            known = self._fixed[tokens, sampled] = device, overhead
            self._note("linear", "tokens in an iteration", tokens)
            self._note("write", "tokens written to the cache at once", tokens)
            self._note("head", "sequences that get a token", sampled)
        return known

    def _note(self, term: str, axis: str, size: int) -> None:
        given = self._ranges.get(term)
        if given is not None and size > given.most:
            self.beyond[axis] = max(size, self.beyond.get(axis, 0))


def _check(profile: Profile, model: ModelSpec, tp: int, block_size: int, kv_dtype: str) -> None:
    name = f"profile {profile.name}"
    check_attends_to_all(model, name)
    if Shape.of(model) != profile.model:
        raise PagesimError(
            f"{name} is for {profile.model.name}, not {model.name}; calibrate {model.name}, "
            f"or make one with `pagesim profile rescale {profile.name} --model {model.name}`"
        )
    if tp != profile.tp:
        raise PagesimError(f"{name} is for tp {profile.tp}, not {tp}; calibrate with --tp {tp}")
    if kv_dtype != profile.kv_dtype:
        raise PagesimError(
            f"{name} was measured with kv_dtype {profile.kv_dtype}, not {kv_dtype}; calibrate with that"
        )
    if block_size not in profile.block_sizes:
        known = ", ".join(map(str, profile.block_sizes)) or "none"
        raise PagesimError(f"{name} was not measured at block_size {block_size}; it knows {known}")
