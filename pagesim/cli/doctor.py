"""``pagesim doctor``: what is installed, seen and usable."""

from __future__ import annotations

import typer


def command() -> None:
    """Show what is installed, seen and usable here, and how to get what is not.

    The exit code is 1 if something is broken that pagesim cannot do without, else 0.

    Example: pagesim doctor
    """
    from rich.console import Console

    from pagesim.kernels.doctor import State, examine

    console = Console()
    broken = False
    for finding in examine():
        line = f"{finding.state.value} {finding.name:<22} {finding.detail}"
        console.print(line, highlight=False, markup=False, soft_wrap=True)
        broken |= finding.required and finding.state is State.BROKEN
    if broken:
        raise typer.Exit(1)
