"""A sequence group: what the KV cache knows of one request and its samples."""

from __future__ import annotations

from typing import Any

from pagesim.setup.compiled import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class SequenceGroup:
    """What a block manager knows of one request and its samples; a scheduler's request derives from it.

    A request *rests* at ``tokens`` (a prompt in chunks, a request that was just admitted or is swapped out),
    or it *decodes*: then every decode step adds a token, and it holds
    ``length_offset + BlockManager.steps`` of them.

    Attributes:
        samples: sequences that share the prompt and are not over.
        output: tokens that the longest sample generates; only a reservation that is told the future looks.
        tokens: tokens of each sample whose KV is held, while it rests.
        length_offset: while it decodes, its length less the decode steps taken.
        decodes: whether it takes part in ``BlockManager.allocate_step``.
        uncommitted_tokens: tokens at its end that are not known yet, so that no block of theirs can be found.
        external_tokens: when it is admitted, tokens that are going to be loaded from another tier.
        lookahead_tokens: slots at its end that a drafter fills, for which no state is kept.
        inflight_tokens: while it rests, and until its first decode step, tokens of it that are being computed
            when the next step is planned: what they attend to is not released yet. From then on these are
            the tokens of ``BlockManager.steps_in_flight`` steps, and stay so when the request rests again.
        prompt: tokens of its prompt.
        length: tokens that must be computed before the next one is sampled: the prompt, and after a
            preemption what was generated, too.
        junction: tokens after which a look-up found that requests part; 0 for none.
        order: counts admissions; memory serves decoding requests in this order.
        content: what its tokens are, where prefixes are looked for in a cache.
        block_state: what a memory keeps with its request.
        shared: set by memory for a request of several samples: leading blocks that all of them share for
            good, the full ones of the prompt.
        tail_shared: set by memory for a request of several samples: whether they share the last block, which
            is partly filled, until one of them writes to it.
    """

    __slots__ = (
        "block_state",
        "content",
        "decodes",
        "external_tokens",
        "inflight_tokens",
        "junction",
        "length",
        "length_offset",
        "lookahead_tokens",
        "order",
        "output",
        "prompt",
        "samples",
        "shared",
        "tail_shared",
        "tokens",
        "uncommitted_tokens",
    )

    samples: int
    output: int
    tokens: int
    length_offset: int
    decodes: bool
    order: int
    shared: int
    tail_shared: bool
    uncommitted_tokens: int
    external_tokens: int
    lookahead_tokens: int
    inflight_tokens: int
    prompt: int
    length: int
    junction: int
    content: Any
    block_state: Any

    def __init__(self, tokens: int, output: int = 0, samples: int = 1) -> None:
        self.samples = samples
        self.output = output
        self.tokens = tokens
        self.length_offset = 0
        self.decodes = False
        self.uncommitted_tokens = 0
        self.external_tokens = 0
        self.lookahead_tokens = 0
        self.inflight_tokens = 0
        self.prompt = self.length = tokens
        self.junction = 0
        self.content = None
        self.order = 0
        self.shared = 0
        self.tail_shared = False
        self.block_state = None
