"""A vLLM command line's flags about data parallelism and experts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pagesim.models import model
from pagesim.setup.serve_words import FlagRefused, machines, number

EXPERTS = "enable-expert-parallel"

START = "data-parallel-start-rank"

OF_RANKS = (
    START,
    *("data-parallel-size-local", "data-parallel-hybrid-lb", "data-parallel-external-lb"),
    "dp-sync-interval",
)
"""Flags that only several ranks use; with a single rank they may at most have the value 1."""

BALANCER = {
    "enable_eplb": "enable-eplb",
    "num_redundant_experts": "eplb-config.num_redundant_experts",
    "eplb_window_size": "eplb-config.window_size",
}
"""Flags of the expert load balancer, by the options that they set."""

OVERLAPPED = ("deepep_low_latency", "deepep_high_throughput", "nixl_ep")
"""All-to-all backends with which a batch can be split to overlap computing with communication (config/vllm.py
2187); no scheduler knows of it."""

BATCHED_EXPERTS = ("deepep_low_latency", "nixl_ep")
"""All-to-all backends with which iterations default to 256 tokens under data and expert parallelism
(``use_batched_dp_moe``, config/scheduler.py 42)."""


def ranks(given: Mapping[str, list[str]], options: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Convert a line's flags about several engines and experts into options, as `FlagTable.settle`.

    Raises:
        FlagRefused: a flag is not modelled, or vLLM does not start with it.
    """
    idle, notes = [], []
    parallel = [options.get(f"{name}_parallel_size", 1) for name in ("tensor", "pipeline")]
    if machines(given, parallel[0] * parallel[1]) > 1 and options.get("data_parallel_size", 1) > 1:
        raise FlagRefused(
            "nnodes",
            "--nnodes beside --data-parallel-size affects scheduling and is not modelled; leave it out",
        )
    moe, size = model(options["model"]).moe, options.get("data_parallel_size", 1)
    if not options.get("enable_eplb"):
        if copies := options.get("num_redundant_experts"):
            flag = BALANCER["num_redundant_experts"]
            raise FlagRefused(
                flag,
                f"--{flag} is {copies} without --enable-eplb; vLLM does not start so: "
                "give both, or leave it out",
            )
        for option, flag in BALANCER.items():
            options.pop(option, None)
            idle.append(flag)
    if options.get("enable_expert_parallel"):
        if moe is None:
            notes.append(f"vLLM has no use for --{EXPERTS} here: {options['model']} has no experts")
        even = moe is not None and moe.experts % options.get("tensor_parallel_size", 1) == 0
        if moe is None or (size == 1 and even and not options.get("enable_eplb")):
            del options["enable_expert_parallel"]
            idle.append(EXPERTS)
    hybrid, external = (options.pop(f"data_parallel_{name}_lb", False) for name in ("hybrid", "external"))
    if START in given and "data_parallel_size_local" in options:
        hybrid = True
    if hybrid and external:
        raise FlagRefused(
            "data-parallel-external-lb",
            "--data-parallel-hybrid-lb and --data-parallel-external-lb; vLLM does not start so: leave one of "
            "them out",
        )
    if size == 1:
        for name in OF_RANKS:
            if given.get(name, ["false"]) not in (["false"], ["1"]):
                raise FlagRefused(
                    name,
                    f"--{' '.join((name, *given[name]))} affects scheduling and is not modelled; it goes "
                    "with --data-parallel-size",
                )
        for name in (*OF_RANKS, "data-parallel-size", "api-server-count"):
            options.pop(name.replace("-", "_"), None)
            idle.append(name)
        return idle, notes
    if hybrid or external:
        options["data_parallel_lb"] = "hybrid" if hybrid else "external"
    backend = given.get("all2all-backend", [""])[-1]
    parts = number("parts", int)("ubatch-size", given.get("ubatch-size", ["0"])[-1])["parts"]
    if parts > 1 or given.get("enable-dbo", ["false"]) != ["false"]:
        name = "ubatch-size" if parts > 1 else "enable-dbo"
        if backend not in OVERLAPPED:
            raise FlagRefused(
                name,
                f"--{name} needs --all2all-backend {', '.join(OVERLAPPED)}; vLLM does not start so: give one "
                "of them, or leave it out",
            )
        notes.append(
            f"--{name} changes neither memory nor scheduling; the time that it saves by overlapping parts of "
            "a batch is not subtracted"
        )
    if options.get("enable_expert_parallel") and backend in BATCHED_EXPERTS:
        options.setdefault("max_num_batched_tokens", 256)
    return idle, notes
