"""SGLang's scheduler: see `Sglang`."""

from pagesim.scheduling.sglang.options import SglangOptions
from pagesim.scheduling.sglang.scheduler import Sglang

__all__ = ["Sglang", "SglangOptions"]
