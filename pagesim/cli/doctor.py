"""``pagesim doctor``: report what is installed and usable; needs no third-party library itself."""

from __future__ import annotations

import sys


def command() -> None:
    """Show what is installed and usable, and how to get the rest.

    The exit code is 1 if something is broken that pagesim cannot do without, else 0.

    Example: pagesim doctor
    """
    from pagesim.kernels.doctor import State, examine
    from pagesim.setup.compiled import form

    broken = False
    for finding in examine():
        print(f"{finding.state.value} {finding.name:<22} {finding.detail}", flush=True)
        broken |= finding.required and finding.state is State.BROKEN
    print(f"{State.FINE.value} {'form':<22} {form()}", flush=True)
    if broken:
        sys.exit(1)
