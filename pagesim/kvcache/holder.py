"""A holder of memory: what a KV cache knows of one request."""

from __future__ import annotations

from typing import Any

from pagesim.setup.compiled import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class Holder:
    """What memory knows of one request; a scheduler's request derives from it.

    A holder *rests* at ``tokens`` (a prompt in chunks, a request that was just admitted or is swapped out),
    or it *decodes*: then every step of growth adds ``growth`` tokens, and it holds
    ``base + growth · BlockManager.steps`` of them.

    Attributes:
        samples: sequences that share the prompt and are not over.
        output: tokens that the longest sample generates; only a reservation that is told the future looks.
        tokens: tokens of each sample whose KV is held, while it rests.
        base: while it decodes, its length less ``growth`` times the steps of growth taken.
        growth: tokens that a step adds to each sample.
        decodes: whether it takes part in ``BlockManager.grow``.
        unknown: tokens at its end that are not known yet, so that no block of theirs can be found; when it is
            admitted, tokens that are going to be loaded from another tier.
        in_flight: while it rests, and until its first step of growth, tokens of it that are being computed
            when the next step is planned: what they attend to is not released yet. From then on these are
            ``BlockManager.lag`` steps' tokens, and memory leaves it at that when the holder rests again.
        prompt: tokens of its prompt.
        length: tokens that must be computed before the next one is sampled: the prompt, and after a
            preemption what was generated, too.
        junction: tokens after which a look-up found that requests part; 0 for none.
        order: counts admissions; memory serves decoding holders in this order.
        content: what its tokens are, where prefixes are looked for in a cache.
        kv: what a memory keeps with its holder.
        shared: set by memory for a holder of several samples: leading blocks that all of them share for good,
            the full ones of the prompt.
        tail_shared: likewise, whether they share the last, partly filled block as well, until one of them
            writes to it.
    """

    __slots__ = (
        "base",
        "content",
        "decodes",
        "growth",
        "in_flight",
        "junction",
        "kv",
        "length",
        "order",
        "output",
        "prompt",
        "samples",
        "shared",
        "tail_shared",
        "tokens",
        "unknown",
    )

    samples: int
    output: int
    tokens: int
    base: int
    growth: int
    decodes: bool
    order: int
    shared: int
    tail_shared: bool
    unknown: int
    in_flight: int
    prompt: int
    length: int
    junction: int
    content: Any
    kv: Any

    def __init__(self, tokens: int, output: int = 0, samples: int = 1) -> None:
        self.samples = samples
        self.output = output
        self.tokens = tokens
        self.base = 0
        self.growth = 1
        self.decodes = False
        self.unknown = 0
        self.in_flight = 0
        self.prompt = self.length = tokens
        self.junction = 0
        self.content = None
        self.order = 0
        self.shared = 0
        self.tail_shared = False
        self.kv = None
