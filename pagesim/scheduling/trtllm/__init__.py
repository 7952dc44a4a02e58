"""TensorRT-LLM's scheduler: see `Trtllm`."""

from pagesim.scheduling.trtllm.options import TrtllmOptions
from pagesim.scheduling.trtllm.scheduler import Trtllm

__all__ = ["Trtllm", "TrtllmOptions"]
