"""TensorRT-LLM's scheduler, under its default capacity policy."""

from pagesim.scheduling.trtllm.capacity import GuaranteedNoEvict
from pagesim.scheduling.trtllm.options import TrtllmOptions

__all__ = ["GuaranteedNoEvict", "TrtllmOptions"]
