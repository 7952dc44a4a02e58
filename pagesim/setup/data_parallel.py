"""Data and expert parallelism: how a system's options divide its model."""

from __future__ import annotations

from dataclasses import replace

from pagesim.errors import PagesimError
from pagesim.models import ModelSpec
from pagesim.models.experts import ExpertBalancer, ExpertDivision
from pagesim.scheduling.vllm_v1_options import VllmV1Options
from pagesim.setup.scenario import SEVERAL
from pagesim.setup.system import System


def ranks_of(system: System) -> int:
    """Return how many data-parallel ranks a system has."""
    return system.option("data_parallel_size") or 1


def engines_of(system: System) -> tuple[str, int]:
    """Return the option that deploys several engines, and their number, which is 1 for a single engine."""
    found = {name: int(system.option(name) or 1) for name in SEVERAL}
    several = [name for name, number in found.items() if number > 1]
    if len(several) > 1:
        raise PagesimError(
            f"{several[0]} is {found[several[0]]} and {several[1]} is {found[several[1]]}; what both do "
            "together is not modelled: leave one of them out"
        )
    return (several[0], found[several[0]]) if several else (SEVERAL[0], 1)


def divided_experts(spec: ModelSpec, system: System, rank: int) -> ModelSpec:
    """Return a model whose experts are divided over GPUs as the system specifies.

    Args:
        spec: the model.
        system: system whose options specify the division.
        rank: data-parallel rank of the engine.

    Raises:
        PagesimError: expert parallelism is requested, but the model has no experts; or vLLM would not start
            with its load balancer.
    """
    if divided := _divided_by_sglang(spec, system):
        return replace(spec, expert_division=divided)
    ranks, whole = ranks_of(system), bool(system.option("enable_expert_parallel"))
    if whole and spec.moe is None:
        raise PagesimError(
            f"enable_expert_parallel is on, and {spec.name} has no experts; vLLM does not start so: leave it "
            "out"
        )
    balancer = _balancer(spec, system)
    if spec.moe is None or (ranks == 1 and not whole):
        return spec
    return replace(spec, expert_division=ExpertDivision(ranks, whole, rank, balancer=balancer))


def _balancer(spec: ModelSpec, system: System) -> ExpertBalancer | None:
    """Return the expert load balancer that a system's options turn on; None if they do not.

    Raises:
        PagesimError: vLLM would not start so (config/parallel.py 563, fused_moe/layer.py 271).
    """
    redundant = system.option("num_redundant_experts") or 0
    if not system.option("enable_eplb"):
        if redundant:
            raise PagesimError(
                f"num_redundant_experts is {redundant}, and enable_eplb is off; vLLM does not start so: turn "
                "it on, or leave num_redundant_experts out"
            )
        return None
    gpus = ranks_of(system) * system.tensor_parallel_size
    if spec.moe is None or gpus == 1 or not system.option("enable_expert_parallel"):
        raise PagesimError(
            "enable_eplb is on; vLLM then wants a model with experts on several GPUs, and "
            "enable_expert_parallel: give these, or leave it out"
        )
    if (copies := spec.moe.experts + redundant) % gpus:
        raise PagesimError(
            f"num_redundant_experts is {redundant}; under EPLB the {copies} experts of {spec.name} must be "
            f"a multiple of the {gpus} GPUs: choose {redundant + -copies % gpus}"
        )
    return ExpertBalancer(redundant, system.option("eplb_window_size") or 1000)


def _divided_by_sglang(spec: ModelSpec, system: System) -> ExpertDivision | None:
    """Return how SGLang divides MLPs over GPUs if that differs from attention; else None.

    Source: 0.5.23, ``models/deepseek_v2.py`` 874 and 2665, ``models/qwen2_moe.py`` 370,
    ``layers/moe/fused_moe_triton/layer.py`` 405, ``models/qwen3_next.py`` 556. Qwen3-Next's shared expert is
    fused with the routed ones and kept whole. With DeepEP each GPU has every model's shared expert whole.

    Raises:
        PagesimError: SGLang does not start with ``moe_dense_tp_size`` (arg_groups/validation_hook.py 207).
    """
    ranks, parts = system.option("attn_dp_size") or 1, system.option("ep_size") or 1
    backend = system.option("moe_a2a_backend") or "none"
    gpus = system.tensor_parallel_size
    dense = system.option("moe_dense_tp_size") or gpus
    if dense not in (1, gpus):
        raise PagesimError(
            f"moe_dense_tp_size is {dense}; SGLang starts only with 1 or all {gpus} GPUs: choose one of them"
        )
    shared_over = 0
    if backend == "deepep":
        shared_over = 1
    elif spec.moe is not None and parts > 1 and fuses_shared_experts(spec):
        shared_over = gpus // parts
    if ranks == 1 and not shared_over and dense == gpus:
        return None
    return ExpertDivision(
        ranks,
        mlps=True,
        whole_mlps=dense == 1,
        head=not system.option("enable_dp_lm_head"),
        shared_over=shared_over,
    )


def fuses_shared_experts(spec: ModelSpec) -> bool:
    """Return whether SGLang turns a model's shared expert into a routed one under expert parallelism.

    On NVIDIA GPUs it does so only for Qwen3-Next.
    """
    moe = spec.moe
    return moe is not None and "qwen3-next" in spec.name.lower() and moe.shared_ffn == moe.expert_ffn


def experts_on_each_gpu(spec: ModelSpec, tp: int) -> list[int]:
    """Return the number of experts on each GPU of all ranks; empty unless experts are divided separately.

    Args:
        spec: the model.
        tp: GPUs per rank.
    """
    division, moe = spec.expert_division, spec.moe
    return [] if division is None or moe is None else division.on_each_gpu(moe.experts, tp)


def steps_together(spec: ModelSpec, options: VllmV1Options) -> bool:
    """Return whether a model's data-parallel ranks step in lockstep, as they do for models with experts.

    Raises:
        PagesimError: they would, but no log shows it with another option; or vLLM would not start.
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
