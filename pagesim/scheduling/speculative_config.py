"""``--speculative-config``: the drafting method, its draft tokens, and their effect on vLLM's scheduler.

Source: vLLM 0.33.0, config/speculative.py and config/vllm.py.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pagesim.errors import PagesimError, brief, reason
from pagesim.setup.reading import parse_json

METHODS: Final = (
    *("ngram", "ngram_gpu", "suffix", "mtp", "eagle", "eagle3", "draft_model", "dflash", "dspark"),
)
"""vLLM's drafting methods."""

READS_HIDDEN_STATES: Final = frozenset(("mtp", "eagle", "eagle3"))
"""Methods whose drafter reads the model's hidden states and the token after each."""

ACCEPTANCE: Final[dict[str, tuple[float, ...]]] = {
    "mtp": (0.85, 0.75, 0.65),
    **dict.fromkeys(("eagle", "eagle3", "dflash", "dspark"), (0.75,)),
    "draft_model": (0.7,),
    **dict.fromkeys(("ngram", "ngram_gpu", "suffix"), (0.3,)),
}
"""Presets by method for systems that set no acceptance: the probability, by position, that a draft is
accepted if all before it are. The last one applies to all further positions.

The first of ``mtp`` is the lower end of the range in DeepSeek-V3's report (arXiv 2412.19437, 5.4.3). EAGLE's
are near EAGLE-3's (arXiv 2503.01840, figure 7), which hardly fall with the position. Others are guesses.
"""

MOST_DRAFTS: Final = 1024

UNLIMITED_CONCURRENCY: Final = 1 << 40

WITHOUT_EFFECT: Final = frozenset(
    (
        *("quantization", "moe_backend", "attention_backend", "enforce_eager", "rejection_sample_method"),
        *("draft_sample_method", "use_local_argmax_reduction", "draft_lm_head_quantization", "revision"),
        *("code_revision", "prompt_lookup_max", "prompt_lookup_min", "draft_tensor_parallel_size"),
        *("suffix_decoding_max_tree_depth", "suffix_decoding_max_cached_requests", "tokenizer"),
        *(
            "suffix_decoding_max_spec_factor",
            "suffix_decoding_min_token_prob",
            "disable_padded_drafter_batch",
        ),
    )
)
"""Keys that affect neither memory nor scheduling: those for kernels, sampling, loading and look-ups."""


class DraftRules(NamedTuple):
    """The numbers through which a drafting method affects scheduling and memory.

    Attributes:
        num_speculative_tokens: draft tokens per request and step; a state group keeps as many states.
        lookahead: slots after a step's last token, which the drafter fills.
        prefill_lookahead: tokens after a prompt chunk that the drafter reads in that chunk's step.
        hash_lookahead: tokens after a block that its hash covers.
        draft_slots: tokens of a step's budget that each request uses for its drafter, besides its own.
        reads_behind: whether the drafter's KV of a block depends on the token after the block.
        drops_block: whether the last block of a hit is recomputed for that reason.
        max_concurrency: maximum number of running requests, regardless of ``max_num_seqs``.
        by_batch: (first, last, drafts): draft tokens of each request's next step if the current one has from
            ``first`` to ``last`` requests; empty if the number is constant.
    """

    num_speculative_tokens: int
    lookahead: int = 0
    prefill_lookahead: int = 0
    hash_lookahead: int = 0
    draft_slots: int = 0
    reads_behind: bool = False
    drops_block: bool = False
    max_concurrency: int = UNLIMITED_CONCURRENCY
    by_batch: tuple[tuple[int, int, int], ...] = ()

    def drafts_after(self, requests: int) -> int:
        """Return the draft tokens per request after a step of ``requests`` requests; gaps keep the last."""
        if not self.by_batch:
            return self.num_speculative_tokens
        drafts = 0
        for first, last, of_batch in self.by_batch:
            if first > requests:
                break
            drafts = of_batch
            if requests <= last:
                break
        return min(drafts, self.num_speculative_tokens)


class SpeculativeConfig(BaseModel):
    """The keys of ``--speculative-config`` that affect memory or scheduling."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    method: str | None = None
    model: str | None = None
    num_speculative_tokens: int | None = Field(None, ge=1, le=MOST_DRAFTS)
    n_predict: int | None = Field(None, ge=1, le=MOST_DRAFTS)
    max_model_len: int | None = Field(None, ge=1)
    kv_cache_dtype: str | None = None
    parallel_drafting: bool = False
    disable_eagle_block_drop: bool = False
    disable_lookahead_block_hashes: bool = False
    num_speculative_tokens_per_batch_size: tuple[tuple[int, int, int], ...] = ()
    synthetic_acceptance_rates: tuple[float, ...] | None = None
    synthetic_acceptance_length: float | None = Field(None, ge=1)

    @property
    def drafter(self) -> str:
        """Drafting method: as given, or as vLLM infers it from the name of the draft model."""
        method, model = self.method, (self.model or "").lower()
        if method is not None:
            return "mtp" if method.endswith("_mtp") else method
        if model in ("ngram", "[ngram]"):
            return "ngram"
        for name in ("eagle3", "eagle-", "dflash", "dspark"):
            if name in model:
                return name.removesuffix("-")
        if "mtp" in model or "assistant" in model:
            return "mtp"
        return "draft_model"

    @property
    def tokens(self) -> int:
        """Maximum number of draft tokens per request and step."""
        tokens = self.num_speculative_tokens or self.n_predict
        assert tokens is not None
        return tokens

    @property
    def reads_hidden_states(self) -> bool:
        """Whether the drafter reads the model's hidden states and the token after each."""
        return self.drafter in READS_HIDDEN_STATES

    @property
    def modules(self) -> int:
        """Number of MTP modules that draft one token each; 1 if one drafts all tokens."""
        return min(self.n_predict or 1, self.tokens) if self.drafter == "mtp" else 1

    @property
    def drafts_at_once(self) -> bool:
        """Whether the drafter computes all draft tokens of a request's step in one forward pass."""
        return self.parallel_drafting or self.drafter in ("dflash", "dspark")

    def acceptance(self, number: float | None) -> tuple[float, ...]:
        """Return the probability, by position, that a draft is accepted if all before it are.

        Args:
            number: probability for every position; None for the config's own or else the method's preset.
        """
        if number is not None:
            return (number,)
        rates, length = self.synthetic_acceptance_rates, self.synthetic_acceptance_length
        if rates:
            before = (1.0, *rates)
            return tuple([rate / last if last else 0.0 for last, rate in zip(before, rates, strict=False)])
        if length is not None:
            return (_rate_of_length(length, self.tokens),)
        return ACCEPTANCE[self.drafter]

    def rules(self, *, caches: bool, connects: bool, max_num_batched_tokens: int) -> DraftRules:
        """Return the effects of the drafting method on scheduling and memory.

        Args:
            caches: whether prefixes are cached.
            connects: whether a connector loads KV from elsewhere, which rules out hashes that look ahead.
            max_num_batched_tokens: token budget of a step.
        """
        drafts, method, hidden = self.tokens, self.drafter, self.reads_hidden_states
        anchored = method in ("dflash", "dspark")
        lookahead = drafts if hidden or method in ("draft_model", "dspark") else 0
        lookahead = drafts + 1 if method == "dflash" else lookahead
        prefill = self.modules if self.modules == 1 else drafts
        prefill = prefill if hidden or anchored else 0
        may_drop = hidden and caches and not self.disable_eagle_block_drop
        looks_ahead = may_drop and not (connects or self.disable_lookahead_block_hashes)
        slots = 1 if method == "draft_model" else 0
        if self.parallel_drafting:
            slots = drafts if method == "draft_model" else drafts - 1
        return DraftRules(
            num_speculative_tokens=drafts,
            lookahead=lookahead,
            prefill_lookahead=prefill,
            hash_lookahead=prefill if looks_ahead else 0,
            draft_slots=slots,
            reads_behind=hidden and not self.disable_eagle_block_drop and not looks_ahead,
            drops_block=may_drop and not looks_ahead,
            max_concurrency=max_num_batched_tokens // lookahead if anchored else UNLIMITED_CONCURRENCY,
            by_batch=tuple(sorted(self.num_speculative_tokens_per_batch_size)),
        )


def _rate_of_length(length: float, drafts: int) -> float:
    """Return the acceptance at which verifying ``drafts`` drafts yields ``length`` tokens on average."""
    low, high = 0.0, 1.0
    while high - low > 1e-12:
        rate = (low + high) / 2
        low, high = (rate, high) if sum(rate**at for at in range(drafts + 1)) < length else (low, rate)
    return high


def read_speculative_config(text: str) -> SpeculativeConfig:
    """Read the JSON object of ``--speculative-config``; dashes in keys are read as underscores.

    Raises:
        PagesimError: it is no JSON object, a key is unknown or not modelled, or a value is invalid.
    """
    try:
        given = parse_json(text)
    except ValueError as error:
        raise PagesimError(f"speculative_config is no JSON: {reason(error)}") from None
    if not isinstance(given, dict):
        raise PagesimError(f"speculative_config is {brief(given)}; it must be a JSON object")
    keys: dict[str, Any] = {name.replace("-", "_"): value for name, value in given.items()}
    kept = {name: value for name, value in keys.items() if name not in WITHOUT_EFFECT}
    try:
        config = SpeculativeConfig.model_validate(kept)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise PagesimError(
            f"speculative_config: {where} is {brief(first['input'])}: {first['msg']}"
        ) from None
    if config.drafter not in METHODS:
        raise PagesimError(
            f"speculative_config: method is {config.method}; it must be one of {', '.join(METHODS)}, or end "
            "in _mtp"
        )
    return config
