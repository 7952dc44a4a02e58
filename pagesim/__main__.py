"""``python -m pagesim``: the command line."""

from pagesim.cli.main import app

app()
