"""The paper's servers and engine, and the setting: sources of lengths and costs, and trace duration."""

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
"""The fraction of a trace's duration that ``--quick`` replays: enough to check that figures are drawn."""


@dataclass(frozen=True)
class PaperServer:
    """A model on its GPUs, as in the paper's Table 1.

    Attributes:
        model, gpu, tp: model, GPU and tensor-parallel degree, as in a scenario.
        imported: bundled profile based on others' measurements; "" if there is none.
        seconds: duration of its traces: an hour, or a quarter of one for the largest model.
    """

    model: str
    gpu: str
    tp: int
    imported: str
    seconds: float = HOUR

    @property
    def title(self) -> str:
        """The paper's name for it."""
        return self.model.upper()


OPT_13B = PaperServer("opt-13b", "a100-40gb", 1, "opt-13b-a100-40gb-rescaled")
OPT_66B = PaperServer("opt-66b", "a100-40gb", 4, "opt-66b-a100-40gb-rescaled")
OPT_175B = PaperServer("opt-175b", "a100-80gb", 8, "opt-175b-a100-80gb-rescaled", 900.0)
LLAMA_13B = PaperServer("llama-13b", "a100-40gb", 1, "llama-13b-a100-40gb-rescaled")
SERVERS = (OPT_13B, OPT_66B, OPT_175B)

DEPLOYMENTS = {
    **{server.model: server for server in (*SERVERS, LLAMA_13B)},
    "opt-13b-a100-80gb": PaperServer("opt-13b", "a100-80gb", 1, ""),
    "llama-3-8b-h100": PaperServer("llama-3-8b", "h100", 1, ""),
    "llama-3-70b-h100": PaperServer("llama-3-70b", "h100", 4, ""),
}
"""Deployments by their names in ``figures.toml``."""

SYSTEMS = {
    "vllm-sosp": "vLLM",
    "orca-oracle": "Orca (Oracle)",
    "orca-pow2": "Orca (Pow2)",
    "orca-max": "Orca (Max)",
    "static": "FasterTransformer",
}
"""The systems that the paper compares, in its order, by our policy's name."""


FITTED_TO = {"sharegpt": 30.42, "alpaca": 132.44}
"""Fig. 13's bars for vLLM, the mean batch size in requests: the only numbers used for fitting."""

RATES = {"sharegpt": 2.0, "alpaca": 30.0}
"""Request rates of these bars, in requests/s."""

FITTED_FOR = "opt-13b"
"""The model of these bars."""

ENGINES = {"imported": engine_time("vllm-sosp"), "analytic": EngineTime(0.0, 3.45e-4)}
"""The engine's own time for `FITTED_FOR` by source of the other costs: what those leave unexplained. Fitted
in steps of 0.1 ms and 5 µs, with the paper's own lengths."""

OUTSIDE = ("static",)
"""Policies that do not run in the engine's loop: FasterTransformer computes a whole batch, from its prompts
to its last tokens, in one C++ call. In contrast, the paper's Orca is a scheduler that its authors wrote into
their own engine, and so has the same engine time as vLLM."""


def engine_of(source: str, model_name: str, policy: str) -> EngineTime:
    """Return the engine's own time per iteration and per sequence in a system of the paper.

    Both are what kernel times published by others leave unexplained. Since kernels run layer by layer, they
    are scaled by the number of layers for models other than `FITTED_FOR`.

    Args:
        source: source of the other costs, a key of `ENGINES`.
        model_name: model that the system serves.
        policy: our name of the system's policy.
    """
    if policy in OUTSIDE:
        return EngineTime(0.0, 0.0)
    fitted, layers = ENGINES[source], model(model_name).layers / model(FITTED_FOR).layers
    return EngineTime(fitted.iteration_s * layers, fitted.sequence_s * layers, fitted.source)


def in_words(engine: EngineTime) -> str:
    """Return both numbers in readable form."""
    return f"{engine.iteration_s * 1e3:.1f} ms an iteration and {engine.sequence_s * 1e6:.0f} µs a sequence"


@dataclass(frozen=True)
class PaperSetting:
    """The setting of a reproduction.

    Args:
        sharegpt: the bundled length model, or a file with the paper's ShareGPT lengths.
        alpaca: likewise for Alpaca.
        cost: ``imported``, ``analytic``, or any value of ``--cost`` of `pagesim run`.
        quick: whether to replay only the beginning of each trace.
    """

    sharegpt: str = "sharegpt"
    alpaca: str = "alpaca"
    cost: str = "imported"
    quick: bool = False

    def trace(self, workload: str) -> str:
        """Return the source of the lengths of ShareGPT or Alpaca."""
        return self.sharegpt if workload == "sharegpt" else self.alpaca

    def real(self, workload: str) -> bool:
        """Return whether the lengths come from a file rather than from a fitted model."""
        return self.trace(workload) not in workloads()

    @property
    def lengths(self) -> str:
        """Source of the lengths, for a column's heading."""
        names = [name for name in ("sharegpt", "alpaca") if self.real(name)]
        if len(names) == 1:
            return f"{names[0]} from a file"
        return "real lengths" if names else "bundled length models"

    @property
    def name(self) -> str:
        """Sources of lengths and costs, for a column's heading."""
        return f"{self.lengths}, {self.cost} costs{', quick' if self.quick else ''}"

    @property
    def fitted(self) -> bool:
        """Whether the engine's own time is fitted to the paper with these costs."""
        return self.cost in ENGINES

    def cost_on(self, server: PaperServer, policy: str, *, block_sizes: bool = False) -> str:
        """Return the cost of iterations on a server.

        Args:
            server: deployment to simulate.
            policy: policy of the system.
            block_sizes: whether block sizes other than 16 are needed, which imported profiles do not cover;
                the analytic profile then replaces them.
        """
        if not self.fitted:
            return self.cost
        source = "analytic" if block_sizes else self.cost
        profile = server.imported if source == "imported" else f"analytic-{server.gpu}"
        engine = engine_of(source, server.model, policy)
        return f"profile:{profile},overhead_s={engine.iteration_s:.6g},sequence_s={engine.sequence_s:.6g}"

    def load(
        self,
        server: PaperServer,
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
        """Return a system under a load of the paper, with the paper's arrivals and seed 0.

        Args:
            server: deployment to simulate.
            policy: policy of the system, from `SYSTEMS` or another.
            workload: sharegpt, alpaca, or any other value of ``--trace``.
            seconds: duration of arrivals; the server's by default.
            window: start and end, in seconds, of the iterations that count.
            until: seconds after which no iteration begins.
            rates: rates of a curve, in requests/s.
            conversations: whether to turn requests into turns of conversations.
            copies: whether swaps cost as much as the paper's.
            **options: further fields of the scenario.

        Raises:
            PagesimError: a field is invalid.
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
            made.profile()  # fails before anything is replayed
        return made


def absolute(text: str) -> str:
    """Return the absolute form of a path; names of bundled workloads are unchanged."""
    return text if text in workloads() else str(Path(text).resolve())
