"""TensorRT-LLM's scheduler, with its two capacity policies."""

from pagesim.scheduling.trtllm.capacity import GuaranteedNoEvict
from pagesim.scheduling.trtllm.options import TrtllmOptions

__all__ = ["GuaranteedNoEvict", "TrtllmOptions"]
