"""``--speculative-config``: who drafts, how many tokens, and what vLLM's scheduler makes of it.

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
"""The methods by which vLLM drafts."""

READS_HIDDEN_STATES: Final = frozenset(("mtp", "eagle", "eagle3"))
"""Those whose drafter reads the model's hidden states, and the token after each."""

ACCEPTANCE: Final[dict[str, tuple[float, ...]]] = {
    "mtp": (0.85, 0.75, 0.65),
    **dict.fromkeys(("eagle", "eagle3", "dflash", "dspark"), (0.75,)),
    "draft_model": (0.7,),
    **dict.fromkeys(("ngram", "ngram_gpu", "suffix"), (0.3,)),
}
"""Presets by method, where a system says no acceptance: the probability that a draft is accepted if all
before it are, by position; the last holds for all further ones.

The first of ``mtp`` is the lower end of what DeepSeek-V3's report has (arXiv 2412.19437, 5.4.3), those of
EAGLE are near EAGLE-3's (arXiv 2503.01840, figure 7), which hardly fall by position; the others are guesses.
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
"""Keys that change neither memory nor scheduling: of kernels, of sampling, of loading and of look-ups."""


class DraftRules(NamedTuple):
    """The numbers by which a method of speculation affects scheduling and memory.

    Attributes:
        num_speculative_tokens: drafts of a request's step, and the states that a state group keeps for them.
        lookahead: slots behind a step's last token, which the drafter fills.
        prefill_lookahead: tokens behind a chunk of a prompt that the drafter reads in its step.
        hash_lookahead: tokens behind a block that its hash covers.
        draft_slots: tokens of a step's budget that each request takes for its drafter, besides its own.
        reads_behind: whether the drafter's KV of a block depends on the token behind the block.
        drops_block: whether the last block of a hit is computed again for that reason.
        max_concurrency: requests that may run at most, whatever ``max_num_seqs``.
        by_batch: (first, last, drafts): the drafts of each request's next step where a step has from
            ``first`` to ``last`` requests; empty for the same drafts always.
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
        """Return the drafts of each request's step after one of so many requests; gaps keep the last."""
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
    """The keys of ``--speculative-config`` that decide on memory or scheduling."""

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
        """The method: as given, or as vLLM tells it from the name of the draft model."""
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
        """Drafts of a request's step at most."""
        tokens = self.num_speculative_tokens or self.n_predict
        assert tokens is not None
        return tokens

    @property
    def reads_hidden_states(self) -> bool:
        """Whether the drafter reads the model's hidden states, and the token after each."""
        return self.drafter in READS_HIDDEN_STATES

    @property
    def modules(self) -> int:
        """MTP modules that draft one token each; 1 where one drafts all."""
        return min(self.n_predict or 1, self.tokens) if self.drafter == "mtp" else 1

    @property
    def drafts_at_once(self) -> bool:
        """Whether the drafter works out all drafts of a request's step in one forward."""
        return self.parallel_drafting or self.drafter in ("dflash", "dspark")

    def acceptance(self, number: float | None) -> tuple[float, ...]:
        """Return the probability of each draft to be accepted if all before it are, by position.

        Args:
            number: that of every draft; None for what the config says, or else the method's preset.
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
        """Return what its method means for scheduling and memory.

        Args:
            caches: whether prefixes are cached.
            connects: whether a connector loads KV from elsewhere, which knows no hashes that look ahead.
            max_num_batched_tokens: the token budget of a step.
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
    """Return the acceptance by which a verification of so many drafts gives so many tokens on average."""
    low, high = 0.0, 1.0
    while high - low > 1e-12:
        rate = (low + high) / 2
        low, high = (rate, high) if sum(rate**at for at in range(drafts + 1)) < length else (low, rate)
    return high


def read_speculative_config(text: str) -> SpeculativeConfig:
    """Read the JSON object of ``--speculative-config``; dashes in keys are underscores.

    Raises:
        PagesimError: it is no object, a key is unknown or not modelled, or a value is off.
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
