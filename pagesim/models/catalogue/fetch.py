"""Take the ``config.json`` of a model from the Hugging Face Hub, by its own client and on request only."""

from __future__ import annotations

import importlib
from contextlib import suppress
from pathlib import Path
from typing import Any

from pagesim.errors import PagesimError, reason
from pagesim.models.catalogue import is_config, known_as
from pagesim.models.catalogue.unknown import HUB_ID, out_of_scope, unknown
from pagesim.models.hf_quantization import FILE

WAIT = 5
"""Seconds that the Hub has to answer."""


def fetched(name: str) -> str:
    """Return the folder into which the Hub's client puts a model's config, or the name of one that is known.

    Nothing but ``config.json``, and `FILE` where there is one, is taken.

    Args:
        name: ORG/NAME.

    Raises:
        PagesimError: it is no such id, the client is not installed, or it cannot reach or find the file.
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
    except Exception as error:  # the client's errors are those of the HTTP client of its version
        raise PagesimError(
            f"fetch: the config.json of {name} cannot be taken from the Hub: {reason(error)}; give its path"
        ) from error
    with suppress(Exception):  # as many models have none
        _taken(hub, name, FILE)
    return str(path.parent)


def _taken(hub: Any, name: str, file: str) -> str:
    """Return the path of a file of the Hub, or of what an earlier fetch left of it if the Hub is not reached.

    The client tries a download six times over half a minute, but asks about a file once.
    """
    try:
        hub.get_hf_file_metadata(hub.hf_hub_url(name, file), timeout=WAIT)
    except Exception:
        with suppress(OSError, ValueError):
            return str(hub.hf_hub_download(name, file, local_files_only=True))
        raise
    return str(hub.hf_hub_download(name, file))
