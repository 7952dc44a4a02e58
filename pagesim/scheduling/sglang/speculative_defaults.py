"""SGLang's defaults for speculative decoding, and the option combinations with which it does not start.

Source: 0.5.23, ``srt/arg_groups/speculative_hook.py``.
"""

from __future__ import annotations

from typing import Any

from pagesim.errors import PagesimError
from pagesim.scheduling.options import Machine
from pagesim.scheduling.sglang.options import EAGLES, SglangOptions

MOST_RUNNING = 48
"""Default maximum number of running requests."""

LLAMA = (5, 4, 8)
"""Steps, branches and verified tokens for Llama (not Llama 4) and Grok."""

OTHERS = (3, 1, 4)
"""The same for all other models, and for STANDALONE, where a whole model drafts."""

NGRAM_TOKENS = 12
"""Tokens that a step verifies per request with NGRAM, where no model drafts."""

NGRAM_BRANCHES = 10
"""Number of branches with NGRAM: ``--speculative-ngram-max-bfs-breadth``."""

_GOES_WITH = (
    "speculative_num_steps",
    "speculative_eagle_topk",
    "speculative_num_draft_tokens",
    "speculative_draft_model_path",
    "acceptance",
)


def speculating(options: SglangOptions, machine: Machine, *, paged: bool) -> dict[str, Any]:
    """Return the options that speculative decoding changes, with their values; empty without it.

    Args:
        options: the options as given.
        machine: the GPUs that the model is served on.
        paged: whether SGLang's default kernels work on pages on these GPUs.

    Raises:
        PagesimError: the engine would not start with these options.
    """
    algorithm = options.speculative_algorithm
    if algorithm is None:
        if given := [name for name in _GOES_WITH if getattr(options, name) is not None]:
            raise PagesimError(
                f"{given[0]} is {getattr(options, given[0])}, and nothing drafts: give speculative_algorithm"
            )
        return {}
    if options.attn_dp_size > 1 and algorithm not in EAGLES:
        raise PagesimError(
            f"speculative_algorithm is {algorithm}, with which SGLang does not start beside attn_dp_size "
            f"{options.attn_dp_size}: leave one of them out"
        )
    if algorithm == "STANDALONE" and options.speculative_draft_model_path is None:
        raise PagesimError(
            "speculative_algorithm is STANDALONE, by which a whole model drafts: give "
            "speculative_draft_model_path"
        )
    steps, topk, verified = _ngram(options) if algorithm == "NGRAM" else _of_model(options, machine)
    if paged and topk > 1:
        raise PagesimError(
            f"speculative_eagle_topk is {topk}, and SGLang's own kernels on {machine.gpu} verify a single "
            "branch: give speculative_num_steps with speculative_eagle_topk 1"
        )
    return {
        "max_running_requests": options.max_running_requests or MOST_RUNNING,
        "enable_mixed_chunk": options.enable_mixed_chunk and algorithm in EAGLES,
        "speculative_num_steps": steps,
        "speculative_eagle_topk": topk,
        "speculative_num_draft_tokens": verified,
    }


def _ngram(options: SglangOptions) -> tuple[int, int, int]:
    """Return steps, branches and verified tokens if no model drafts."""
    verified = options.speculative_num_draft_tokens or NGRAM_TOKENS
    steps = options.speculative_num_steps
    return verified // NGRAM_BRANCHES if steps is None else steps, NGRAM_BRANCHES, verified


def _of_model(options: SglangOptions, machine: Machine) -> tuple[int, int, int]:
    """Return steps, branches and verified tokens if a model, or a part of one, drafts."""
    steps, topk = options.speculative_num_steps, options.speculative_eagle_topk
    verified = options.speculative_num_draft_tokens
    if steps is None:
        if topk is not None or verified is not None:
            name = "speculative_num_draft_tokens" if topk is None else "speculative_eagle_topk"
            raise PagesimError(
                f"{name} is {getattr(options, name)} without speculative_num_steps, and SGLang does not "
                "start so: give both, or leave both out"
            )
        steps, topk, verified = _by_family(options, machine)
    if topk is None or (topk > 1 and verified is None):
        missing = "speculative_eagle_topk" if topk is None else "speculative_num_draft_tokens"
        raise PagesimError(
            f"speculative_num_steps is {steps} without {missing}, and SGLang does not start so: give both, "
            "or leave both out"
        )
    return steps, topk, steps + 1 if topk == 1 or verified is None else verified


def _by_family(options: SglangOptions, machine: Machine) -> tuple[int, int, int]:
    """Return the default steps, branches and verified tokens for a model, by its name."""
    name = machine.model.lower()
    is_llama = ("llama" in name and "llama-4" not in name) or "grok" in name
    return LLAMA if is_llama and options.speculative_algorithm != "STANDALONE" else OTHERS
