"""Every reader of files."""

from __future__ import annotations

from functools import cache

import log_targets
import option_targets
import recorded_targets
import stored_targets
import trace_targets
from target import Target


@cache
def targets() -> tuple[Target, ...]:
    """Return all of them."""
    return (
        *trace_targets.made(),
        *option_targets.made(),
        *stored_targets.made(),
        *log_targets.made(),
        *recorded_targets.made(),
    )
