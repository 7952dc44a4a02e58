"""Comparison: one system under each of several policies, all with the same amount of memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from pagesim.errors import PagesimError
from pagesim.models import model
from pagesim.scheduling.sglang import SglangOptions
from pagesim.setup.engine_config import EngineConfig
from pagesim.setup.presets import BLOCK_SIZE, Policy, check_preemption, options_of, parts_of
from pagesim.setup.registry import SCHEDULERS
from pagesim.setup.scenario import Comparison, Scenario
from pagesim.setup.system import MOST_BLOCKS, System

S = TypeVar("S", bound=System)


def scenarios_of(comparison: Comparison) -> dict[str, Scenario]:
    """Return the scenario of each policy of a comparison."""
    scenario = Scenario(**comparison.model_dump(exclude={"policies"}))
    return each_policy(scenario, comparison.policies)


def each_policy(system: S, policies: Sequence[str]) -> dict[str, S]:
    """Return the same system under each of several policies.

    An option that only some policies can use (a static batch's size, the preemption mode) is dropped for the
    others. One that none can use stays, so that the run refuses it. If the policies' blocks differ in bytes,
    each policy gets the same memory: ``num_blocks`` and ``cpu_blocks`` blocks of ``block_size`` tokens (by
    default 16) in all layers, even if its own blocks differ. If their sizing rules differ, the paper's rule
    sizes all.

    Raises:
        PagesimError: a policy is unknown, its parts are incompatible, or that memory comes to no block, or to
            too many, of its own.
    """
    parts = {
        name: parts_of(name, system.scheduler, system.reservation, system.allocator) for name in policies
    }

    kinds = {name: SCHEDULERS.find(part.scheduler) for name, part in parts.items()}
    of_tokens = [name for name, kind in kinds.items() if issubclass(kind.Options, SglangOptions)]
    virtual = [name for name in policies if parts[name].allocator == "virtual"]
    users = {
        "block_size": [name for name in policies if not parts[name].has_own_blocks],
        "page_size": of_tokens if isinstance(system.page_size, int) else virtual,
        "cpu_blocks": [name for name in policies if name not in virtual],
        **{
            option: [name for name in policies if can_use(parts[name], option, value)]
            for option, value in system.scheduler_options.items()
        },
    }
    # Sizing rules differ from one another by more than the compared systems do.
    rules = {kind.sizing for kind in kinds.values()}
    shared = {} if len(rules) == 1 or system.sizing or system.num_blocks else {"sizing": "paper"}
    each = {
        policy: system.model_copy(
            update={
                "policy": policy,
                **shared,
                **{option: None for option, names in users.items() if names and policy not in names},
            }
        )
        for policy in policies
    }
    if system.num_blocks is None and system.cpu_blocks is None:
        return each
    of_blocks = {policy: EngineConfig(one).block.bytes for policy, one in each.items()}
    if len(set(of_blocks.values())) == 1:
        return each
    return {
        policy: one.model_copy(update=_same_memory(system, one, of_blocks[policy]))
        for policy, one in each.items()
    }


def _same_memory(asked: System, one: System, own_bytes: int) -> dict[str, int]:
    """Convert the requested numbers of blocks into a policy's own blocks.

    Args:
        asked: system as requested, whose blocks hold what all layers keep.
        one: system under one policy, which may have no swap space.
        own_bytes: bytes per block under that policy.
    """
    size = asked.block_size or BLOCK_SIZE
    kv_dtype = EngineConfig(asked).kv_dtype
    token_bytes = model(asked.model).kv_bytes_per_token(kv_dtype, asked.tensor_parallel_size)
    own = {}
    for option in ("num_blocks", "cpu_blocks"):
        number = getattr(one, option)
        if number is None:
            continue
        own[option] = number * size * token_bytes // own_bytes
        if not min(number, 1) <= own[option] <= MOST_BLOCKS:
            raise PagesimError(
                f"{option} is {number}; that many blocks of {size} tokens are {own[option]} of "
                f"{one.policy}'s own blocks, and it must be from 1 to {MOST_BLOCKS} of them"
            )
    return own


def can_use(policy: Policy, option: str, value: Any) -> bool:
    """Return whether a policy's scheduler has an option and its scheduler and memory accept the value."""
    if option not in SCHEDULERS.find(policy.scheduler).Options.model_fields:
        return False
    try:
        check_preemption(policy, options_of(policy, {option: value}))
    except PagesimError:
        return False
    return True
