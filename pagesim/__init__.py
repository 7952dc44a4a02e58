"""pagesim: replay LLM serving traces through KV-cache memory systems and see where the memory goes."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pagesim.api import compare, simulate
    from pagesim.errors import CapacityError, PagesimError, TraceError
    from pagesim.experiments.clusters import simulate_cluster, simulate_pools
    from pagesim.experiments.sweeps import CapacityTables, SweepTables, capacity, sweep
    from pagesim.results.result import Result, load
    from pagesim.results.tree_snapshots import tree_at
    from pagesim.setup.plugins import register
    from pagesim.setup.presets import Policy
    from pagesim.workloads import make_trace
    from pagesim.workloads.trace import Request, Trace

__version__ = "0.2.0"

__all__ = [
    "CapacityError",
    "CapacityTables",
    "PagesimError",
    "Policy",
    "Request",
    "Result",
    "SweepTables",
    "Trace",
    "TraceError",
    "capacity",
    "compare",
    "load",
    "make_trace",
    "register",
    "simulate",
    "simulate_cluster",
    "simulate_pools",
    "sweep",
    "tree_at",
]

_HOMES = {
    "CapacityError": "errors",
    "CapacityTables": "experiments.sweeps",
    "PagesimError": "errors",
    "Policy": "setup.presets",
    "Request": "workloads.trace",
    "Result": "results.result",
    "SweepTables": "experiments.sweeps",
    "Trace": "workloads.trace",
    "TraceError": "errors",
    "capacity": "experiments.sweeps",
    "compare": "api",
    "load": "results.result",
    "make_trace": "workloads",
    "register": "setup.plugins",
    "simulate": "api",
    "simulate_cluster": "experiments.clusters",
    "simulate_pools": "experiments.clusters",
    "sweep": "experiments.sweeps",
    "tree_at": "results.tree_snapshots",
}


def __getattr__(name: str) -> Any:
    # pandas takes half a second to import; the command line's --help should not wait for it.
    if name in _HOMES:
        from importlib import import_module

        value = getattr(import_module(f"pagesim.{_HOMES[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'pagesim' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
