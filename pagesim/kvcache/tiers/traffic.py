"""Traffic of a tier: what was stored there, loaded from it, and moved up and down a chain."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(slots=True)
class Traffic:
    """Chunks of one tier since the beginning, each counted when its copy begins.

    Attributes:
        stored: written to it from the device, or as a copy of what was written to the tier above.
        loaded: found in it and loaded to the device.
        promoted: kept in it on their way up from a tier behind it.
        demoted: written to it when the tier above evicted them.
    """

    stored: int = 0
    loaded: int = 0
    promoted: int = 0
    demoted: int = 0

    def chunks(self) -> dict[str, int]:
        """Return the counts by name."""
        return asdict(self)
