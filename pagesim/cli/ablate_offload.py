"""``pagesim ablate offload``: where loading a prefix from a tier beats recomputing it."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from pydantic import BaseModel, Field

from pagesim.cli import show
from pagesim.cli.calibrate import numbers, words
from pagesim.cli.flags import OUT, taken, with_fields
from pagesim.cli.printing import put_table
from pagesim.costs import Assuming
from pagesim.costs.links import host_links
from pagesim.costs.profiles import find_profile
from pagesim.errors import PagesimError
from pagesim.experiments.offload.loading import (
    DecodingLoad,
    OffloadServer,
    Returning,
    place_at,
    reaches,
    returning,
)
from pagesim.hardware import TierSpec, gpu, parse_tiers
from pagesim.hardware.gpus import GIB
from pagesim.hardware.tier_spec import parse_capacity
from pagesim.models import model
from pagesim.setup.engine_config import EngineConfig
from pagesim.setup.system import System, checked

TIERS = ("host:256GiB", "ssd:4TiB", "remote:64TiB:direct")
CONTEXTS = "128,256,512,1024,2048,4096,8192,16384,32768"
GPU = "h100"

TIER = Annotated[
    list[str] | None,
    typer.Option(
        "--tier",
        metavar="NAME:CAPACITY[:…]",
        help="A tier behind the device, that next to it first, such as host:64GiB:25GB/s. Repeatable. "
        f"[default: {' '.join(TIERS)}]",
    ),
]


class Loads(BaseModel):
    """The prefixes to load and the batch around them; not part of a system."""

    models: str = Field(
        "llama-3.1-8b,qwen3-32b:2,llama-3.1-70b:4",
        description="Comma-separated models, each with its tensor parallel size.",
    )
    contexts: str = Field(CONTEXTS, description="Comma-separated lengths of the prefix hit, in tokens.")
    new_tokens: int = Field(16, ge=1, description="Tokens behind the hit, which are computed either way.")
    sequences: int = Field(32, ge=0, description="Number of sequences that decode meanwhile.")
    sequence_tokens: int = Field(1024, ge=1, description="Context length of each, in tokens.")
    budget: int = Field(8192, ge=1, description="Maximum number of tokens per iteration.")
    hit_distances: str | None = Field(
        None,
        description="KV written since the last use, such as 64GiB,1TiB, which decides the tier of a "
        "hit. Defaults to a map per tier.",
    )
    profile: str | None = Field(
        None, description="Profile, by name or file, whose measured transfers are the host's link."
    )


_FIELDS = {
    "gpu": Field(GPU, description="GPU by name."),
    **{name: System.model_fields[name] for name in ("kv_cache_dtype", "weight_dtype", "cost")},
}


@with_fields({**Loads.model_fields, **_FIELDS})  # type: ignore[dict-item]
def offload(*, tier: TIER = None, out: OUT = None, flags: dict[str, Any]) -> None:
    """Map where loading KV from a tier beats recomputing it.

    The map follows from costs alone.

    Example: pagesim ablate offload --gpu h100 --tier host:256GiB --tier ssd:4TiB:6.5GB/s --out out/offload
    """
    flags.setdefault("gpu", GPU)
    asked = taken(Loads, flags)
    from pagesim.results.tier_plots import loading_map

    contexts = numbers("contexts", asked.contexts)
    if min(contexts) < 1:
        raise PagesimError(f"contexts is {asked.contexts!r}; each must be at least 1 token")
    distances = () if asked.hit_distances is None else words(asked.hit_distances)
    far = [parse_capacity("hit_distances", text) for text in distances]
    names = words(asked.models)
    servers = [_server(name, asked.budget, flags) for name in names]
    tiers = _tiers(tier or TIERS, flags, asked.profile, servers)
    beside = DecodingLoad(asked.sequences, asked.sequence_tokens)
    found = [
        each
        for server in servers
        for each in returning(server, tiers, contexts, new=asked.new_tokens, beside=beside)
    ]
    ratios: dict[str, dict[str, list[float]]] = {each.name: {} for each in tiers}
    for each in found:
        ratios[each.tier.name].setdefault(_label(each.server), []).append(each.ratio)
    for name, lines in ratios.items():
        put_table(
            f"First token after loading from {name}, over recomputing; below 1 loading is faster",
            ("", *(f"{tokens:,}" for tokens in contexts)),
            [(label, *(f"{ratio:.2f}" for ratio in values)) for label, values in lines.items()],
        )
    if distances:
        put_table(
            "Where a hit is found by the KV written since",
            ("", *distances),
            [(_label(server), *_found_at(server, tiers, far)) for server in servers],
            texts=range(len(distances) + 1),
        )
    for name, lines in ratios.items():
        show.say(f"{name}: loading is faster for {_verdict(lines, contexts)}")
    notes = [f"links of {each.name}: {each.load.note}" for each in tiers]
    for server in servers:
        if isinstance(server.cost, Assuming):
            notes += [f"{_label(server)}: {note}" for note in server.cost.notes]
    show.say_notes(notes)
    label = "First token after loading a returning prefix, over recomputing it"
    load = f"{flags['gpu']}, while {asked.sequences} sequences of {asked.sequence_tokens:,} tokens decode"
    titles = {
        f"{each.name}, {each.load.bytes_per_s / 1e9:.3g} GB/s\nhits {_far(reach)} back": ratios[each.name]
        for each, reach in zip(tiers, reaches(tiers, servers[0].device_bytes), strict=True)
    }
    show.put_study(out, "offload", map(_row, found), lambda: loading_map(titles, contexts, label, load))
    show.stored(out)


def _server(text: str, budget: int, flags: dict[str, Any]) -> OffloadServer:
    """Return the server of a model given as NAME or NAME:TP."""
    name, _, tp = text.partition(":")
    if tp and not tp.isdecimal():
        raise PagesimError(f"models is {text!r}; each must be NAME or NAME:TENSOR_PARALLEL_SIZE")
    system = checked(
        System, {"policy": "vllm-v1", "model": name, "tensor_parallel_size": int(tp or 1), **flags}
    )
    config = EngineConfig(system)
    block, sized = config.block.bytes, config.capacity
    return OffloadServer(
        name,
        system.tensor_parallel_size,
        -(-block // sized.block_size),
        sized.num_blocks * block * system.tensor_parallel_size,
        config.cost,
        budget,
    )


def _tiers(
    texts: list[str] | tuple[str, ...],
    flags: dict[str, Any],
    profile: str | None,
    servers: list[OffloadServer],
) -> tuple[TierSpec, ...]:

    device = gpu(flags["gpu"])
    if profile is None:
        return parse_tiers(texts, host_links(device))
    spec = model(servers[0].name)
    of_cache = {name: flags[name] for name in ("kv_cache_dtype", "weight_dtype") if name in flags}
    kv_dtype = EngineConfig(System(policy="vllm-v1", model=servers[0].name, **of_cache)).kv_dtype
    found = find_profile(profile, model=spec, tp=servers[0].tp, kv_dtype=kv_dtype)
    return parse_tiers(texts, host_links(device, found, spec))


def _found_at(server: OffloadServer, tiers: tuple[TierSpec, ...], distances: list[int]) -> list[str]:

    places = [place_at(tiers, server.device_bytes, each) for each in distances]
    return ["lost" if each is None else "device" if each < 0 else tiers[each].name for each in places]


def _verdict(lines: dict[str, list[float]], contexts: tuple[int, ...]) -> str:
    said = []
    for label, ratios in lines.items():
        faster = [tokens for tokens, ratio in zip(contexts, ratios, strict=True) if ratio < 1]
        what = f"of {', '.join(f'{each:,}' for each in faster)} tokens" if faster else "of no length"
        said.append(f"prefixes {what} on {label}")
    return "; ".join(said)


def _far(reach: int | None) -> str:
    return "any distance" if reach is None else f"up to {reach / GIB:,.0f} GiB"


def _label(server: OffloadServer) -> str:
    return f"{server.name}, tp {server.tp}"


def _row(each: Returning) -> dict[str, Any]:
    return {
        "model": each.server.name,
        "tensor_parallel_size": each.server.tp,
        "tier": each.tier.name,
        "load_bytes_per_s": each.tier.load.bytes_per_s,
        "reach_gib": None if each.reach_bytes is None else each.reach_bytes / GIB,
        "device_gib": each.server.device_bytes / GIB,
        "tokens": each.tokens,
        "transfer_s": each.transfer_s,
        "load_s": each.load_s,
        "recompute_s": each.recompute_s,
        "ratio": each.ratio,
    }
