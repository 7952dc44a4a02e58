"""Many runs together: sweeps, ablations, clusters, and the PagedAttention paper."""
