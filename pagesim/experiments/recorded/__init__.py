"""Recorded runs of real servers: readers of what was written, and simulations of the same load."""
