"""Accounts of a run: what the engine writes down, who holds which slot, and the numbers made of both."""
