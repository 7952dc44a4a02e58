"""``pagesim list policies|allocators|evictions|options|flags|models|…``: what is available."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from pagesim.cli.flags import JSON
from pagesim.cli.printing import put_table
from pagesim.cli.show import as_json, say
from pagesim.errors import PagesimError, brief

if TYPE_CHECKING:
    from pagesim.models import ModelSpec
    from pagesim.setup.plugins import Plugins

PATTERN = Annotated[
    str | None,
    typer.Argument(metavar="PATTERN", help="Part of a name, or of an ORG/NAME. Defaults to all models."),
]
SCHEDULER = Annotated[
    str | None,
    typer.Argument(metavar="SCHEDULER", help="Scheduler of the options. Defaults to all."),
]

FLAG = Annotated[
    str | None,
    typer.Argument(metavar="PATTERN", help="Part of a flag or a variable. Defaults to all."),
]

cli = typer.Typer(
    help="List policies, options, flags, models, GPUs and more.\n\nExample: pagesim list policies",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@cli.command("policies")
def policies() -> None:
    """List the policies.

    Example: pagesim list policies
    """
    from pagesim.setup.presets import POLICY_PLUGINS

    every = {name: POLICY_PLUGINS.find(name) for name in POLICY_PLUGINS.names()}
    put_table(
        "",
        ("policy", "scheduler", "reservation", "allocator", ""),
        [(name, p.scheduler, p.reservation, p.allocator, p.sentence) for name, p in every.items()],
        texts=range(5),
    )


@cli.command("allocators")
def allocators() -> None:
    """List the allocators that --allocator takes.

    Example: pagesim list allocators
    """
    from pagesim.setup.registry import ALLOCATORS

    _list("allocator", ALLOCATORS)


@cli.command("evictions")
def evictions() -> None:
    """List the eviction policies: which block is evicted first.

    pagesim cache compares them; offloading tiers use them, too.

    Example: pagesim list evictions
    """
    from pagesim.eviction import EVICTION_POLICIES

    _list("eviction", EVICTION_POLICIES)


def _list(what: str, parts: Plugins[Any]) -> None:
    from pagesim.cli.printing import put_table

    put_table("", (what, ""), [(name, parts.sentence(name)) for name in parts.names()], texts=(0, 1))


@cli.command("options")
def options(scheduler: SCHEDULER = None) -> None:
    """List the options of the engines' schedulers, including those of plug-ins.

    Every command that takes a scenario accepts them, such as --max-num-seqs 64.

    Example: pagesim list options vllm-v1
    """
    from pagesim.setup.registry import SCHEDULERS, declared

    names = SCHEDULERS.names() if scheduler is None else (scheduler,)
    put_table(
        "",
        ("option", "scheduler", ""),
        [
            (
                "--" + option.replace("_", "-"),
                name,
                (field.description or "") + ("" if field.default is None else f" [default: {field.default}]"),
            )
            for option, having in declared(names).items()
            for name, field in having
        ],
        texts=range(3),
    )


@cli.command("flags")
def flags(pattern: FLAG = None) -> None:
    """List the flags and variables of vLLM's and SGLang's servers, and how --serve treats each.

    A flag is 'taken' where it changes the simulation. Others have no effect here, or are refused unless they
    have one of the values listed after 'but for'.

    Example: pagesim list flags kv-cache
    """
    from pagesim.setup.serve_flags import flags_of

    wanted = (pattern or "").lstrip("-").replace("_", "-").lower()
    found = [
        flag
        for engine in ("vllm", "sglang")
        for flag in flags_of(engine).values()
        if wanted in flag.flag.replace("_", "-").lower()
    ]
    if not found:
        raise PagesimError(f"no flag of vLLM or SGLang has {brief(pattern, 80)} in its name")
    put_table(
        "",
        ("flag", "of", "", "option, but for", "", "read in"),
        [
            (
                flag.flag if flag.is_variable else f"--{flag.flag}",
                flag.engine,
                flag.kind,
                flag.option or ", ".join(flag.values),
                flag.does,
                flag.source,
            )
            for flag in found
        ],
        texts=range(6),
    )


@cli.command("models")
def models(pattern: PATTERN = None, *, json: JSON = False) -> None:
    """List the models by name, or those that match a pattern, with their Hugging Face ids.

    Layers with a window, a chunk or a state keep fewer bytes per token than listed. 'Unverified' means that
    the model's config.json was not available.

    Example: pagesim list models qwen3.5
    """
    from pagesim.models.catalogue import matching
    from pagesim.models.catalogue.rows import names
    from pagesim.models.catalogue.unknown import unknown

    found = matching(pattern or "")
    if not found:
        assert pattern
        raise unknown(pattern)
    if json:
        as_json([_model(each) for each in found])
        return
    put_table(
        "",
        (
            *("model", "params\n10⁹", "heads", "layers", "KV, fp16\nbytes a token"),
            *("longest\ntokens", ""),
        ),
        [
            (
                m.name,
                f"{m.parameters / 1e9:,.3f}",
                m.attention,
                m.layers_in_words,
                f"{m.kv_bytes_per_token():,}",
                f"{m.max_model_len:,}",
                "unverified" if m.unverified else "",
            )
            for m in found
        ],
        texts=(0, 2, 3, 6),
    )
    if pattern:
        for each in found:
            if ids := names()[each.name].get("ids"):
                say(f"{each.name}: {', '.join(ids)}")


def _model(spec: ModelSpec) -> dict[str, Any]:
    """Return a model's listing, for JSON."""
    from pagesim.models.catalogue.rows import names

    return {
        "model": spec.name,
        "ids": list(names()[spec.name].get("ids", ())),
        "parameters": spec.parameters,
        "active_parameters": spec.active_parameters,
        "attention": spec.attention,
        "layers": spec.layers_in_words,
        "kv_bytes_per_token": spec.kv_bytes_per_token(),
        "max_model_len": spec.max_model_len,
        "source": spec.source,
        "unverified": spec.unverified,
    }


@cli.command("gpus")
def gpus() -> None:
    """List the GPUs.

    Example: pagesim list gpus
    """
    from pagesim.hardware import gpus as all_gpus

    put_table(
        "",
        ("gpu", "memory\nGiB", "fp16 peak\nTFLOP/s", "HBM\nGB/s", "host link\nGB/s", "source"),
        [
            (
                g.name,
                f"{g.memory_bytes / 2**30:.2f}",
                f"{g.fp16_flops / 1e12:,.1f}",
                f"{g.hbm_bytes_per_s / 1e9:,.0f}",
                f"{g.host.bytes_per_s / 1e9:,.0f}",
                g.source,
            )
            for g in all_gpus()
        ],
        texts=(0, 5),
    )


@cli.command("workloads")
def workloads() -> None:
    """List the bundled workloads.

    Example: pagesim list workloads
    """
    from pagesim.workloads import workloads as bundled

    put_table("", ("workload", ""), list(bundled().items()), texts=(0, 1))


@cli.command("profiles")
def profiles() -> None:
    """List the profiles that come with pagesim.

    Example: pagesim list profiles
    """
    from pagesim.costs.profiles import analytic_names, bundled_names, bundled_profile

    nothing = "datasheet and rules of thumb: nothing was measured"
    put_table(
        "",
        ("profile", "kind", "model", "tp", ""),
        [
            *(
                (p.name, p.kind, p.model.name, str(p.tp), p.sentence)
                for p in map(bundled_profile, bundled_names())
            ),
            *((name, "analytic", "any", "any", nothing) for name in analytic_names()),
        ],
        texts=range(5),
    )
