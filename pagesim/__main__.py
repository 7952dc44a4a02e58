"""``python -m pagesim`` is ``pagesim``."""

from pagesim.cli.main import app

app()
