"""Recorded runs of real servers: readers for their files, and simulations of the same load."""
