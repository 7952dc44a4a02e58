"""``pagesim trace``: look at, convert, fit and make traces."""

from __future__ import annotations

import typer

cli = typer.Typer(help="Look at, convert, fit and make traces.", no_args_is_help=True)
