"""Calibration: from the real kernels, transfers and iterations on this machine to a profile.

Needs torch; it is loaded when a calibration starts, not before.
"""

from pagesim.device.calibration.calibrating import Calibration, calibrate

__all__ = ["Calibration", "calibrate"]
