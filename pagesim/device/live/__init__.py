"""Live runs: the same scheduler and memory, but every iteration is executed on a device.

Needs torch, which is loaded only when a live run starts.
"""

from pagesim.device.live.run import run_live

__all__ = ["run_live"]
