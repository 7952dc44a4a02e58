"""``pagesim policies|models|gpus|workloads|profiles``: what there is, with a sentence each."""

from __future__ import annotations

from collections.abc import Callable, Iterable


def policies() -> None:
    """List the policies."""
    from pagesim.policies import POLICY_PLUGINS

    every = {name: POLICY_PLUGINS.find(name) for name in POLICY_PLUGINS.names()}
    _print(
        ("policy", "scheduler", "reservation", "placement", ""),
        [(name, p.scheduler, p.reservation, p.placement, p.sentence) for name, p in every.items()],
    )


def models() -> None:
    """List the models that have a name."""
    from pagesim.specs import models as all_models

    _print(
        ("model", "parameters", "attention", "KV bytes a token, fp16", "longest"),
        [
            (
                m.name,
                f"{m.parameters / 1e9:.2f} B",
                m.attention,
                f"{m.kv_bytes_per_token():,}",
                f"{m.max_model_len:,}",
            )
            for m in all_models()
        ],
    )


def gpus() -> None:
    """List the GPUs."""
    from pagesim.specs import gpus as all_gpus

    _print(
        ("gpu", "memory", "fp16 peak", "HBM", "host link", "source"),
        [
            (
                g.name,
                f"{g.memory_bytes / 2**30:.2f} GiB",
                f"{g.fp16_flops / 1e12:g} TFLOP/s",
                f"{g.hbm_bytes_per_s / 1e9:g} GB/s",
                f"{g.host.bytes_per_s / 1e9:g} GB/s",
                g.source,
            )
            for g in all_gpus()
        ],
    )


def workloads() -> None:
    """List the bundled workloads."""
    from pagesim.workloads import workloads as bundled

    _print(("workload", ""), list(bundled().items()))


def profiles() -> None:
    """List the profiles that come with pagesim."""
    from pagesim.profiles import analytic_names, boxed, boxed_names

    measured = [boxed(name) for name in boxed_names()]
    _print(
        ("profile", "kind", "model", "tp", "block sizes", ""),
        [
            *(
                (
                    p.name,
                    p.kind,
                    p.model.name,
                    str(p.tp),
                    ", ".join(map(str, p.block_sizes)),
                    p.sentence,
                )
                for p in measured
            ),
            *(
                (
                    name,
                    "analytic",
                    "any",
                    "any",
                    "any",
                    "datasheet and rules of thumb: nothing was measured",
                )
                for name in analytic_names()
            ),
        ],
    )


COMMANDS: dict[str, Callable[[], None]] = {
    "policies": policies,
    "models": models,
    "gpus": gpus,
    "workloads": workloads,
    "profiles": profiles,
}


def _print(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table()
    for place, name in enumerate(head):
        table.add_column(name, no_wrap=place == 0)  # a name stays whole on a narrow terminal
    for row in rows:
        table.add_row(*row)
    Console().print(table)
