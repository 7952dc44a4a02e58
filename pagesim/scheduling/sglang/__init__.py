"""SGLang's scheduler and its parts."""

from pagesim.scheduling.sglang.defaults import most_running, static_fraction
from pagesim.scheduling.sglang.options import SglangOptions
from pagesim.scheduling.sglang.scheduler import Sglang

__all__ = ["Sglang", "SglangOptions", "most_running", "static_fraction"]
