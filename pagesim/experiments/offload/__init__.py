"""Offloading: how much a tier's capacity helps on a trace, and when loading beats recomputing."""
