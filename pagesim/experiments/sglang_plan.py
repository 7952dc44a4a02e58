"""How a GPU's memory is used under SGLang: its static share, its pools, and the tokens that they hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pagesim.errors import PagesimError
from pagesim.experiments.plan import MemoryPart
from pagesim.scheduling.sglang import SglangOptions
from pagesim.scheduling.sglang.defaults import most_running, options_of_rank, static_fraction
from pagesim.setup.engine_config import EngineConfig
from pagesim.setup.notes import kernel_notes, kv_notes
from pagesim.setup.pool_plans import host_pool
from pagesim.setup.system import System
from pagesim.sizing import PoolPlan, StatePlan
from pagesim.sizing.static_division import divide_statically


@dataclass(frozen=True)
class SglangPlan:
    """The memory of an SGLang engine before it has served any request.

    Attributes:
        system: the serving system.
        settled: relevant options, with the release's defaults for those that were not given.
        parts: uses of each GPU's memory.
        pools: number of slots of each pool, for a token or a state, and bytes per slot on each GPU; the host
            pool uses no GPU memory.
        max_running_requests: SGLang's limit on running requests, derived from the tokens.
        notes: notes on the model's numbers.
    """

    system: System
    settled: dict[str, Any]
    parts: tuple[MemoryPart, ...]
    pools: dict[str, tuple[int, float]]
    max_running_requests: int
    notes: tuple[str, ...] = ()

    @property
    def tokens(self) -> int:
        """The ``max_total_num_tokens`` of the engine's log."""
        return next(iter(self.pools.values()))[0]

    @property
    def log(self) -> tuple[str, ...]:
        """The lines of the engine's log that give the sizes of its pools."""
        of = self.settled
        return (
            f"max_total_num_tokens={self.tokens}, chunked_prefill_size={of['chunked_prefill_size']}, "
            f"max_running_requests={self.max_running_requests}, context_len={of['max_model_len']}",
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the whole plan, for JSON."""
        return {
            "model": self.system.model,
            "gpu": self.system.gpu,
            "options": self.settled,
            "memory": {part.name.lower().replace(" ", "_") + "_bytes": part.bytes for part in self.parts},
            "pools": {
                name: {"slots": slots, "bytes_per_slot": size} for name, (slots, size) in self.pools.items()
            },
            "max_total_num_tokens": self.tokens,
            "max_running_requests": self.max_running_requests,
            "log": list(self.log),
            "notes": list(self.notes),
        }


def plan_sglang(system: System) -> SglangPlan:
    """Plan the memory of a system with policy ``sglang``.

    Args:
        system: the serving system; its cost model is ignored.

    Raises:
        CapacityError: the model does not fit, or a pool is too small to start.
        PagesimError: an option is invalid, or the model's layers are not simulated under SGLang.
    """
    config = EngineConfig(system)
    if not isinstance(config.options, SglangOptions) or config.sizing != "sglang":
        raise PagesimError(f"policy is {system.policy}; a plan of pools is one of SGLang's: choose sglang")
    sized, options = config.capacity, config.sized_options
    assert isinstance(options, SglangOptions)
    share = static_fraction(options, config.machine)
    division = divide_statically(
        *(config.model, config.gpu),
        tp=config.tp,
        mem_fraction_static=share,
        drafter_bytes=config.drafting.weights,
    )
    slots = sized.num_blocks * sized.block_size
    used = sized.num_blocks * sized.block_bytes
    if isinstance(sized.plan, PoolPlan):
        windows = sized.plan.window_blocks * sized.block_size
        pools = {
            "full attention": (slots, float(sized.plan.full_bytes)),
            f"window {sized.plan.window + 1:,}": (windows, float(sized.plan.window_bytes)),
        }
        used = slots * sized.plan.full_bytes + windows * sized.plan.window_bytes
    elif isinstance(sized.plan, StatePlan):
        pools = {
            "attention": (slots, float(sized.plan.token_bytes)),
            "states": (sized.plan.states, float(sized.plan.state_bytes)),
        }
        if sized.plan.verified:
            pools["states of drafts"] = (sized.plan.verified_states, float(sized.plan.state_bytes))
        used += sized.plan.bytes_of_states
    else:
        pools = {"all layers": (slots, sized.block_bytes / sized.block_size)}
    if (host := host_pool(config)) is not None:
        pools["host"] = (host.tokens, sized.block_bytes / sized.block_size)
    parts = (
        MemoryPart("before weights", division.memory - division.requested, "estimated"),
        MemoryPart("weights", division.weights, config.model.weights_are),
        MemoryPart("activations and CUDA graphs", division.activations, "what the share leaves"),
        MemoryPart("KV pools", used, "the rest of the share"),
    )
    settled = {
        "tensor_parallel_size": system.tensor_parallel_size,
        "weight_dtype": config.model.weights_in_words,
        "kv_cache_dtype": config.kv_dtype,
        "mem_fraction_static": share,
        "max_model_len": config.max_model_len,
        "page_size": sized.block_size,
        "chunked_prefill_size": options_of_rank(options).chunked_prefill_size,
        **options.model_dump(include={"dp_size", "attn_dp_size", "ep_size"}, exclude_defaults=True),
    }
    running = most_running(options, slots, config.max_model_len)
    notes = (*config.model.notes, *kv_notes(config), *kernel_notes(config))
    return SglangPlan(system, settled, parts, pools, running, notes)
