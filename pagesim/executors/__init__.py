"""Executors: they take an iteration's time, predicted by a cost model or measured on a device."""

from pagesim.executors.predicted import Executor, PredictedExecutor

__all__ = ["Executor", "PredictedExecutor"]
