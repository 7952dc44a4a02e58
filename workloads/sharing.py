"""What all requests of a trace are given: samples, beams, and a system prompt in front of theirs."""

from __future__ import annotations

import numpy as np

from pagesim.errors import PagesimError
from pagesim.workloads.arrivals import check_seed, numbered_sessions
from pagesim.workloads.trace import MAX_SAMPLES, MAX_TOKENS, Trace
from pagesim.workloads.values import number


def parse_shared_prefix(text: str) -> tuple[int, float]:
    """Return the tokens of a shared prefix and the share of the requests that have it.

    Args:
        text: ``TOKENS`` or ``TOKENS:SHARE``, such as ``341`` or ``341:0.5``; a share left out is 1.

    Raises:
        PagesimError: the text is not so written, the tokens are not 1 to ``MAX_TOKENS``, or the share not 0
            to 1.
    """
    tokens, colon, share = text.partition(":")
    length, part = number(tokens), number(share) if colon else 1.0
    if not (1 <= length <= MAX_TOKENS and length == int(length) and 0 <= part <= 1):
        raise PagesimError(
            f"must be TOKENS or TOKENS:SHARE, such as 341 or 341:0.5: a whole number from 1 to {MAX_TOKENS} "
            "and a number from 0 to 1"
        )
    return int(length), part


def share_prefix(trace: Trace, shared_prefix: str, seed: int = 0) -> Trace:
    """Put one system prompt in front of the prompts of a share of the requests.

    Their ``prompt_tokens`` grow by its tokens, and ``prefix_tokens`` is as many; those of the others stay.
    Which requests have it is drawn, each with the share as its probability. The turns of a conversation all
    have it or none has, so that each still extends the one before.

    Args:
        trace: the requests, without ``hash_ids`` and ``prefix_tokens`` of their own.
        shared_prefix: as ``parse_shared_prefix`` takes.
        seed: of what is drawn; arrivals and lengths drawn with the same seed do not depend on this.

    Returns:
        The trace, and a note that says how many prompts have grown.

    Raises:
        PagesimError: the text is no prefix, the trace says itself what its prompts share, or a prompt would
            be longer than ``MAX_TOKENS``.
    """
    try:
        tokens, share = parse_shared_prefix(shared_prefix)
    except PagesimError as error:
        raise PagesimError(f"shared_prefix is {shared_prefix!r}: {error}") from None
    check_seed(seed)
    for name, column in (("hash_ids", trace.hash_ids), ("prefix_tokens", trace.prefix_tokens)):
        if column is not None:
            raise PagesimError(
                f"shared_prefix is {shared_prefix!r}, but the trace says itself what its prompts share "
                f"({name}); leave it out"
            )
    number_of = numbered_sessions(trace)
    # A stream of its own, or long gaps and long prompts would go with the prefix.
    drawn = np.random.default_rng([seed, 2]).random(int(number_of.max(initial=-1)) + 1) < share
    prefix = np.where(drawn[number_of], tokens, 0)
    longest = int((trace.prompt_tokens + prefix).max(initial=0))
    if longest > MAX_TOKENS:
        raise PagesimError(
            f"shared_prefix is {shared_prefix!r}: the longest prompt would have {longest} tokens, "
            f"and at most {MAX_TOKENS} are possible"
        )
    return trace.with_columns(
        {"prompt_tokens": trace.prompt_tokens + prefix, "prefix_tokens": prefix},
        f"a shared prefix of {tokens} tokens in front of {int((prefix > 0).sum())} of {len(trace)} prompts",
    )


def decode_as(trace: Trace, *, n: int | None = None, beam_width: int | None = None) -> Trace:
    """Return the trace with as many samples, and as many beams, for every request; None leaves a column.

    Args:
        trace: of any requests.
        n: samples of each.
        beam_width: beams of each; 1 is none.

    Raises:
        PagesimError: either is not from 1 to ``MAX_SAMPLES``, or the trace's rows list a length for each
            sample: then their number is given, and no beam search can end them at different lengths.
    """
    for option, value in (("n", n), ("beam_width", beam_width)):
        if value is None:
            continue
        if not 1 <= value <= MAX_SAMPLES:
            raise PagesimError(f"{option} is {value}; it must be a whole number from 1 to {MAX_SAMPLES}")
        if trace.sample_tokens is not None and (option == "n" or value > 1):
            row = next(row for row, own in enumerate(trace.sample_tokens) if len(set(own)) > 1)
            why = (
                "the samples of a request have lengths of their own"
                if option == "n"
                else "samples differ in length, and beams all end together"
            )
            raise PagesimError(
                f"{option} is {value}, but in the trace {why}, as those of request {trace.request_id[row]}; "
                "leave it out"
            )
        trace = trace.with_columns({option: np.full(len(trace), value)})
    return trace
