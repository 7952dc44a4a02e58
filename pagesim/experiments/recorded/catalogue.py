"""Translates a server's names for its model, GPU and release into the catalogue's."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pagesim.errors import brief
from pagesim.hardware import gpu, gpus
from pagesim.models.catalogue import known_as
from pagesim.scheduling.vllm_releases import RELEASES

_SAYS_NOTHING = re.compile(
    r"nvidia|geforce|tesla|amd|instinct|radeon|corporation|ac|oam|sxm\d?|hbm\d?e?|g?ddr\d\w?|480gb|"
    r"ada|blackwell|generation|server|workstation|edition"
)
"""Words that do not distinguish a GPU from others in the catalogue; 480 GB belong to a Grace CPU."""


def known(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with the catalogue's names; unknown names are dropped and left to flags."""
    found = dict(settings)
    for name, look in (("model", _model), ("gpu", _gpu), ("vllm_version", _release)):
        if name in found:
            value = look(str(found.pop(name)))
            found |= {} if value is None else {name: value}
    return found


def _model(name: str) -> str | None:
    """Return the catalogue's name of a model that a server calls by its path or repository."""
    last = name.rstrip("/").rsplit("/", 1)[-1].lower()
    words = (name, last, last.removesuffix("-instruct"), last.removesuffix("-hf"), last.removeprefix("meta-"))
    return next(filter(None, map(known_as, words)), None)


def _gpu(device: str) -> str | None:
    """Return the GPU all parts of whose name occur in a device's name; the longest name if several match."""
    words = _words(device)
    named = [spec.name for spec in gpus() if set(spec.name.split("-")) <= words]
    return max(named, key=len, default=None)


def _words(device: str) -> set[str]:
    """Return the lower-case words of a device's name, with the name of a series split from its number."""
    return set(re.findall(r"[a-z0-9]+", re.sub(r"(rtx)(?=\d)", r"\1 ", device.lower())))


def of_another_gpu(device: str, name: str) -> str:
    """Return a note if a device is simulated as a GPU whose name lacks some of the device's words.

    Args:
        device: the server's name for it, such as ``NVIDIA H200 NVL``.
        name: catalogue name of the GPU that stands for it.

    Returns:
        A sentence; empty if they are the same.
    """
    memory = gpu(name).nominal_bytes
    sizes = {f"{memory >> 30}gb", f"{memory // 10**9}gb"}
    others = _words(device) - set(name.split("-")) - sizes
    others = {word for word in others if not _SAYS_NOTHING.fullmatch(word)}
    if not others or device.lower() == name:
        return ""
    return (
        f"recorded on {brief(device, 60)}, which the catalogue does not have: simulated as {name}, whose "
        "rates and links may differ"
    )


def _release(version: str) -> str | None:
    """Return the modelled release with the nearest minor number, the newer of two; None if none fits."""

    def numbers(text: str) -> tuple[int, ...]:
        return tuple(int(part) for part in text[:40].split(".")[:2] if part.isdecimal())

    own = numbers(version)
    if version in RELEASES or len(own) < 2:
        return version if version in RELEASES else None
    # From 0.8 on the engine is v1; earlier ones decide differently.
    if own < (0, 8):
        return None
    return min(reversed(RELEASES), key=lambda each: abs(_minor(numbers(each)) - _minor(own)))


def _minor(numbers: tuple[int, ...]) -> int:
    return 1000 * numbers[0] + numbers[1]
