"""Terminal output of profiles."""

from __future__ import annotations

from collections.abc import Mapping

from pagesim.cli.printing import put_side_by_side, put_table
from pagesim.cli.show import say
from pagesim.costs import Profiled, step_shape
from pagesim.costs.profiles import ANY_BLOCK, Profile
from pagesim.models import model as model_of
from pagesim.sim.clock import TICKS_PER_SECOND

UNITS = {
    "linear": "tokens",
    "head": "sequences",
    "write": "tokens",
    "decode": "sequences",
    "decode_mixed": "sequences",
    "decode_drafts": "sequences",
    "prefill": "prompt tokens",
    "copy": "blocks",
    "swap_out": "blocks",
    "swap_in": "blocks",
    "overhead": "sequences",
    "all_reduce": "tokens",
    "all_reduce_eager": "tokens",
    "experts": "tokens",
}

TYPICAL = {
    "decode, 1 sequence of 500": step_shape(1, 500),
    "decode, 8 of 500": step_shape(8, 4000),
    "decode, 32 of 500": step_shape(32, 16_000),
    "decode, 128 of 500": step_shape(128, 64_000),
    "a prompt of 256": step_shape(0, 0, prompt=256),
    "a prompt of 2048": step_shape(0, 0, prompt=2048),
    "32 of 500 and a prompt of 256": step_shape(32, 16_000, prompt=256),
    "16 blocks out and in": step_shape(0, 0, blocks_out=16, blocks_in=16),
}


def terms(profile: Profile) -> None:
    """Print the sources and errors of a profile's terms."""
    sizes = ", ".join(str(size) if size != ANY_BLOCK else "any" for size in profile.block_sizes)
    say(f"{profile.name}: {profile.kind}")
    say(profile.sentence)
    drafts = f", {profile.queries} queries with drafts" if profile.queries > 1 else ""
    of_model = f"{profile.model.name}, tp {profile.tp}, {profile.dtype}, KV {profile.kv_dtype}"
    say(f"{of_model}, block size {sizes}{drafts}")
    rows = []
    for operator in profile.terms.operators():
        term, _, span = operator.partition(" ")
        given, error = profile.ranges.get(operator), profile.errors.get(operator)
        known = error is not None and error.points > 0
        median = None if error is None else error.median
        rows.append(
            (
                operator,
                profile.origins["reached" if span else term],
                f"{given.least:,} to {given.most:,} {UNITS[term]}" if given else "–",
                f"{error.points:,}" if error else "–",
                f"{100 * median:.1f} %" if known and median is not None else "–",
                f"{100 * error.mean:.1f} %" if error and known else "–",
                f"{100 * error.worst:.1f} %" if error and known else "–",
            )
        )
    heads = ("operator", "from", "measured", "held out", "median error", "mean", "worst")
    put_table("Operators", heads, rows, texts=(0, 1))
    if profile.sources:
        put_table("Sources", ("term", "source"), sorted(profile.sources.items()), texts=(0, 1))


def compared(profiles: Mapping[str, Profile]) -> None:
    """Print the cost of typical iterations under several profiles."""
    costs = []
    for profile in profiles.values():
        known = profile.block_sizes
        block_size = 16 if {16, ANY_BLOCK} & set(known) else known[0]
        model = model_of(profile.model.name)
        costs.append(
            Profiled(profile, model, tp=profile.tp, block_size=block_size, kv_dtype=profile.kv_dtype)
        )
    rows = []
    for label, typical in TYPICAL.items():
        ticks = [cost.iteration(typical) for cost in costs]
        rows.append((label, [f"{1e3 * each / TICKS_PER_SECOND:,.3f}" for each in ticks]))
    put_side_by_side("Iterations, ms", list(profiles), rows)
