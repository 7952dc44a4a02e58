"""Assemble: data, scripts and styles put together into one file that needs nothing else."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib.resources import files
from math import inf
from typing import Any

from pagesim.results.report.pack import deflated, embed
from pagesim.setup.system import System


def assembled(data: dict[str, Any], sections: str, scripts: Sequence[str], *, title: str, first: str) -> str:
    """Return a page's text.

    Its content security policy lets nothing be fetched, and no script run but these, by their hashes.

    Args:
        data: what the scripts draw.
        sections: the file with the page's sections.
        scripts: files that go one after another into one function, so that they share their names.
        title: the page's heading.
        first: the section that a keyboard may skip to, by its id.
    """
    from plotly.offline import get_plotlyjs

    here = files("pagesim.results.report")

    def read(name: str) -> str:
        return (here / name).read_text(encoding="utf-8")

    own = '"use strict";\n(() => {\n' + "\n".join(read(name) for name in scripts) + "\n})();\n"
    plotly = get_plotlyjs()
    hashes = " ".join(f"'sha256-{_hash(script)}'" for script in (own, plotly))
    policy = f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:"
    page = read("frame.html")
    parts = {
        **{"POLICY": policy, "STYLE": read("style.css"), "FIRST": first, "TITLE": title},
        **{"SECTIONS": read(sections), "DATA": embed(data)},
        **{"PLOTLY": deflated(plotly.encode("utf-8")), "OWN": own},
    }
    # One cut for each mark: what is put in is never searched for marks.
    text = ""
    for name in parts:
        before, page = page.split(f"@{name}@")
        text += before + parts[name]
    return text + page


def options_of(scenario: System, summary: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a run as a page shows them, those included that it took by default."""
    return {
        **{
            name: value if isinstance(value, bool | int | float) and value != inf else str(value)
            for name, value in scenario.model_dump(exclude_none=True).items()
        },
        **{
            name: f"{value} (default)"
            for name, value in summary.get("options", {}).get("defaults", {}).items()
        },
    }


def _hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
