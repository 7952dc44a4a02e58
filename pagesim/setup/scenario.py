"""Scenario: a system and the requests it serves, and the options of comparisons and clusters."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from pagesim.errors import PagesimError
from pagesim.setup.system import System

COMPARED = ("contiguous-max", "orca-max", "orca-pow2", "orca-oracle", "vllm-sosp")


class Scenario(System):
    """A system and the requests it serves."""

    trace: str = Field("sharegpt", description="Bundled workload by name, or a trace file.")
    arrivals: Literal["recorded", "replay", "poisson", "gamma", "constant", "all-at-once", "sosp"] | None = (
        Field(None, description="Arrival process. Defaults to poisson with --rate, else to recorded.")
    )
    rate: float | None = Field(
        None, gt=0, allow_inf_nan=True, description="Requests per second; inf: all at once."
    )
    cv: float | None = Field(None, gt=0, description="Coefficient of variation of gamma arrivals.")
    duration: float | None = Field(None, gt=0, description="Length of the arrival process, in seconds.")
    num_requests: int | None = Field(None, ge=1, description="Number of requests to replay.")
    n: int | None = Field(None, ge=1, le=1024, description="Number of parallel samples per request.")
    beam_width: int | None = Field(None, ge=1, le=1024, description="Beam width of every request.")
    shared_prefix: str | None = Field(
        None, description="System prompt before all prompts, or before a share: TOKENS[:SHARE]."
    )
    turns: Literal["first", "all", "after-completion"] = Field(
        "first",
        description="Turns of a conversation to send, after-completion when the last has finished.",
    )
    think: str | None = Field(
        None,
        description="Think time, under turns after-completion: SECONDS or exponential:SECONDS.",
    )
    tokenizer: str | None = Field(None, description="Hugging Face tokenizer for traces that hold text.")
    on_bad_row: Literal["error", "skip"] = Field("error", description="What to do with an invalid row.")
    steps: bool = Field(False, description="Store one row per iteration instead of one per fast-forward.")

    @field_validator("shared_prefix", "think")
    @classmethod
    def _of_requests_can_be_parsed(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None:
            from pagesim.workloads import parse_shared_prefix, parse_think

            (parse_think if info.field_name == "think" else parse_shared_prefix)(value)
        return value


class Cluster(Scenario):
    """A scenario served by several replicas of the system."""

    replicas: int | None = Field(
        None, ge=1, le=4096, description="Engines, each with its own GPUs. Defaults to 2."
    )
    router: str | None = Field(
        None,
        description="Router: round-robin (default), least-loaded, fewest-kv-tokens, prefix-affinity, "
        "or an installed one.",
    )
    prefill: int | None = Field(
        None,
        ge=1,
        le=4096,
        description="Number of engines that only prefill; needs --decode.",
    )
    decode: int | None = Field(
        None,
        ge=1,
        le=4096,
        description="Number of engines that only decode; needs --prefill.",
    )
    prefill_router: str | None = Field(
        None,
        description="Router of arriving requests to prefill engines.",
    )
    decode_router: str | None = Field(
        None,
        description="Router of computed prompts to decode engines.",
    )
    link: str | None = Field(
        None,
        description="RATE[:LATENCY] between GPUs of the pools, such as 25GB/s:20us, or infinite. Defaults "
        "to the datasheet's.",
    )
    lease: int | None = Field(
        None,
        ge=0,
        le=10**6,
        description="Seconds to hold blocks until a decoder asks. Defaults to 30.",
    )
    handover: float | None = Field(
        None,
        ge=0,
        le=10**6,
        description="Seconds from a prefill's end until a decode engine gets the request.",
    )

    @model_validator(mode="after")
    def _one_kind_of_cluster(self) -> Self:
        """Refuse options for a single pool of replicas together with those for two pools."""
        given = [name for name in APART if getattr(self, name) is not None]
        one_pool = [name for name in ("replicas", "router") if getattr(self, name) is not None]
        if not given:
            return self
        for name in ("prefill", "decode"):
            if getattr(self, name) is None:
                raise PagesimError(f"{name} is left out; {given[0]} needs both prefill and decode")
        if one_pool:
            raise PagesimError(
                f"{one_pool[0]} is {getattr(self, one_pool[0])}, and prefill is {self.prefill}: replicas "
                "either do both or are in two pools, each with a router of its own; leave one of the two out"
            )
        return self


LEASE_S = 30
"""Default lease, in seconds."""

SEVERAL = ("data_parallel_size", "attn_dp_size", "dp_size")
"""Options that deploy several engines: vLLM's data-parallel ranks, SGLang's attention ranks and replicas."""

APART = ("prefill", "decode", "prefill_router", "decode_router", "link", "lease", "handover")
"""Options of disaggregated prefill and decode."""


class Comparison(Scenario):
    """A scenario replayed under several policies."""

    policies: tuple[str, ...] = Field(
        COMPARED, min_length=1, description="Compare these policies, comma-separated, side by side."
    )

    @field_validator("policies", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        if isinstance(value, str):
            return tuple(name.strip() for name in value.split(","))
        return tuple(value) if isinstance(value, list) else value  # TOML has no tuples

    @field_validator("policies")
    @classmethod
    def _distinct(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(value)) < len(value):
            raise ValueError("must be distinct")
        return value
