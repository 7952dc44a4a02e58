"""Accounts of a run: what the engine writes down, what holds which slot, and the numbers made of both."""
