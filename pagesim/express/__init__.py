"""The express lanes: the plainest requests replayed by numbers. Same decisions, same records."""

from pagesim.cost import CostModel
from pagesim.express.caching import CachingLane
from pagesim.express.continuous import ContinuousLane
from pagesim.express.handing import hand_over, take_over
from pagesim.express.lane import HAND_OVER, IDLE, Lane
from pagesim.express.vllm_v0 import VllmV0Lane
from pagesim.express.vllm_v1 import VllmV1Lane
from pagesim.records import Recorder
from pagesim.scheduling import ContinuousBatching, Preemptive, Scheduler, VllmV0, VllmV1

__all__ = ["HAND_OVER", "IDLE", "Lane", "hand_over", "lane_for", "take_over"]

LANES: dict[type[Preemptive], tuple[type[Lane], ...]] = {
    ContinuousBatching: (ContinuousLane,),
    VllmV0: (VllmV0Lane,),
    VllmV1: (VllmV1Lane, CachingLane),
}


def lane_for(scheduler: Scheduler, recorder: Recorder, cost: CostModel, until: int) -> Lane | None:
    """Return the lane that decides as a scheduler does; None where there is none for what it serves."""
    if isinstance(scheduler, Preemptive):
        for lane in LANES.get(type(scheduler), ()):
            if lane.carries(scheduler):
                return lane(scheduler, recorder, cost, until)
    return None
