"""Prefill apart from decode: the schedulers of replicas that only prefill, and of those that only decode."""

from pagesim.scheduling.disaggregated.polls import Polls
from pagesim.scheduling.disaggregated.prefilling import PrefillingV1
from pagesim.scheduling.disaggregated.pulling import Pull, PullingV1

__all__ = ["Polls", "PrefillingV1", "Pull", "PullingV1"]
