"""Fits a profile of a server's iteration times to its logs; see ``docs/how-to/fit.md``."""
