"""Specifications of GPUs, their links, and memory tiers behind them."""

from __future__ import annotations

from pagesim.hardware.gpus import GpuSpec, Link, gpu, gpus
from pagesim.hardware.tier_spec import TierSpec, parse_tiers

__all__ = [
    "GpuSpec",
    "Link",
    "TierSpec",
    "gpu",
    "gpus",
    "parse_tiers",
]
