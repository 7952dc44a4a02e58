"""On what the figures are drawn: whose lengths, whose costs, how long; and the paper's servers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pagesim.experiments.paper.engine import ENGINES, cost_text, engine_of
from pagesim.setup.scenario import Scenario
from pagesim.setup.system import checked
from pagesim.workloads import workloads

HOUR = 3600.0

QUICK = 0.05
"""The share of a trace's seconds that ``--quick`` replays: enough to see that a figure is drawn."""


@dataclass(frozen=True)
class Deployment:
    """A model on its GPUs, as in the paper's Table 1.

    Attributes:
        model, gpu, tp: as in a scenario.
        imported: the bundled profile that rests on others' measurements.
        seconds: of its traces: an hour, a quarter of one for the largest model.
    """

    model: str
    gpu: str
    tp: int
    imported: str
    seconds: float = HOUR

    @property
    def title(self) -> str:
        """As the paper names it."""
        return self.model.upper()


OPT_13B = Deployment("opt-13b", "a100-40gb", 1, "opt-13b-a100-40gb-rescaled")
OPT_66B = Deployment("opt-66b", "a100-40gb", 4, "opt-66b-a100-40gb-rescaled")
OPT_175B = Deployment("opt-175b", "a100-80gb", 8, "opt-175b-a100-80gb-rescaled", 900.0)
LLAMA_13B = Deployment("llama-13b", "a100-40gb", 1, "llama-13b-a100-40gb-rescaled")
SERVERS = (OPT_13B, OPT_66B, OPT_175B)

SYSTEMS = {
    "vllm-sosp": "vLLM",
    "orca-oracle": "Orca (Oracle)",
    "orca-pow2": "Orca (Pow2)",
    "orca-max": "Orca (Max)",
    "static": "FasterTransformer",
}
"""The systems that the paper compares, by our policy, in its order."""


@dataclass(frozen=True)
class Setting:
    """What a reproduction is made with.

    Args:
        sharegpt: the bundled model, or a file with the paper's ShareGPT lengths.
        alpaca: likewise.
        cost: ``imported``, ``analytic``, or what ``--cost`` of `pagesim run` takes.
        quick: replay only the beginning of each trace.
    """

    sharegpt: str = "sharegpt"
    alpaca: str = "alpaca"
    cost: str = "imported"
    quick: bool = False

    def trace(self, workload: str) -> str:
        """Return what the lengths of ShareGPT or Alpaca come from."""
        return self.sharegpt if workload == "sharegpt" else self.alpaca

    def real(self, workload: str) -> bool:
        """Say whether they come from a file, and not from a model fitted to such a file."""
        return self.trace(workload) not in workloads()

    @property
    def lengths(self) -> str:
        """Whose lengths, for the head of a column."""
        names = [name for name in ("sharegpt", "alpaca") if self.real(name)]
        if len(names) == 1:
            return f"{names[0]} from a file"
        return "real lengths" if names else "bundled length models"

    @property
    def name(self) -> str:
        """Of a column: lengths and costs."""
        return f"{self.lengths}, {self.cost} costs{', quick' if self.quick else ''}"

    def seconds(self, full: float) -> float:
        """Return how long a trace is."""
        return full * QUICK if self.quick else full

    def window(self, start: float, end: float) -> str:
        """Return a window of a trace."""
        return f"{self.seconds(start):g}:{self.seconds(end):g}"

    @property
    def fitted(self) -> bool:
        """Say whether the engine of these costs is fitted to the paper."""
        return self.cost in ENGINES

    def profile_on(self, server: Deployment) -> str:
        """Return the profile of a server's kernels.

        Args:
            server: whose.
        """
        return server.imported if self.cost == "imported" else f"analytic-{server.gpu}"

    def cost_on(self, server: Deployment, policy: str, *, block_sizes: bool = False) -> str:
        """Return the cost of a server's iterations.

        Args:
            server: whose.
            policy: of the system that runs there.
            block_sizes: whether others than 16 are asked for, which the imported profiles do not know; the
                analytic one takes their place.
        """
        if not self.fitted:
            return self.cost
        setting = replace(self, cost="analytic") if block_sizes else self
        return cost_text(setting.profile_on(server), engine_of(setting.cost, server.model, policy))

    def scenario(
        self, server: Deployment, policy: str, workload: str, *, seconds: float | None = None, **options: Any
    ) -> Scenario:
        """Return a scenario of the paper: its arrivals, seed 0.

        Args:
            server: on which.
            policy: of `SYSTEMS`, or another.
            workload: sharegpt, alpaca, or another text that ``--trace`` takes.
            seconds: of the whole trace; the server's when left out.
            **options: further fields.

        Raises:
            PagesimError: a field is off.
        """
        values: dict[str, Any] = {
            "trace": self.trace(workload) if workload in ("sharegpt", "alpaca") else workload,
            "arrivals": "sosp",
            "duration": self.seconds(seconds or server.seconds),
            "policy": policy,
            "model": server.model,
            "gpu": server.gpu,
            "tensor_parallel_size": server.tp,
            "cost": self.cost_on(server, policy),
        }
        return checked(Scenario, {**values, **options})


def absolute(text: str) -> str:
    """Return the absolute path of what is one; the name of a bundled workload as it is."""
    return text if text in workloads() else str(Path(text).resolve())
