"""Report: a page that notebooks display in their output."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from pathlib import Path


@dataclass(frozen=True)
class Report:
    """The page of ``pagesim report``, displayed by notebooks in a frame.

    Attributes:
        html: self-contained HTML of the page.
    """

    html: str = field(repr=False)

    def save(self, file: str | Path) -> Path:
        """Write the page; return the file."""
        out = Path(file)
        out.write_text(self.html, encoding="utf-8")
        return out

    def _repr_html_(self) -> str:
        """Return an iframe with the page, for Jupyter."""
        return (
            f'<iframe srcdoc="{escape(self.html)}" sandbox="allow-scripts" '
            'style="width: 100%; height: 900px; border: 0"></iframe>'
        )
