"""Shell completion of flag values: policies, models, GPUs, workloads, profiles and so on.

Values are looked up only when the shell asks, so no command is slowed down.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from pkgutil import resolve_name

Complete = Callable[[str], list[str]]


def complete(option: str, choices: Collection[str] = ()) -> Complete | None:
    """Return a completion function for an option's value; None if the values are unknown.

    Args:
        option: a field of a scenario, or one of `SOURCES`.
        choices: the only valid values, if the option has such.
    """
    if not choices and option not in (*SOURCES, "cost"):
        return None
    several = option == "policies"

    def answer(incomplete: str) -> list[str]:
        before, comma, begun = incomplete.rpartition(",") if several else ("", "", incomplete)
        return [f"{before}{comma}{name}" for name in choices or known(option) if name.startswith(begun)]

    return answer


SOURCES = {
    **dict.fromkeys(("policy", "policies"), "pagesim.setup.presets:POLICY_PLUGINS.names"),
    "scheduler": "pagesim.setup.registry:SCHEDULERS.names",
    "allocator": "pagesim.setup.registry:ALLOCATORS.names",
    "model": "pagesim.models:models",
    "gpu": "pagesim.hardware:gpus",
    "trace": "pagesim.workloads:workloads",
    "profile": "pagesim.costs.profiles:bundled_names pagesim.costs.profiles:analytic_names",
    **dict.fromkeys(
        ("router", "prefill_router", "decode_router"), "pagesim.experiments.clusters.routers:PLUGINS.names"
    ),
    "figures": "pagesim.experiments.paper:FIGURES.keys",
}
"""What lists the names of each option's values."""


def known(option: str) -> list[str]:
    """Return the known values of an option."""
    if option == "cost":
        return ["auto", "roofline", "affine:", *(f"profile:{name}" for name in known("profile"))]
    found = [each for source in SOURCES[option].split() for each in resolve_name(source)()]
    names = [getattr(each, "name", each) for each in found]
    return [*names, "all"] if option == "figures" else names
