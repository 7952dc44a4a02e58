"""Data and expert parallelism: what its options make of a system's model."""

from __future__ import annotations

from dataclasses import replace

from pagesim.errors import PagesimError
from pagesim.models import ModelSpec
from pagesim.models.experts import ExpertDivision
from pagesim.scheduling.vllm_v1_options import VllmV1Options
from pagesim.setup.system import System


def ranks_of(system: System) -> int:
    """Return how many data-parallel ranks a system has."""
    return system.option("data_parallel_size") or 1


def divided_experts(spec: ModelSpec, system: System, rank: int) -> ModelSpec:
    """Return a model whose experts are divided over GPUs as a system says.

    Args:
        spec: the model.
        system: whose options decide.
        rank: of the engine among data-parallel ones.
    """
    ranks, whole = ranks_of(system), bool(system.option("enable_expert_parallel"))
    if spec.moe is None or (ranks == 1 and not whole):
        return spec
    return replace(spec, expert_division=ExpertDivision(ranks, whole, rank))


def experts_on_each_gpu(spec: ModelSpec, tp: int) -> list[int]:
    """Return the experts on each GPU of all ranks, where they are divided otherwise than all else; else none.

    Args:
        spec: the model.
        tp: GPUs of a rank.
    """
    division, moe = spec.expert_division, spec.moe
    return [] if division is None or moe is None else division.on_each_gpu(moe.experts, tp)


def steps_together(spec: ModelSpec, options: VllmV1Options) -> bool:
    """Say whether data-parallel ranks of a model run each pass together, as those with experts do.

    Raises:
        PagesimError: they would, and beside something that no log shows; or they cannot be served so.
    """
    if spec.moe is None:
        if options.balancing == "external":
            raise PagesimError(
                f"data_parallel_lb is external, and {spec.name} has no experts; vLLM does not start so: give "
                "replicas and a router, which is the same"
            )
        return False
    beside = {
        options.tier_option: options.offloads,
        "speculative decoding": options.speculation is not None,
        "pipeline_parallel_size": (options.pipeline_parallel_size or 1) > 1,
    }
    for what, is_there in beside.items():
        if is_there:
            raise PagesimError(
                f"data_parallel_size is {options.ranks}, and {spec.name} has experts; what {what} does where "
                "engines step together is in no log of vLLM's decisions: leave one of them out"
            )
    return True
