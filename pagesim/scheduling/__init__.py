"""Scheduling: which requests an iteration serves, decided as in the real engines."""

from pagesim.scheduling.arrivals import NEVER, Arrivals
from pagesim.scheduling.batch import Batch, Choice
from pagesim.scheduling.continuous import ContinuousBatching, Orca, VllmSosp
from pagesim.scheduling.core import Scheduler
from pagesim.scheduling.failure_modes import FailureMode
from pagesim.scheduling.observer import FastForward, Observer
from pagesim.scheduling.options import (
    LimitedOptions,
    Machine,
    PreemptingOptions,
    Prices,
    SchedulerOptions,
)
from pagesim.scheduling.queue import WaitingQueue
from pagesim.scheduling.request import EngineRequest, Family, Status
from pagesim.scheduling.static import StaticBatching
from pagesim.scheduling.vllm_v0 import VllmV0
from pagesim.scheduling.vllm_v1 import VllmV1

__all__ = [
    "NEVER",
    "Arrivals",
    "Batch",
    "Choice",
    "ContinuousBatching",
    "EngineRequest",
    "FailureMode",
    "Family",
    "FastForward",
    "LimitedOptions",
    "Machine",
    "Observer",
    "Orca",
    "PreemptingOptions",
    "Prices",
    "Scheduler",
    "SchedulerOptions",
    "StaticBatching",
    "Status",
    "VllmSosp",
    "VllmV0",
    "VllmV1",
    "WaitingQueue",
]
