"""Offloading: what a tier's capacity is worth on a trace, and where loading beats recomputing."""
