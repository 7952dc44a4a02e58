"""vLLM's scheduler since v1: its traits and options, and how it plans a step."""

from pagesim.scheduling.vllm_v1.scheduler import VllmV1
from pagesim.scheduling.vllm_v1_options import VllmV1Options

__all__ = ["VllmV1", "VllmV1Options"]
