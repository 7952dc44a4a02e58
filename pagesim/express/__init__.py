"""The express lane: the plainest requests replayed without an object each. Same decisions, same records."""

from pagesim.cost import CostModel
from pagesim.express.continuous import ContinuousLane
from pagesim.express.handing import hand_over, take_over
from pagesim.express.lane import HAND_OVER, IDLE, Lane
from pagesim.express.vllm_v0 import VllmV0Lane
from pagesim.express.vllm_v1 import VllmV1Lane
from pagesim.records import Recorder
from pagesim.scheduling import ContinuousBatching, Preemptive, Scheduler, VllmV0, VllmV1

__all__ = ["HAND_OVER", "IDLE", "Lane", "hand_over", "lane_for", "take_over"]

LANES: dict[type[Preemptive], type[Lane]] = {
    ContinuousBatching: ContinuousLane,
    VllmV0: VllmV0Lane,
    VllmV1: VllmV1Lane,
}


def lane_for(scheduler: Scheduler, recorder: Recorder, cost: CostModel, until: int) -> Lane | None:
    """Return the lane that decides as a scheduler does; None where there is none for what it serves."""
    lane = LANES.get(type(scheduler))  # type: ignore[arg-type]
    if lane is None or not isinstance(scheduler, Preemptive) or not lane.carries(scheduler):
        return None
    return lane(scheduler, recorder, cost, until)
