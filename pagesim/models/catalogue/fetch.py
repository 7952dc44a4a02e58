"""Take the ``config.json`` of a model from the Hugging Face Hub, by its own client and on request only."""

from __future__ import annotations

import importlib
from contextlib import suppress
from pathlib import Path

from pagesim.errors import PagesimError, reason
from pagesim.models.catalogue import is_config, known_as
from pagesim.models.catalogue.unknown import HUB_ID, out_of_scope, unknown
from pagesim.models.hf_quantization import FILE


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
        path = Path(hub.hf_hub_download(name, "config.json"))
    except (OSError, ValueError) as error:
        raise PagesimError(
            f"fetch: the config.json of {name} cannot be taken from the Hub: {reason(error)}; give its path"
        ) from error
    with suppress(OSError, ValueError):
        hub.hf_hub_download(name, FILE)
    return str(path.parent)
