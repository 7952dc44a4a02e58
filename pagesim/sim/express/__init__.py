"""The express lanes: the plainest requests replayed by numbers. Same decisions, same records."""

from pagesim.accounting.records import Recorder
from pagesim.costs import CostModel
from pagesim.scheduling import ContinuousBatching, Preemptive, Scheduler, VllmV0, VllmV1
from pagesim.sim.express.caching import CachingLane
from pagesim.sim.express.continuous import ContinuousLane
from pagesim.sim.express.handing import hand_over, take_over
from pagesim.sim.express.lane import HAND_OVER, IDLE, Lane
from pagesim.sim.express.vllm_v0 import VllmV0Lane
from pagesim.sim.express.vllm_v1 import VllmV1Lane

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
