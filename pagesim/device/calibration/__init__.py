"""Calibration: from the real kernels, transfers and iterations on this machine to a profile.

Needs torch; it is loaded when a calibration starts, not before.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pagesim.device.calibration.run import Calibration, calibrate

__all__ = ["Calibration", "calibrate"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'pagesim.device.calibration' has no attribute {name!r}")
    from pagesim.device.calibration import run

    return getattr(run, name)


def __dir__() -> list[str]:
    return list(__all__)
