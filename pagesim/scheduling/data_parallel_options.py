"""Options of data parallelism: several engines of one vLLM server, and how requests are balanced."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pagesim.errors import PagesimError
from pagesim.scheduling.options import MOST, SchedulerOptions


class DataParallelOptions(SchedulerOptions):
    """Options of several engines of one server; unset ones default as in vLLM 0.33.0."""

    data_parallel_size: int | None = Field(
        None, ge=1, le=1024, description="Number of engines behind vLLM's load balancer. Defaults to 1."
    )
    data_parallel_size_local: int | None = Field(
        None, ge=1, le=1024, description="Number of engines of each node. Defaults to all."
    )
    data_parallel_lb: Literal["internal", "hybrid", "external"] | None = Field(
        None,
        description="Load balancing over engines: by vLLM over all of them or those of a node, or by a "
        "router in front of it. Defaults to internal.",
    )
    data_parallel_latency: float | None = Field(
        None, ge=0, le=1, description="Seconds of a message between API servers, engines and coordinator."
    )
    api_server_count: int | None = Field(
        None, ge=1, le=1024, description="Number of API servers of each node. Defaults to its engines."
    )
    dp_sync_interval: int | None = Field(
        None,
        ge=1,
        le=MOST,
        description="Steps after which engines of a model with experts agree on whether to go on. "
        "Defaults to 16.",
    )
    enable_expert_parallel: bool | None = Field(
        None, description="Give each GPU whole experts instead of a part of each."
    )
    enable_eplb: bool | None = Field(None, description="Move experts between GPUs by their loads (EPLB).")
    num_redundant_experts: int | None = Field(
        None, ge=0, le=1023, description="Number of additional copies of experts under EPLB. Defaults to 0."
    )
    eplb_window_size: int | None = Field(
        None, ge=1, le=MOST, description="Iterations whose loads EPLB keeps. Defaults to 1000."
    )

    @property
    def ranks(self) -> int:
        """Number of data-parallel engines."""
        return self.data_parallel_size or 1

    @property
    def balancing(self) -> str:
        """How requests are balanced over the engines: ``internal``, ``hybrid`` or ``external``."""
        asked = self.data_parallel_lb or "internal"
        if asked == "hybrid" and self.data_parallel_size_local in (1, self.ranks):
            return "external" if self.data_parallel_size_local == 1 else "internal"
        return asked


OF_RANKS = (
    *("data_parallel_size_local", "data_parallel_lb", "data_parallel_latency", "api_server_count"),
    "dp_sync_interval",
)
"""Options that apply only to several data-parallel engines."""

OF_BALANCER = ("enable_eplb", "num_redundant_experts", "eplb_window_size")
"""Options of the expert parallel load balancer."""


def check_data_parallel(options: DataParallelOptions, release: str) -> None:
    """Check that the data-parallel options are compatible with each other.

    Args:
        options: options of a server.
        release: vLLM release.

    Raises:
        PagesimError: some are not; the message says which.
    """
    given = {name: value for name in OF_RANKS if (value := getattr(options, name)) is not None}
    size, local = options.ranks, options.data_parallel_size_local
    if size == 1:
        if given:
            name, value = next(iter(given.items()))
            raise PagesimError(f"{name} is {value}; it is for several engines: give data_parallel_size, too")
        return
    if release != "0.33.0":
        raise PagesimError(
            f"data_parallel_size is {size}, and how vLLM {release} shares requests out is in no "
            "log of its decisions: leave it out, or choose vllm_version 0.33.0"
        )
    if local is not None and size % local:
        raise PagesimError(
            f"data_parallel_size_local is {local}; it must divide data_parallel_size, which is {size}"
        )
    if options.data_parallel_lb == "hybrid" and local is None:
        raise PagesimError(
            "data_parallel_lb is hybrid, which is over the engines of a node: give data_parallel_size_local"
        )
    if options.balancing == "external" and options.api_server_count not in (None, 1):
        raise PagesimError(
            f"api_server_count is {options.api_server_count}; where a router is in front of each engine, "
            "that has one: leave it out"
        )
