"""Paged-attention kernels and swap transfers."""
