"""``pagesim profile import``: make profiles from published operator timings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pagesim.cli import show, show_profile
from pagesim.costs.profiles import Profile, import_llmservingsim, import_vidur
from pagesim.hardware import gpu as gpu_of
from pagesim.models import model as model_of

cli = typer.Typer(
    help="Make a profile of operator timings that others published.\n\n"
    "Example: pagesim profile import aiconfigurator --system h100_sxm --model llama-3.1-8b",
    no_args_is_help=True,
    rich_markup_mode=None,
)

TARGET = Annotated[Path, typer.Argument(metavar="OUT.json", help="File to write the profile to.")]
MAYBE_TARGET = Annotated[
    Path | None,
    typer.Argument(
        metavar="[OUT.json]", help="File to write the profile to. Defaults to MODEL-GPU-tpN.json."
    ),
]
MODEL = Annotated[str, typer.Option(help="The model.")]
GPU = Annotated[str, typer.Option(help="The GPU that it was measured on.")]
TP = Annotated[
    int,
    typer.Option("--tensor-parallel-size", "--tp", help="Number of GPUs in a tensor-parallel group.", min=1),
]
SOURCE = Annotated[str, typer.Option(help="Source of the measurements.")]
SYSTEM = Annotated[str, typer.Option(help="The GPU, or the tables' own name of it, e.g. h100_sxm.")]
BACKEND = Annotated[str, typer.Option(help="The engine whose operators were timed: vllm, sglang, trtllm.")]
VERSION = Annotated[
    str | None,
    typer.Option(help="Release of the engine. Defaults to the newest of each table."),
]
TABLES = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Folder of operator tables. Defaults to the bundled ones, or aiconfigurator-core's.",
    ),
]


@cli.command("vidur")
def vidur(
    *,
    target: TARGET,
    linear: Annotated[Path | None, typer.Option(help="CSV of linear layers, norms and embedding.")] = None,
    attention: Annotated[Path, typer.Option(help="CSV of prefill and decode attention.")],
    all_reduce: Annotated[Path | None, typer.Option(help="CSV of all-reduces, for tp above 1.")] = None,
    model: MODEL,
    gpu: GPU,
    tensor_parallel_size: TP = 1,
    source: SOURCE = "not stated",
    any_block: Annotated[
        bool,
        typer.Option(
            "--any-block-size",
            help="Take attention for any block size, as of Frontier's files; the datasheet's numbers stand "
            "for other files that are left out.",
        ),
    ] = False,
) -> None:
    """Make a profile from operator timings in Vidur's schema.

    Example: pagesim profile import vidur a100.json --linear mlp.csv --attention attention.csv
    --model llama-2-7b --gpu a100-80gb
    """
    profile = import_vidur(
        linear,
        attention,
        all_reduce,
        model=model_of(model),
        gpu=gpu_of(gpu),
        tp=tensor_parallel_size,
        name=target.stem,
        source=source,
        any_block=any_block,
    )
    _store(profile, target)


@cli.command("llmservingsim")
def llmservingsim(
    *,
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="With dense.csv, per_sequence.csv, attention.csv, or tpN.")
    ],
    target: MAYBE_TARGET = None,
    model: MODEL,
    gpu: GPU,
    tensor_parallel_size: TP = 1,
    source: SOURCE = "LLMServingSim",
) -> None:
    """Make a profile from the timings of LLMServingSim's profiler.

    Example: pagesim profile import llmservingsim perf/bf16 --model llama-3.1-8b --gpu rtx-4090
    """
    target = target or Path(f"{model}-{gpu}-tp{tensor_parallel_size}.json")
    profile = import_llmservingsim(
        folder,
        model=model_of(model),
        gpu=gpu_of(gpu),
        tp=tensor_parallel_size,
        name=target.stem,
        source=source,
    )
    _store(profile, target)


@cli.command("aiconfigurator")
def aiconfigurator(
    *,
    target: MAYBE_TARGET = None,
    model: MODEL,
    system: SYSTEM,
    backend: BACKEND = "vllm",
    version: VERSION = None,
    tensor_parallel_size: TP = 1,
    expert_parallel_size: Annotated[
        int,
        typer.Option(
            help="Number of GPUs over which experts are distributed; the others divide each expert.", min=1
        ),
    ] = 1,
    moe_backend: Annotated[
        str | None,
        typer.Option(
            help="Kernel of experts: triton, flashinfer_trtllm, flashinfer_cutlass or marlin. Defaults to "
            "the first of them that the tables hold."
        ),
    ] = None,
    weight_dtype: Annotated[
        str | None,
        typer.Option(
            help="Data type: bf16, fp8, fp8_block, int4, nvfp4, mxfp4 or mxfp4_mxfp8. Defaults to "
            "the model's own."
        ),
    ] = None,
    kv_dtype: Annotated[
        str,
        typer.Option("--kv-cache-dtype", "--kv-dtype", help="Data type of the KV cache: bf16, fp16 or fp8."),
    ] = "bf16",
    tables: TABLES = None,
) -> None:
    """Make a model's profile from AIConfigurator's operator tables of a GPU.

    Example: pagesim profile import aiconfigurator --system h100_sxm --model llama-3.1-8b --tp 2
    """
    from pagesim.costs.operators.aiconfigurator import tables_of
    from pagesim.costs.operators.assemble import imported_profile

    profile = imported_profile(
        tables_of(system, backend, version, tables),
        model_of(model),
        tp=tensor_parallel_size,
        moe_ep=expert_parallel_size,
        moe_backend=moe_backend,
        weight_dtype=weight_dtype,
        kv_dtype=kv_dtype,
        name=None if target is None else target.stem,
    )
    target = target or Path(f"{profile.name}.json")
    _store(profile, target)


def _store(profile: Profile, target: Path) -> None:
    """Store a profile and show its terms."""
    profile.save(target)
    show_profile.terms(profile)
    show.say_notes(profile.notes)
    show.say(f"profile {profile.name} written to {target}")
