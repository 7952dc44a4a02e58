"""pagesim: replay LLM serving traces through KV-cache memory systems and see where the memory goes."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pagesim.api import compare, simulate
    from pagesim.cluster import simulate_cluster
    from pagesim.errors import CapacityError, PagesimError, TraceError
    from pagesim.plugins import register
    from pagesim.policies import Policy
    from pagesim.request import Request, Trace
    from pagesim.results import Result, load
    from pagesim.sweeps import CapacityTables, SweepTables, capacity, sweep
    from pagesim.workloads import make_trace

__version__ = "0.1.0"

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
    "sweep",
]

_HOMES = {
    "CapacityError": "errors",
    "CapacityTables": "sweeps",
    "PagesimError": "errors",
    "Policy": "policies",
    "Request": "request",
    "Result": "results",
    "SweepTables": "sweeps",
    "Trace": "request",
    "TraceError": "errors",
    "capacity": "sweeps",
    "compare": "api",
    "load": "results",
    "make_trace": "workloads",
    "register": "plugins",
    "simulate": "api",
    "simulate_cluster": "cluster",
    "sweep": "sweeps",
}


def __getattr__(name: str) -> Any:
    # pandas takes half a second to import; the command line's --help shall not wait for it.
    if name in _HOMES:
        from importlib import import_module

        value = getattr(import_module(f"pagesim.{_HOMES[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'pagesim' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
