"""Comparison: one system under each of several policies, with the same memory for all."""

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

    An option that only some of them can use (a static batch's size, how to preempt) is left out for the
    others; where none can use it, it stays, and the run says so. Where their blocks differ in bytes, all get
    the memory of ``num_blocks`` and ``cpu_blocks`` blocks of ``block_size`` tokens (16 when left out) of all
    layers, also those with blocks of their own. Where they would be sized by different rules, all are by the
    paper's.

    Raises:
        PagesimError: a policy is unknown, its parts contradict one another, or that memory is no block of its
            own.
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
    # The rules of sizing differ by more than the systems that are compared.
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
    """Return the numbers of blocks that were asked for, in a policy's own blocks.

    Args:
        asked: the system that was asked for, in blocks of all that its layers keep.
        one: the system under one policy, which may have no swap space.
        own_bytes: of its blocks.
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
    """Say whether a policy's scheduler has an option, takes this value, and its memory goes with it."""
    if option not in SCHEDULERS.find(policy.scheduler).Options.model_fields:
        return False
    try:
        check_preemption(policy, options_of(policy, {option: value}))
    except PagesimError:
        return False
    return True
