"""Live: the same scheduler and memory, but every iteration is really carried out on a device.

The one room of the simulator that needs torch; it is loaded when a live run starts, not before.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pagesim.device.live.run import run_live

__all__ = ["run_live"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'pagesim.device.live' has no attribute {name!r}")
    from pagesim.device.live.run import run_live

    return run_live


def __dir__() -> list[str]:
    return list(__all__)
