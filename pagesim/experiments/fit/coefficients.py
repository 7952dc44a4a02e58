"""Coefficients: the seconds that a server's iterations consist of, and the profile that they make."""

from __future__ import annotations

from typing import NamedTuple

from pagesim.costs.profiles import BLOCK_CURVES, Profile, Shape, Terms
from pagesim.costs.table import Table, bilinear, constant
from pagesim.models import ModelSpec

NOTHING = constant("tokens", 0.0)


class Coefficients(NamedTuple):
    """Seconds of an iteration, each times its regressor.

    Attributes:
        iteration_s: of every iteration.
        sequence_s: a sequence that gets a token.
        context_s: a token of context that a decoding sequence reads.
        prompt_token_s: a token of a prompt.
        prompts_s: of an iteration that computes any of a prompt.
        pair_s: a query and a key of a prompt.
    """

    iteration_s: float
    sequence_s: float
    context_s: float = 0.0
    prompt_token_s: float = 0.0
    prompts_s: float = 0.0
    pair_s: float = 0.0


def profile_of(
    coefficients: Coefficients,
    model: ModelSpec,
    *,
    tp: int,
    kv_dtype: str,
    block_size: int,
    tokens: Table = NOTHING,
    moves: Terms | None = None,
) -> Profile:
    """Return the profile of these coefficients, without operators, and without what it is called.

    Args:
        coefficients: seconds of an iteration, each times its regressor.
        model: that was served.
        tp: GPUs over which it is divided.
        kv_dtype: of its cache.
        block_size: tokens a block.
        tokens: seconds of an iteration by its tokens, of prompts or not, in addition.
        moves: of which copies and swaps are taken, which no log shows; they take no time when left out.
    """
    each = coefficients
    nothing = {block_size: constant("blocks", 0.0)}
    copy, swap_out, swap_in = (
        (nothing,) * 3 if moves is None else (moves.copy_, moves.swap_out, moves.swap_in)
    )
    terms = Terms(
        linear=tokens,
        head=constant("sequences", 0.0),
        write=NOTHING,
        decode={block_size: bilinear("sequences", "context", each_s=each.context_s)},
        prefill={
            block_size: bilinear(
                "tokens",
                "keys",
                launch_s=each.prompts_s,
                first_s=each.prompt_token_s,
                each_s=each.pair_s,
            )
        },
        copy=copy,
        swap_out=swap_out,
        swap_in=swap_in,
        overhead=constant("sequences", each.iteration_s),
    )
    made = Profile(
        name="fitted",
        kind="measured",
        sentence=f"fitted to the logs of a server of {model.name}",
        model=Shape.of(model),
        tp=tp,
        dtype=model.weights_in_words,
        kv_dtype=kv_dtype,
        terms=terms,
        origins={**dict.fromkeys(terms.names(), "measured"), **dict.fromkeys(BLOCK_CURVES, "datasheet")},
        ranges={},
        errors={},
    )
    return made.with_overhead(each.iteration_s, each.sequence_s)
