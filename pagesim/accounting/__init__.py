"""Accounting for a run: records of the engine's steps, a ledger of its memory, and metrics from both."""
