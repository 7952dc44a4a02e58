"""A sequence group: what the KV cache knows about one request and its samples."""

from __future__ import annotations

from typing import Any

from pagesim.setup.compiled import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class SequenceGroup:
    """What a block manager knows about a request and its samples; the schedulers' requests derive from it.

    A request *rests* at ``tokens`` tokens during chunked prefill, just after admission, and while swapped
    out. Otherwise it *decodes*: every decode step adds a token, and its length is
    ``length_offset + BlockManager.steps``.

    Attributes:
        samples: unfinished sequences that share the prompt.
        output: tokens that the longest sample generates; only an oracle reservation reads this.
        tokens: tokens of each sample whose KV is stored, while the request rests.
        length_offset: while it decodes, its length minus the decode steps run so far.
        decodes: whether it takes part in ``BlockManager.allocate_step``.
        uncommitted_tokens: trailing tokens that are not known yet, so that their blocks cannot be cached.
        external_tokens: at admission, tokens that will be loaded from another tier.
        lookahead_tokens: trailing slots that a drafter fills, for which no state is kept.
        inflight_tokens: tokens being computed while the next step is planned; what they attend to is not
            released yet. While the request rests before its first decode step, a chunk's tokens. From that
            step on, the tokens of ``BlockManager.steps_in_flight`` steps, even if the request rests again.
        prompt: tokens of its prompt.
        length: tokens to compute before the next one is sampled: the prompt and, after a preemption, the
            generated tokens.
        junction: tokens after which a look-up found that requests diverge; 0 if it found none.
        order: admission number; decoding requests are served in this order.
        content: the identity of its tokens, where a prefix cache is used.
        block_state: the block manager's own data for the request.
        shared: leading blocks that all samples share for good: the full ones of the prompt. Set by the block
            manager for a request of several samples.
        tail_shared: whether the samples share the last, partly filled block until one of them writes to it.
            Set by the block manager for a request of several samples.
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
