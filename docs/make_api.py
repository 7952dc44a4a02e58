"""Write docs/reference/api.md, all of the public API, and tests/signatures.txt, which freezes it.

Run it from the root of the repository after a change that is meant: python docs/make_api.py
"""

from __future__ import annotations

import enum
import inspect
import re
from collections.abc import Collection, Iterator
from functools import cached_property
from importlib import import_module
from pathlib import Path
from types import GenericAlias
from typing import Any

from pydantic import BaseModel

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference" / "api.md"
SIGNATURES = ROOT / "tests" / "signatures.txt"

PUBLIC: dict[str, dict[str, str]] = {
    "pagesim": {
        "CapacityError": "what is raised where a model leaves no room for blocks",
        "CapacityTables": "what `capacity` returns",
        "PagesimError": "what is raised for everything that a user can mend",
        "Policy": "a scheduler, a reservation and an allocator under one name, to be registered",
        "Request": "a row of a trace",
        "Result": "what `simulate`, `compare` and `load` return",
        "SweepTables": "what `sweep` returns",
        "Trace": "requests, made by hand",
        "TraceError": "what is raised for a row or a file that is no trace",
        "capacity": "the highest rate at which goals hold",
        "compare": "one trace under several policies",
        "load": "reads what a run has stored",
        "make_trace": "requests by the name of a workload, or from a file",
        "register": "names a part of one's own",
        "simulate": "one trace under one policy",
        "simulate_cluster": "one trace on several replicas",
        "simulate_pools": "one trace on replicas that prefill and replicas that decode",
        "sweep": "a grid of runs",
        "tree_at": "the radix tree of a stored run at an instant",
    },
    "pagesim.results.plots": {
        "COLOURS": "the colours of the ledger's entries, for figures of one's own",
        "LABELS": "what figures call these entries",
        "LINE_COLOURS": "the colours of lines, likewise",
        "memory_bars": "draws where memory goes, a bar a policy",
        "memory_over_time": "draws where memory goes in the course of a run",
        "over_block_sizes": "draws whatever depends on the block size",
        "service_bars": "draws latencies, a bar a policy",
    },
    "pagesim.results.report": {"write_report": "writes the page of a result"},
    "pagesim.workloads": {
        "LengthModel": "lengths without the texts that they come from, to be handed on",
        "arrive": "gives requests other arrivals",
        "decode_as": "gives requests samples or beams",
        "describe": "says what a trace holds",
        "fit": "makes a length model of a trace",
        "load": "reads a trace file of any format known",
        "save": "writes a trace file",
        "share_prefix": "lets prompts begin alike",
    },
    "pagesim.allocators": {
        "Allocator": "the contract of an allocator of one's own",
        "Extent": "a run of neighbouring blocks",
        "OutOfBlocks": "raised where too few blocks are free",
        "join_extents": "makes extents of blocks",
    },
    "pagesim.kvcache": {
        "Full": "the rule of a KV group that attends to everything",
        "SequenceGroup": "what memory knows of a request",
        "BlockManager": "the contract of memory of one's own",
        "KVGroup": "layers whose blocks are alike",
        "JengaManager": "memory of small pages in large ones, a large one for one layer type",
        "LayerTypePages": "registers memory in which layer types have pages of their own",
        "PagedManager": "memory of blocks on demand or reserved, to derive from",
        "Pool": "what memory is made from",
        "Reservation": "how much a sequence takes at admission",
        "Reserved": "the rule of a KV group that takes everything at admission",
        "SlidingWindow": "the rule of a KV group that attends to the last tokens",
        "contiguous": "makes memory of an allocator",
    },
    "pagesim.testing": {
        "check_allocator": "the tests that an allocator of one's own must pass",
        "check_block_manager": "the tests that memory of one's own must pass",
        "check_eviction_policy": "the tests that an eviction policy of one's own must pass",
    },
    "pagesim.scheduling": {
        "Batch": "what a scheduler has decided for an iteration",
        "EngineRequest": "what a scheduler knows of a request",
        "FastForward": "iterations that an observer is told of at once",
        "Machine": "what an engine knows when it starts, besides its options",
        "Observer": "the contract of whatever listens to a run",
        "Scheduler": "the contract of a scheduler of one's own",
        "SchedulerOptions": "the options that every scheduler has, to derive one's own from",
        "Status": "how a request has ended, as an observer is told",
        "VllmSosp": "a scheduler to derive from",
        "VllmV0": "a scheduler to derive from",
        "VllmV1": "a scheduler to derive from",
    },
    "pagesim.setup.system": {"System": "the fields that `simulate` takes as options"},
    "pagesim.setup.serve": {
        "ServeLine": "what `read_serve` returns",
        "read_serve": "reads the command of a server",
    },
    "pagesim.costs": {
        "CostModel": "the contract of a cost model of one's own",
        "ENGINES": "what engines take for themselves, by scheduler and release",
        "EngineTime": "what an engine takes for itself, an iteration and a sequence",
        "DecodeRun": "how long each of a run of decode iterations takes",
        "IterationShape": "what an iteration computes",
        "NOWHERE": "for a cost model that holds everywhere",
        "Target": "which model on which GPU is priced",
        "UNBOUNDED": "for a run of iterations that does not end",
    },
    "pagesim.models": {
        "ModelSpec": "the shapes of a model",
        "from_hf_config": "the shapes of a model from its config.json",
        "model": "a model by its name",
    },
    "pagesim.hardware": {
        "GpuSpec": "a GPU of one's own, to be registered",
        "Link": "how fast a GPU reaches another, or the host",
        "gpu": "a GPU by its name",
    },
    "pagesim.results.block_tables": {
        "KernelBatch": "what `kernel_batches` returns",
        "kernel_batches": "the block tables of a replay, for a kernel",
    },
    "pagesim.sim.clock": {"to_ticks": "seconds in the unit that cost models answer in"},
    "pagesim.costs.profiles": {
        "Profile": "what iterations were measured to take",
        "Sample": "one measurement",
        "analytic_profile": "a profile from a datasheet, where nothing was measured",
        "bundled_profile": "a profile that comes with pagesim",
        "fit_terms": "makes a profile's terms of samples",
        "import_vidur": "makes a profile of Vidur's measurements",
        "load_profile": "reads a profile's file",
        "predict": "what a profile says of samples",
        "rescale": "a profile for another model or GPU",
    },
    "pagesim.experiments.clusters": {
        "ClusterResult": "what `simulate_cluster` and `simulate_pools` return",
        "Replicas": "what a router sees of the replicas",
        "Router": "the contract of a router of one's own",
    },
    "pagesim.eviction": {
        "CacheView": "what an eviction policy may know of its cache",
        "EvictionPolicy": "the contract of eviction policies",
        "Queue": "blocks in order, of which the first that may go is found",
        "lru_hits": "the hits of LRU at every capacity",
    },
    "pagesim.experiments.evictions": {
        "compare_policies": "serves a trace from a cache under several eviction policies",
        "evicted_blocks": "says who evicts whom",
        "recompute_weights": "weighs blocks by what computing them again takes",
    },
    "pagesim.experiments.prompt_blocks": {"prompt_blocks": "cuts a trace's prompts into blocks"},
    "pagesim.results.tier_plots": {"who_evicts_whom": "draws who evicts whom"},
    "pagesim.experiments.ablations": {"undo": "compares ways to undo an admission"},
    "pagesim.device.live": {"run_live": "carries a trace out on a device"},
    "pagesim.device.calibration": {
        "Calibration": "what `calibrate` returns",
        "calibrate": "measures a profile",
    },
    "pagesim.device.validation": {"validate": "compares a profile's predictions with live runs"},
    "pagesim.kernels": {
        "BlockPool": "the caches of all layers, whose blocks move together",
        "Cache": "the keys and values of a layer, checked once",
        "LatentCache": "the latents of a layer (MLA), checked once",
        "Sizes": "the sizes of a cache, which give its shape in a layout",
        "checked_bounds": "checks block tables while one looks for a mistake",
        "copy_blocks": "copy on write",
        "gather_blocks": "gathers blocks for a swap",
        "gather_sequences": "gathers whole contexts, as attention without a paged kernel begins",
        "mla_decode_attention": "decode attention over paged latents (MLA)",
        "mla_write": "writes new tokens' latents",
        "paged_attention": "attention over paged caches: decode, prefill and batches of both",
        "reshape_and_cache": "writes new tokens into caches",
        "scatter_blocks": "scatters blocks after a swap",
    },
    "pagesim.kernels.swap": {
        "Pools": "the caches and their host memory",
        "SwapStrategy": "what `make_strategy` returns",
        "make_strategy": "swaps blocks in a way chosen by name",
    },
    "pagesim.kernels.timing": {
        "CpuClock": "the clock of a CPU, where there is no GPU",
        "Timing": "what `time_kernel` returns",
        "time_kernel": "measures a kernel",
    },
    "pagesim.kernels.bench": {
        "Grid": "what to measure",
        "read_rows": "reads what a bench has stored",
        "run_points": "measures points of a grid",
    },
}
"""What is public, by the module that offers it, and what each name is for. What is not here is internal."""

HEAD = """# The public API

<!-- made by docs/make_api.py -->

These names are stable: [CHANGELOG.md](../../CHANGELOG.md) has each change. Other names can change any time.
`help(pagesim.simulate)` and the like describe arguments, columns, defaults and errors.
Lengths are in tokens, sizes in blocks, times in seconds or ticks (picoseconds).
"""


def signature(part: Any) -> list[str]:
    """Return a function's or class's parameters and what it returns; nothing if users do not call it."""
    if isinstance(part, type) and (
        issubclass(part, enum.Enum | BaseException) or getattr(part, "_is_protocol", False)
    ):
        return []
    if isinstance(part, type) and issubclass(part, BaseModel):
        fields = part.model_fields.items()
        return [*(name if field.is_required() else f"{name}=…" for name, field in fields), ""]
    found = inspect.signature(part)
    texts = []
    star = False
    for parameter in found.parameters.values():
        star = star or parameter.kind is parameter.VAR_POSITIONAL
        if parameter.kind is parameter.KEYWORD_ONLY and not star:
            texts.append("*")
            star = True
        texts.append(_plain(str(parameter)))
    gives = (
        "" if isinstance(part, type) or found.return_annotation is found.empty else found.return_annotation
    )
    return [*texts, _plain(f" -> {gives}") if gives else ""]


def _plain(text: str) -> str:
    text = re.sub(r"(: |-> )'([^']*)'", r"\1\2", text)
    # Where something stands in memory is another each time.
    return re.sub(r"<(?:[^<>]|<lambda>)* at 0x[0-9a-f]+>|<factory>", "…", text)


def called(name: str, part: Any, width: int | None = None) -> str:
    """Return a name with its signature, a parameter a line where it is wider than ``width``."""
    *parameters, gives = signature(part) or [""]
    if not parameters and not signature(part):
        return name
    line = f"{name}({', '.join(parameters)}){gives}"
    if width is None or len(line) <= width:
        return line
    inner = "".join(f"    {parameter},\n" for parameter in parameters)
    return f"{name}(\n{inner}){gives}"


def members(part: type, public: Collection[object]) -> Iterator[str]:
    """Yield a class's methods and properties with their signatures, but those of its public bases."""
    if issubclass(part, enum.Enum):
        yield from part.__members__
        return
    seen: set[str] = set()
    for home in part.__mro__:
        if home is not part and (home in public or not home.__module__.startswith("pagesim.")):
            continue
        for name, member in vars(home).items():
            if name.startswith("_") or name in seen:
                continue
            if issubclass(part, BaseModel) and name.startswith("model_"):
                continue
            seen.add(name)
            if isinstance(member, property | cached_property):
                yield name
            elif isinstance(member, classmethod | staticmethod):
                yield called(name, member.__func__)
            elif inspect.isfunction(member):
                yield called(name, member)


def is_called(part: Any) -> bool:
    """Whether it is a class or a function, rather than a constant or the name of a type."""
    return inspect.isclass(part) or inspect.isroutine(part) or hasattr(part, "cache_info")


def noun(part: Any) -> str:
    """Return what something is that is neither a class nor a function."""
    return "type" if isinstance(part, GenericAlias) else "constant"


def everything() -> dict[str, dict[str, Any]]:
    """Return every public part by its name, by the module that offers it."""
    return {home: {name: getattr(import_module(home), name) for name in why} for home, why in PUBLIC.items()}


def frozen() -> str:
    """Return every public name with its signature, a line each; under classes their members."""
    parts = everything()
    public = {part for home in parts.values() for part in home.values() if inspect.isclass(part)}
    lines = []
    for home, offered in parts.items():
        for name, part in offered.items():
            lines.append(called(f"{home}.{name}", part) if is_called(part) else f"{home}.{name}")
            if inspect.isclass(part):
                lines += [f"    .{member}" for member in members(part, public)]
    return "\n".join(lines) + "\n"


def page() -> str:
    """Return the page."""
    texts = [HEAD]
    for home, offered in everything().items():
        texts.append(f"\n## {home}\n\n")
        for name, part in offered.items():
            said = first_sentence(part) if is_called(part) else f"A {noun(part)}: {PUBLIC[home][name]}."
            texts.append(f"- `{name}`: {said}\n")
    return "".join(texts)


def first_sentence(part: Any) -> str:
    """Return the first sentence of a docstring."""
    paragraph = " ".join((inspect.getdoc(part) or "").split("\n\n")[0].split())
    return re.split(r"(?<=[.)])\s+(?=[A-Z])", paragraph)[0]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    SIGNATURES.write_text(frozen(), encoding="utf-8")
