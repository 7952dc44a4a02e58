"""Handing the state over, between two decisions, from a scheduler to its lane and back."""

from __future__ import annotations

from bisect import bisect_left

from pagesim.scheduling import Group
from pagesim.sim.express.lane import Lane


def take_over(lane: Lane) -> bool:
    """Let the lane decide from now on; say whether it does: not if something is not plain at present."""
    scheduler, recorder = lane.scheduler, lane.recorder
    if not scheduler.is_plain or recorder.stalled_since is not None:
        return False

    def index_of(group: Group) -> int:
        return bisect_left(lane.row, group.row)

    lane.steps = scheduler.memory.steps_grown
    lane.running = {}
    for group in list(scheduler.running()):
        index = index_of(group)
        lane.running[index] = group.base, recorder.give(group.row), group.last_step
        lane.borrow(index, group)
    size = lane.size
    lane.free, lane.context, lane.ending = scheduler.memory.free_blocks, 0, []
    for index, (base, _, last) in lane.running.items():
        lane.context += base + lane.steps
        lane.ending.append((-last, index))
    if lane.counts_memory:
        lane.due = [0] * (2 * size)
        for base, _, _ in lane.running.values():
            lane.free -= -(-(base + lane.steps) // size)
            lane.due[(1 - base) % size] += 1
        lane.due[size:] = lane.due[:size]
    lane.ending.sort()
    lane.arrived, lane.fresh, lost, head = scheduler.queue.give()
    lane.announce()
    lane.lost = [index_of(group) for group in lost]
    lane.lengths = {index_of(group): group.length for group in lost}
    for group in lost if head is None else [*lost, head]:
        lane.keep(index_of(group), group)
    lane.waiting = lane.arrived - lane.fresh + len(lost)
    lane.restless = scheduler.restless
    lane.active = True
    return True


def hand_over(lane: Lane) -> None:
    """Let the scheduler decide from now on."""
    scheduler, queue = lane.scheduler, lane.scheduler.queue
    lane.settle()
    scheduler.memory.grow(lane.steps - scheduler.memory.steps_grown)
    lost = []
    for index in lane.lost:
        group = lane.kept(index) or queue.group_of(index)
        group.length = lane.lengths[index]
        lost.append(group)
    queue.take(lane.arrived, lane.fresh, lost, lane.kept(lane.fresh))
    for index in lane.running:
        lane.recorder.rebase(lane.give_back(index))
    scheduler.restless = lane.restless
    lane.active = False
