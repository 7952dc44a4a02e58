"""A hook of MkDocs: what pages link to beside the documents, in the checkout, is named and not linked."""

from __future__ import annotations

import posixpath
import re

LINK = re.compile(r"(?<!!)\[((?:[^][]|\[[^]]*\])*)\]\(([^)\s:]+)\)")


def on_page_markdown(markdown: str, *, page, config, files) -> str:
    """Return a page's text without links to what the site does not have."""
    folder = posixpath.dirname(page.file.src_uri)

    def kept(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, link[2].partition("#")[0]))
        is_there = link[2].startswith("#") or files.get_file_from_path(target) is not None
        return link[0] if is_there else link[1]

    return LINK.sub(kept, markdown)
