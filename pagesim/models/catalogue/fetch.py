"""Download a model's ``config.json`` from the Hugging Face Hub, with the Hub's client and only on request."""

from __future__ import annotations

import importlib
from contextlib import suppress
from pathlib import Path
from typing import Any

from pagesim.errors import PagesimError, reason
from pagesim.models.catalogue import is_config, known_as
from pagesim.models.catalogue.unknown import HUB_ID, out_of_scope, unknown
from pagesim.models.hf_quant_file import FILE

WAIT = 5
"""Timeout for the Hub's answer, in seconds."""


def fetched(name: str) -> str:
    """Return the folder to which a model's config was downloaded, or the name itself if it is known.

    Only ``config.json`` and, if there is one, `FILE` are downloaded.

    Args:
        name: the model's ID on the Hub, ORG/NAME.

    Raises:
        PagesimError: the ID is invalid, the client is not installed, or it cannot reach or find the file.
    """
    if known_as(name) or is_config(name):
        return name
    if not HUB_ID.fullmatch(name) or out_of_scope(name):
        raise unknown(name)
    try:
        hub = importlib.import_module("huggingface_hub")
    except ImportError:
        raise PagesimError(
            "fetch: the Hub's own client is not installed: pip install huggingface_hub, or give the path of "
            f"the config.json of {name}"
        ) from None
    try:
        path = Path(_taken(hub, name, "config.json"))
    except Exception as error:  # its errors are those of its HTTP client, which differs by version
        raise PagesimError(
            f"fetch: the config.json of {name} cannot be taken from the Hub: {reason(error)}; give its path"
        ) from error
    with suppress(Exception):  # many models have none
        _taken(hub, name, FILE)
    return str(path.parent)


def _taken(hub: Any, name: str, file: str) -> str:
    """Return the path of a downloaded file, or of an earlier copy if the Hub cannot be reached.

    The client retries a download six times over half a minute, but requests a file's metadata only once.
    """
    try:
        hub.get_hf_file_metadata(hub.hf_hub_url(name, file), timeout=WAIT)
    except Exception:
        with suppress(OSError, ValueError):
            return str(hub.hf_hub_download(name, file, local_files_only=True))
        raise
    return str(hub.hf_hub_download(name, file))
