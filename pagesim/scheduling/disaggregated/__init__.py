"""Prefill apart from decode: the connectors of engines that only prefill, and of those that only decode."""

from pagesim.scheduling.disaggregated.connectors import PrefillConnector, Pull, PullConnector
from pagesim.scheduling.disaggregated.polls import Polls

__all__ = ["Polls", "PrefillConnector", "Pull", "PullConnector"]
