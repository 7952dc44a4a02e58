"""Executors: they take an iteration's time, predicted by a cost model or measured on a device."""

from pagesim.sim.executors.predicted import Executor, PredictedExecutor, shape_of

__all__ = ["Executor", "PredictedExecutor", "shape_of"]
