"""The paper's servers and their engine; and whose lengths, whose costs, and how much of a trace to replay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pagesim.costs import EngineTime, engine_time
from pagesim.experiments.paper.jobs import Load
from pagesim.models import model
from pagesim.setup.scenario import Scenario
from pagesim.setup.system import checked
from pagesim.workloads import workloads

HOUR = 3600.0

TITLES = {"sharegpt": "ShareGPT", "alpaca": "Alpaca"}

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

DEPLOYMENTS = {
    **{server.model: server for server in (*SERVERS, LLAMA_13B)},
    "opt-13b-a100-80gb": Deployment("opt-13b", "a100-80gb", 1, ""),
    "llama-3-8b-h100": Deployment("llama-3-8b", "h100", 1, ""),
    "llama-3-70b-h100": Deployment("llama-3-70b", "h100", 4, ""),
}
"""By the names that the figures call them."""

SYSTEMS = {
    "vllm-sosp": "vLLM",
    "orca-oracle": "Orca (Oracle)",
    "orca-pow2": "Orca (Pow2)",
    "orca-max": "Orca (Max)",
    "static": "FasterTransformer",
}
"""The systems that the paper compares, by our policy, in its order."""


FITTED_TO = {"sharegpt": 30.42, "alpaca": 132.44}
"""Fig. 13's bars of vLLM, mean number of requests in a batch: nothing else is fitted to."""

RATES = {"sharegpt": 2.0, "alpaca": 30.0}
"""Requests/s of these bars."""

FITTED_FOR = "opt-13b"
"""The model of these bars."""

ENGINES = {"imported": engine_time("vllm-sosp"), "analytic": EngineTime(0.0, 3.45e-4)}
"""The engine of `FITTED_FOR` by where the other costs come from: what these leave to be explained. Fitted in
steps of 0.1 ms and 5 µs, on the paper's own lengths."""

OUTSIDE = ("static",)
"""Policies whose tokens do not pass through the engine's loop: FasterTransformer computes a whole batch, from
its prompts to its last tokens, in one call of C++. The paper's Orca is a scheduler that its authors wrote
into their own engine, and takes what vLLM takes."""


def engine_of(source: str, model_name: str, policy: str) -> EngineTime:
    """Return the engine's own time of a system of the paper.

    Both numbers are what is left beside kernels that others timed, and kernels run layer by layer; so for
    other models than `FITTED_FOR` they go with the layers.

    Args:
        source: of the other costs, a key of `ENGINES`.
        model_name: what the system serves.
        policy: ours, of the system.
    """
    if policy in OUTSIDE:
        return EngineTime(0.0, 0.0)
    fitted, layers = ENGINES[source], model(model_name).layers / model(FITTED_FOR).layers
    return EngineTime(fitted.iteration_s * layers, fitted.sequence_s * layers, fitted.source)


def in_words(engine: EngineTime) -> str:
    """Return both numbers as people read them."""
    return f"{engine.iteration_s * 1e3:.1f} ms an iteration and {engine.sequence_s * 1e6:.0f} µs a sequence"


@dataclass(frozen=True)
class PaperSetting:
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

    @property
    def fitted(self) -> bool:
        """Say whether the engine of these costs is fitted to the paper."""
        return self.cost in ENGINES

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
        source = "analytic" if block_sizes else self.cost
        profile = server.imported if source == "imported" else f"analytic-{server.gpu}"
        engine = engine_of(source, server.model, policy)
        return f"profile:{profile},overhead_s={engine.iteration_s:.6g},sequence_s={engine.sequence_s:.6g}"

    def load(
        self,
        server: Deployment,
        policy: str,
        workload: str,
        *,
        seconds: float | None = None,
        window: tuple[float, float] | None = None,
        until: float | None = None,
        rates: Sequence[float] = (),
        conversations: bool = False,
        copies: bool = False,
        **options: Any,
    ) -> Load:
        """Return a system under a load of the paper: its arrivals, seed 0.

        Args:
            server: on which.
            policy: of `SYSTEMS`, or another.
            workload: sharegpt, alpaca, or another text that ``--trace`` takes.
            seconds: of arrivals; the server's when left out.
            window: seconds between which iterations count.
            until: seconds after which no iteration begins.
            rates: of a curve.
            conversations: whether requests become turns of conversations.
            copies: whether swaps cost what the paper's own did.
            **options: further fields of the scenario.

        Raises:
            PagesimError: a field is off.
        """
        share = QUICK if self.quick else 1.0
        values: dict[str, Any] = {
            "trace": self.trace(workload) if workload in ("sharegpt", "alpaca") else workload,
            "arrivals": "sosp",
            "duration": (seconds or server.seconds) * share,
            "policy": policy,
            "model": server.model,
            "gpu": server.gpu,
            "tensor_parallel_size": server.tp,
            "cost": self.cost_on(server, policy, block_sizes="block_size" in options),
            # The paper's own clients called the engine.
            "frontend": "0",
        }
        if window is not None:
            values["window"] = f"{window[0] * share:g}:{window[1] * share:g}"
        if until is not None:
            values["until"] = until * share
        made = Load(checked(Scenario, {**values, **options}), tuple(rates), conversations, copies)
        if copies:
            made.profile()  # refused before anything is replayed
        return made


def absolute(text: str) -> str:
    """Return the absolute path of what is one; the name of a bundled workload as it is."""
    return text if text in workloads() else str(Path(text).resolve())
