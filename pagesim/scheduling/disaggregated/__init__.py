"""Disaggregated prefill: the connectors of engines that only prefill and of those that only decode."""

from pagesim.scheduling.disaggregated.connectors import IdleConnector, PrefillConnector, Pull, PullConnector
from pagesim.scheduling.disaggregated.transfer_completions import TransferCompletions

__all__ = ["IdleConnector", "PrefillConnector", "Pull", "PullConnector", "TransferCompletions"]
