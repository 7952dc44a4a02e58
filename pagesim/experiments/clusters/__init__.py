"""Clusters: several replicas of a system in one simulation, and the routers in front of them."""

from __future__ import annotations

from pagesim.experiments.clusters.apart import run_pools, simulate_pools
from pagesim.experiments.clusters.cluster import ClusterResult, run_cluster, simulate_cluster
from pagesim.experiments.clusters.replicas import Replicas
from pagesim.experiments.clusters.routers import ROUTERS, Router, find_router

__all__ = [
    "ROUTERS",
    "ClusterResult",
    "Replicas",
    "Router",
    "find_router",
    "run_cluster",
    "run_pools",
    "simulate_cluster",
    "simulate_pools",
]
