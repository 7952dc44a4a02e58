"""Studies of many runs: sweeps, ablations, clusters, and the PagedAttention paper."""
