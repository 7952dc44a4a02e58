"""Calibration: profiles from measurements of kernels, transfers and iterations on this machine.

Needs torch, which is loaded only when a calibration starts.
"""

from pagesim.device.calibration.calibrating import Calibration, calibrate

__all__ = ["Calibration", "calibrate"]
