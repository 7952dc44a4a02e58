"""Schedulers: who runs in the next iteration. They know arrivals and lengths, never seconds or FLOPs."""

from pagesim.scheduling.base import Choice, Plan, Scheduler
from pagesim.scheduling.beams import DROP as BEAM_DROP
from pagesim.scheduling.beams import BeamSearch
from pagesim.scheduling.content import Content, Contents
from pagesim.scheduling.continuous import ContinuousBatching
from pagesim.scheduling.dead_ends import DeadEnd
from pagesim.scheduling.group import Arrivals, Group
from pagesim.scheduling.preemptive import Preemption, Preemptive, Prices
from pagesim.scheduling.static import StaticBatching
from pagesim.scheduling.vllm_v0 import RELEASES as V0_RELEASES
from pagesim.scheduling.vllm_v0 import VllmV0
from pagesim.scheduling.vllm_v1 import RELEASES as V1_RELEASES
from pagesim.scheduling.vllm_v1 import VllmV1

__all__ = [
    "BEAM_DROP",
    "V0_RELEASES",
    "V1_RELEASES",
    "Arrivals",
    "BeamSearch",
    "Choice",
    "Content",
    "Contents",
    "ContinuousBatching",
    "DeadEnd",
    "Group",
    "Plan",
    "Preemption",
    "Preemptive",
    "Prices",
    "Scheduler",
    "StaticBatching",
    "VllmV0",
    "VllmV1",
]
