"""Trace readers, arrival processes and length models."""
