"""What the shell offers after a flag: names of policies, models, GPUs, workloads, profiles and their like.

Each is looked up when the shell asks, so that no command waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

Complete = Callable[[str], list[str]]


def complete(option: str, choices: Iterable[str] = ()) -> Complete | None:
    """Return what completes the value of an option; None where its values are not known.

    Args:
        option: a field of a scenario, or one of ``NAMES``.
        choices: its values, where it has only these.
    """
    names = (lambda: choices) if choices else NAMES.get(option)
    if names is None:
        return None
    several = option == "policies"

    def answer(incomplete: str) -> list[str]:
        before, comma, begun = incomplete.rpartition(",") if several else ("", "", incomplete)
        return [f"{before}{comma}{name}" for name in names() if name.startswith(begun)]

    return answer


def _policies() -> Iterable[str]:
    from pagesim.setup.presets import POLICY_PLUGINS

    return POLICY_PLUGINS.names()


def _models() -> Iterable[str]:
    from pagesim.models import models

    return [model.name for model in models()]


def _gpus() -> Iterable[str]:
    from pagesim.hardware import gpus

    return [gpu.name for gpu in gpus()]


def _schedulers() -> Iterable[str]:
    from pagesim.setup.registry import SCHEDULERS

    return SCHEDULERS.names()


def _allocators() -> Iterable[str]:
    from pagesim.setup.registry import ALLOCATORS

    return ALLOCATORS.names()


def _workloads() -> Iterable[str]:
    from pagesim.workloads import workloads

    return workloads()


def _routers() -> Iterable[str]:
    from pagesim.experiments.clusters.routers import PLUGINS

    return PLUGINS.names()


def _profiles() -> Iterable[str]:
    from pagesim.costs.profiles import analytic_names, bundled_names

    return [*bundled_names(), *analytic_names()]


def _costs() -> Iterable[str]:
    return ["auto", "roofline", "affine:", *(f"profile:{name}" for name in _profiles())]


def _figures() -> Iterable[str]:
    from pagesim.experiments.paper import FIGURES

    return [*FIGURES, "all"]


NAMES: dict[str, Callable[[], Iterable[str]]] = {
    "policy": _policies,
    "policies": _policies,
    "scheduler": _schedulers,
    "allocator": _allocators,
    "model": _models,
    "gpu": _gpus,
    "trace": _workloads,
    "cost": _costs,
    "profile": _profiles,
    **dict.fromkeys(("router", "prefill_router", "decode_router"), _routers),
    "figures": _figures,
}
