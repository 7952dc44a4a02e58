"""The command line: one file per command, each a thin layer over the public API."""
