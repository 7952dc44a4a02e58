"""Schedulers: which requests run in the next iteration. They know arrivals and lengths, never seconds."""
