"""System: what serves a run's requests; each option is a TOML field, a flag and a keyword argument."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeVar, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    create_model,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo

from pagesim.errors import PagesimError
from pagesim.hardware.gpu_spec import parse_link
from pagesim.scheduling.beams import DROP as BEAM_DROP
from pagesim.scheduling.options import MOST
from pagesim.setup.presets import PageSize, ReservationName
from pagesim.setup.registry import SCHEDULERS, converted, declared, declared_by_plugins, fields_of, sentence
from pagesim.setup.sizes import GIB_OPTIONS, size_of
from pagesim.sim.clock import LONGEST_S

WeightDtypeName = Literal["bf16", "fp16", "fp8", "fp8_block", "int8", "int4", "nvfp4", "mxfp4", "mxfp4_mxfp8"]

Length = Annotated[int, Field(ge=1, le=MOST)]
"""Length of a request, in tokens."""

MOST_BYTES = 2**50
"""Upper bound on bytes per GPU; more is taken for a mistake."""

MOST_BLOCKS = 50_000_000
"""Upper bound on the number of blocks; more is taken for a mistake, as memory keeps a number for each."""


class SystemFields(BaseModel):
    """The options of every system; `System` adds those of the schedulers."""

    model_config = ConfigDict(extra="allow", frozen=True, allow_inf_nan=False)

    policy: str = Field("vllm-v1", description="Scheduler and memory (pagesim list policies).")
    scheduler: str | None = Field(
        None,
        description="Replace the policy's scheduler (pagesim list options).",
    )
    reservation: ReservationName | None = Field(None, description="Replace the policy's reservation.")
    allocator: str | None = Field(
        None,
        description="Replace the policy's allocator: first-fit, best-fit, buddy, paged, virtual or your own.",
    )
    model: str = Field(
        "opt-13b",
        min_length=1,
        description="Model by name, or its config.json or file of layers.",
    )
    gpu: str = Field("a100-40gb", description="GPU by name.")
    tensor_parallel_size: int = Field(
        1, ge=1, le=1024, description="Number of GPUs in a tensor-parallel group."
    )
    weight_dtype: WeightDtypeName | None = Field(
        None, description="Data type of the weights. Defaults to the checkpoint's."
    )
    kv_cache_dtype: (
        Literal["fp16", "bf16", "fp8", "nvfp4", "int8_per_token_head", "fp8_per_token_head"] | None
    ) = Field(
        None,
        description="Data type of the KV cache. Defaults to the checkpoint's, or to fp16.",
    )
    sizing: Literal["paper", "vllm", "sglang"] | None = Field(
        None,
        description="Rule that sizes the KV cache. Defaults to the policy's engine's.",
    )
    gpu_memory_utilization: float | None = Field(
        None,
        gt=0,
        le=1,
        description="Fraction of GPU memory to use. Defaults to the release's.",
    )
    flashinfer_sampler: bool = Field(
        True, description="Sample with FlashInfer, under sizing vllm; PyTorch's sorting takes more memory."
    )
    language_model_only: bool = Field(False, description="Load no tower for images, under sizing vllm.")
    skip_mm_profiling: bool = Field(
        False, description="Leave no memory for encoding images, under sizing vllm."
    )
    max_pixels: int | None = Field(
        None,
        ge=1,
        description="Pixels of the largest image, under sizing vllm. Defaults to the preprocessor's own.",
    )
    cpu_offload_gb: float | None = Field(
        None,
        gt=0,
        le=1 << 20,
        description="Weights that each GPU reads from host memory in every iteration, in GiB, under sizing "
        "vllm. None by default.",
    )
    max_loras: int | None = Field(
        None,
        ge=1,
        le=MOST,
        description="Adapters (LoRA) of a batch that memory is kept for, under sizing vllm. None by default.",
    )
    max_lora_rank: int = Field(16, ge=1, le=4096, description="Largest rank of an adapter.")
    block_size: int | None = Field(
        None, ge=1, le=65536, description="Tokens per block. Defaults to 16, or to the policy's own."
    )
    page_size: PageSize | Annotated[int, Field(ge=1, le=65536)] | None = Field(
        None,
        description="Size of the pages that memory is mapped in, under allocator virtual. Defaults to "
        "2M. Under sglang its name for block_size.",
    )
    kv_cache_memory_bytes: int | None = Field(
        None,
        ge=1,
        le=MOST_BYTES,
        description="Bytes of the KV cache on each GPU, instead of what sizing vllm leaves for it.",
    )
    num_blocks: int | None = Field(
        None,
        ge=1,
        le=MOST_BLOCKS,
        description="Blocks on the GPU, instead of sizing.",
    )
    cpu_blocks: int | None = Field(
        None, ge=0, le=MOST_BLOCKS, description="Number of blocks of swap space. Defaults to 20 GiB per GPU."
    )
    max_model_len: Length | Literal["auto"] | None = Field(
        None,
        description="Maximum length of a request, in tokens, or auto: the longest that fits in the KV cache. "
        "Defaults to the model's.",
    )
    beam_drop: float = Field(
        BEAM_DROP, gt=0, lt=1, description="Probability per token that a beam forks over another."
    )
    strict_compat: bool = Field(
        False, description="Stop with an error where the real engine hangs, leaks or dies."
    )
    seed: int = Field(0, ge=0, le=2**32 - 1, description="Random seed.")
    client_timeout: float | None = Field(
        None, gt=0, le=LONGEST_S, description="Abort a request after this many seconds."
    )
    max_concurrency: int | None = Field(
        None,
        ge=1,
        le=MOST,
        description="Most outstanding requests: a closed loop.",
    )
    cost: str = Field(
        "auto",
        description="Cost model: auto (the best profile there is, else roofline), profile:NAME, "
        "roofline[:name=value,…], or affine:s,s/token,s/context token[,s/block].",
    )
    frontend: str | None = Field(
        None,
        description="Add SECONDS[,PER_PROMPT_TOKEN] for HTTP and the tokenizer to latencies. Defaults to a "
        "served engine's; 0 adds nothing.",
    )
    kv_offloading_link: str | None = Field(
        None,
        description="BANDWIDTH[:LATENCY] of each GPU's copies to and from the host, such as "
        "25GB/s:10us. Defaults to what the cost model takes for swaps.",
    )
    window: str | None = Field(
        None,
        description="Average memory and batch over START:END, in seconds.",
    )
    until: float | None = Field(
        None, ge=0, le=LONGEST_S, description="Schedule no iteration after this instant, in seconds."
    )
    fast_forward: bool = Field(True, description="Fast-forward; results are bit-identical.")

    @field_validator("*", mode="before")
    @classmethod
    def _sizes(cls, value: object, info: ValidationInfo) -> object:
        """Accept sizes such as 8k or 40GiB where a number is expected."""
        if not isinstance(value, str):
            return value
        name = info.field_name or ""
        wanted = cls.model_fields[name].annotation
        counts = any(kind in (int, Length) for kind in (wanted, *get_args(wanted)))
        return size_of(name, value) if name in GIB_OPTIONS or counts else value

    @field_validator("window", "frontend", "kv_offloading_link")
    @classmethod
    def _can_be_parsed(cls, value: str | None, info: ValidationInfo) -> str | None:
        parse: Callable[[str], object] = {"window": _parse_window, "frontend": _parse_frontend}.get(
            info.field_name or "", parse_link
        )
        if value is not None:
            parse(value)
        return value

    @field_validator("tiers", mode="before", check_fields=False)
    @classmethod
    def _tiers_are_several(cls, value: object) -> object:
        """Turn one tier, or several joined by + as in a grid, into a tuple of tiers."""
        if isinstance(value, str):
            value = [text.strip() for text in value.split("+")]
        return (tuple(value) or None) if isinstance(value, list | tuple) else value  # TOML has no tuples

    @property
    def frontend_s(self) -> tuple[float, float] | None:
        """Front-end seconds per request and per prompt token, or None if left out."""
        return None if self.frontend is None else _parse_frontend(self.frontend)

    @property
    def length(self) -> int | None:
        """``max_model_len`` in tokens, or None if it is left out or auto."""
        return self.max_model_len if isinstance(self.max_model_len, int) else None

    @property
    def window_s(self) -> tuple[float, float] | None:
        """The window's start and end in seconds, or None if left out."""
        return None if self.window is None else _parse_window(self.window)

    @model_validator(mode="after")
    def _options_exist(self) -> Self:
        """Refuse options that no scheduler has, plug-ins included; convert the others to their types."""
        extra = self.__pydantic_extra__
        if extra:
            known = plugin_fields()
            for name, value in extra.items():
                if name not in known:
                    close = difflib.get_close_matches(name, [*type(self).model_fields, *known], n=1)
                    hint = f"; did you mean {close[0]}?" if close else ""
                    raise PagesimError(f"there is no option {name[:200]}{hint}")
                extra[name] = converted(name, value, known[name][0])
        return self

    def option(self, name: str) -> Any:
        """Return a scheduler's option as it was given, or None if it was left out."""
        return getattr(self, name, None)

    @property
    def scheduler_options(self) -> dict[str, Any]:
        """The scheduler options that were given, by name."""
        given = {name: getattr(self, name) for name in SCHEDULER_FIELDS}
        return {
            name: value for name, value in {**given, **(self.model_extra or {})}.items() if value is not None
        }


SCHEDULER_FIELDS = fields_of(declared(SCHEDULERS.own()))
"""The options of pagesim's own schedulers, by name."""


def plugin_fields() -> dict[str, tuple[Any, FieldInfo]]:
    """Return the options that only plug-in schedulers have, by name, as currently registered."""
    fields = fields_of(declared_by_plugins())
    return {name: field for name, field in fields.items() if name not in System.model_fields}


if TYPE_CHECKING:

    class System(SystemFields):
        """The system that serves: model, GPU, memory, scheduler and its options, and costs."""

else:
    System = create_model(
        "System",
        __base__=SystemFields,
        __module__=__name__,
        __doc__="The system that serves: model, GPU, memory, scheduler and its options, and costs.",
        **SCHEDULER_FIELDS,
    )


M = TypeVar("M", bound=BaseModel)


def checked(kind: type[M], values: dict[str, Any], source: str = "", *, strict: bool = False) -> M:
    """Return a pydantic model of these values.

    Args:
        kind: class of the model.
        values: values by field name.
        source: where the values come from, for the error message.
        strict: whether to refuse values of another type, such as ``"5"`` in a file, instead of converting.

    Raises:
        PagesimError: a field is unknown or out of bounds; the message names source, field, value and bound.
    """
    try:
        return kind.model_validate(values, strict=strict)
    except ValidationError as error:
        first = error.errors()[0]
        where = f"{source}: " if source else ""
        if not first["loc"]:  # an option without a field
            raise PagesimError(where + first["msg"].removeprefix("Value error, ")) from None
        raise PagesimError(where + sentence(str(first["loc"][0]), error)) from None


def _parse_frontend(text: str) -> tuple[float, float]:
    try:
        request, token = (float(part) for part in (text if "," in text else f"{text},0").split(","))
    except ValueError:
        raise ValueError("must be SECONDS or SECONDS,PER_PROMPT_TOKEN, such as 0.01 or 0.01,2e-6") from None
    if not (0 <= request <= 60 and 0 <= token <= 1):  # false for NaN, too
        raise ValueError("must be from 0 to 60 s a request, and from 0 to 1 s a token of its prompt")
    return request, token


def _parse_window(text: str) -> tuple[float, float]:
    try:
        start, end = (float(part) for part in text.split(":"))
    except ValueError:
        raise ValueError("must be START:END in seconds, such as 300:900") from None
    if not 0 <= start <= end <= LONGEST_S:  # false for NaN, too
        raise ValueError(
            f"must be two times from 0 to {LONGEST_S:g} s, such as 300:900, the first not after the second"
        )
    return start, end
