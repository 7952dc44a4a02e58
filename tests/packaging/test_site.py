"""The documents as a site: it builds without a warning, and no link of it leads nowhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest

pytestmark = pytest.mark.slow  # every page is rendered

ROOT = Path(__file__).resolve().parents[2]


def test_every_link_of_the_site_leads_somewhere(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    pages = {file: file.read_text("utf-8") for file in tmp_path.rglob("*.html") if file.name != "404.html"}
    assert len(pages) > 40
    ids = {page: set(re.findall(r'\bid="([^"]*)"', text)) for page, text in pages.items()}
    lost = []
    for page, text in pages.items():
        for link in set(re.findall(r'(?:href|src)="([^":]*)"', text)):
            path, _, fragment = unquote(link).partition("#")
            target = (page.parent / path).resolve() if path else page
            target = target / "index.html" if target.is_dir() else target
            if not target.exists() or (fragment and fragment not in ids.get(target, {fragment})):
                lost.append((str(page.relative_to(tmp_path)), link))
    assert not lost
