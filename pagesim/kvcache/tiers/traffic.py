"""Traffic of a tier: chunks stored there, loaded from it, and moved up and down a chain."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(slots=True)
class Traffic:
    """Chunks moved to and from one tier so far, each counted when its copy starts.

    Attributes:
        stored: chunks written to it from the device, or as copies of what was written to the tier above.
        loaded: chunks found in it and loaded to the device.
        promoted: chunks kept in it on their way up from a tier behind it.
        demoted: chunks written to it when the tier above evicted them.
    """

    stored: int = 0
    loaded: int = 0
    promoted: int = 0
    demoted: int = 0

    def chunks(self) -> dict[str, int]:
        """Return the counts by name."""
        return asdict(self)
