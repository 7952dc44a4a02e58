"""Assemble: combine data, scripts and styles into one self-contained HTML file."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from importlib.resources import files
from math import inf
from pathlib import Path
from typing import Any

import pagesim
from pagesim.results.report.pack import deflated, embed
from pagesim.results.style import LINE_COLOURS, PARTS, PHASES, TIERS, drawn
from pagesim.setup.files import put_text
from pagesim.setup.system import System

CHARTS = "charts.js"
"""The script that draws with plotly.js."""


def write_page(
    data: dict[str, Any],
    out: Path,
    sections: Sequence[str],
    scripts: Sequence[str],
    *,
    title: str,
    first: str,
) -> None:
    """Write a page.

    Its content security policy allows no fetches, and only the page's own scripts by their hashes.

    Args:
        data: data that the scripts draw.
        out: HTML file, written completely or not at all.
        sections: ids of the sections of ``sections.html`` to include, from top to bottom.
        scripts: files concatenated within one function so that they share a scope. The page includes
            plotly.js if ``CHARTS`` is one of them.
        title: heading of the page.
        first: id of the section that the keyboard's skip link leads to.

    Raises:
        PagesimError: the file cannot be written.
    """
    from plotly.offline import get_plotlyjs

    here = files("pagesim.results.report")

    def read(name: str) -> str:
        return (here / name).read_text(encoding="utf-8")

    style = f"const STYLE = {embed(_style())};\n"
    own = '"use strict";\n(() => {\n' + style + "\n".join(read(name) for name in scripts) + "\n})();\n"
    plotly = get_plotlyjs() if CHARTS in scripts else ""
    hashes = " ".join(f"'sha256-{_hash(script)}'" for script in (own, plotly) if script)
    policy = f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:"
    page = read("frame.html")
    parts = {
        **{"POLICY": policy, "STYLE": read("style.css"), "FIRST": first, "TITLE": title},
        **{
            "SECTIONS": _body(read("sections.html"), sections),
            "DATA": embed({"version": pagesim.__version__, **data}),
        },
        **{"PLOTLY": deflated(plotly.encode("utf-8")), "OWN": own},
    }
    # Split at one placeholder at a time, so that inserted text is never searched for placeholders.
    text = ""
    for name in parts:
        before, page = page.split(f"@{name}@")
        text += before + parts[name]
    put_text(out, text + page)


def _style() -> dict[str, Any]:
    """Return labels, colours and hatchings for the scripts."""
    return {
        "parts": {part["key"]: part for part in drawn(PARTS, PARTS)},
        "tiers": drawn(TIERS, TIERS),
        "phases": drawn(PHASES, PHASES),
        "lines": LINE_COLOURS,
    }


_SECTION = re.compile(r'<section id="([\w-]+)".*?<h2[^>]*>(.*?)</h2>.*?</section>\n', re.DOTALL)


def _body(text: str, ids: Sequence[str]) -> str:
    """Return the sections with the given ids, preceded by a list of links labelled with their headings."""
    found = {section[1]: section for section in _SECTION.finditer(text)}
    links = "".join(f'  <a id="{name}-link" href="#{name}">{found[name][2]}</a>\n' for name in ids)
    body = "".join(found[name][0] for name in ids)
    return f'<nav aria-label="Sections">\n{links}</nav>\n<main>\n{body}</main>\n'


def options_of(scenario: System, summary: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a run as a page shows them, including those left at their defaults."""
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
