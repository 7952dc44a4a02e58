"""The registry: the allocators and schedulers that policies name, and the options schedulers declare."""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import Any, Literal, cast, get_args, get_origin

from pydantic import Field, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from pagesim.allocators import Allocator, BestFit, Buddy, FirstFit
from pagesim.errors import PagesimError, brief
from pagesim.kvcache import (
    BlockManager,
    JengaManager,
    LayerTypePages,
    MakeBlockManager,
    PagedManager,
    Pool,
    PooledManager,
    contiguous,
)
from pagesim.scheduling.continuous import Orca, VllmSosp
from pagesim.scheduling.core import Scheduler
from pagesim.scheduling.lightllm import Lightllm
from pagesim.scheduling.sglang import Sglang
from pagesim.scheduling.static import StaticBatching
from pagesim.scheduling.trtllm import GuaranteedNoEvict
from pagesim.scheduling.vllm_v0 import VllmV0
from pagesim.scheduling.vllm_v1 import VllmV1
from pagesim.setup.plugins import Plugins


def _paged(pool: Pool, *, shares: bool = True) -> BlockManager:
    return PagedManager(pool.num_blocks, pool.groups, pool.cpu_blocks, shares=shares, tables=pool.tables)


def _virtual(pool: Pool) -> BlockManager:
    # A block stands for the pages that back a stretch of a sequence's own virtual address range.
    return _paged(pool, shares=False)


def _buddy(pool: Pool) -> BlockManager:
    longest = -(-pool.max_model_len // pool.block_size)
    return contiguous(lambda num_blocks: Buddy(num_blocks, 1 << (longest - 1).bit_length()))(pool)


def _two_level(pool: Pool) -> BlockManager:
    return JengaManager(
        pool.num_blocks, pool.groups, longest=pool.max_model_len, in_flight=pool.in_flight_tokens
    )


def _pools(pool: Pool) -> BlockManager:
    return PooledManager(
        pool.pages or [pool.num_blocks],
        pool.groups,
        longest=pool.max_model_len,
        in_flight=pool.in_flight_tokens,
        capacity_bytes=pool.capacity_bytes,
    )


def memory_of(part: type[Allocator] | MakeBlockManager, pool: Pool) -> BlockManager:
    """Return empty memory for a pool, made by an entry of ``ALLOCATORS``."""
    if isinstance(part, type) and issubclass(part, Allocator):
        return contiguous(part)(pool)
    return cast(MakeBlockManager, part)(pool)


ALLOCATORS: Plugins[type[Allocator] | MakeBlockManager] = Plugins(
    "allocator",
    "pagesim.allocators",
    {
        "first-fit": FirstFit,
        "best-fit": BestFit,
        "buddy": _buddy,
        "paged": _paged,
        "virtual": _virtual,
        "two-level": LayerTypePages(_two_level, is_divided=False),
        "pools": LayerTypePages(_pools, is_divided=True),
    },
    sentences={
        "first-fit": "contiguous: the first free run by address that is long enough",
        "best-fit": "contiguous: the shortest free run that is long enough",
        "buddy": "contiguous: rounded up to a power of two, halved and merged again",
        "paged": "blocks on demand, anywhere; samples share those of their prompt",
        "virtual": "pages on demand behind contiguous virtual addresses; none is shared (vAttention)",
        "two-level": "large pages, each cut into the smaller ones of one layer type (Jenga)",
        "pools": "a pool for each layer type, sized beforehand",
    },
)
"""Allocators by name: a class that allocates contiguous blocks, or a maker of a pool's memory."""

SCHEDULERS: Plugins[type[Scheduler]] = Plugins(
    "scheduler",
    "pagesim.schedulers",
    {
        "static": StaticBatching,
        "orca": Orca,
        "vllm-sosp": VllmSosp,
        "vllm-v0": VllmV0,
        "vllm-v1": VllmV1,
        "sglang": Sglang,
        "trtllm": GuaranteedNoEvict,
        "lightllm": Lightllm,
    },
    base=Scheduler,
)
"""Schedulers by name."""

Declared = dict[str, list[tuple[str, FieldInfo]]]
"""Schedulers that have an option, each with its own field, by the option's name."""


def declared(names: tuple[str, ...]) -> Declared:
    """Return the options that these schedulers declare."""
    found: Declared = {}
    for name in names:
        for option, field in SCHEDULERS.find(name).Options.model_fields.items():
            found.setdefault(option, []).append((name, field))
    return found


def declared_by_plugins() -> Declared:
    """Return the options of plug-in schedulers that can be loaded."""
    loaded = []
    for name in SCHEDULERS.foreign():
        try:
            SCHEDULERS.find(name)
        except PagesimError:  # reported when the scheduler is used
            continue
        loaded.append(name)
    return declared(tuple(loaded))


def fields_of(options: Declared) -> dict[str, tuple[Any, FieldInfo]]:
    """Return a field for each option, whose default None stands for the scheduler's own default."""
    found = {}
    for option, having in options.items():
        annotation = _either([field.annotation for _, field in having])
        texts: Declared = {}
        for name, field in having:
            texts.setdefault(field.description or "", []).append((name, field))
        text = " ".join(f"{text} [{_defaults(own)}]" for text, own in texts.items())
        described: Any = Field(None, description=text)
        found[option] = (annotation | None, described)
    return found


def _either(annotations: list[Any]) -> Any:
    """Return the union of these types, merging all sets of choices into one."""
    choices = [choice for each in annotations if get_origin(each) is Literal for choice in get_args(each)]
    others = [each for each in annotations if get_origin(each) is not Literal]
    one = [Literal[tuple(dict.fromkeys(choices))]] if choices else []
    return reduce(or_, dict.fromkeys([*one, *others]))


def converted(name: str, value: Any, annotation: Any) -> Any:
    """Convert the value of a plug-in's option to its type; its bounds are checked later with the others.

    Raises:
        PagesimError: the value cannot be converted.
    """
    try:
        return TypeAdapter(annotation).validate_python(value)
    except ValidationError as error:
        raise PagesimError(sentence(name, error)) from None


def _defaults(having: list[tuple[str, FieldInfo]]) -> str:
    """Return in words the schedulers that have an option, each with its default, if any."""
    return ", ".join(name if field.default is None else f"{name}: {field.default}" for name, field in having)


def refuse_unknown(scheduler: str, name: str) -> None:
    """Refuse an option that a scheduler does not have.

    Raises:
        PagesimError: always; the message names the schedulers that have it.
    """
    having = {**declared(SCHEDULERS.own()), **declared_by_plugins()}[name]
    *others, last = [each for each, _ in having]
    named = f"{', '.join(others)} and {last}" if others else last
    raise PagesimError(f"{name} is for scheduler {named}, not {scheduler}")


def sentence(name: str, error: ValidationError, where: str = "") -> str:
    """Return in words what is wrong with an option's value."""
    first = error.errors()[0]
    wanted = first["msg"].removeprefix("Value error, ")
    return f"{name} is {brief(first['input'], 200)}: {where}{wanted[0].lower()}{wanted[1:]}"
