"""Live: the same scheduler and memory, but every iteration is really carried out on a device.

The one room of the simulator that needs torch; it is loaded when a live run starts, not before.
"""

from pagesim.device.live.run import run_live

__all__ = ["run_live"]
