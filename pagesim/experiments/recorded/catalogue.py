"""A server's own words for its model, GPU and release, as the catalogue has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pagesim.hardware import gpus
from pagesim.models.catalogue import known_as
from pagesim.scheduling.vllm_releases import RELEASES


def known(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with names as the catalogue has them; what it does not know is left to flags."""
    found = dict(settings)
    for name, look in (("model", _model), ("gpu", _gpu), ("vllm_version", _release)):
        if name in found:
            value = look(str(found.pop(name)))
            found |= {} if value is None else {name: value}
    return found


def _model(name: str) -> str | None:
    """Return the catalogue's name of a model that a server calls by its path or its repository."""
    last = name.rstrip("/").rsplit("/", 1)[-1].lower()
    words = (name, last, last.removesuffix("-instruct"), last.removesuffix("-hf"), last.removeprefix("meta-"))
    return next(filter(None, map(known_as, words)), None)


def _gpu(device: str) -> str | None:
    """Return the GPU whose name's parts are all in that of a device; of several the one with most."""
    plain = device.lower().replace(" ", "").replace("-", "")
    named = [spec.name for spec in gpus() if all(part in plain for part in spec.name.split("-"))]
    return max(named, key=len, default=None)


def _release(version: str) -> str | None:
    """Return the release of those that are modelled that is nearest by its minor number, of two the newer."""

    def numbers(text: str) -> tuple[int, ...]:
        return tuple(int(part) for part in text[:40].split(".")[:2] if part.isdecimal())

    own = numbers(version)
    if version in RELEASES or len(own) < 2:
        return version if version in RELEASES else None
    # From 0.8 on the engine is v1; those before decided otherwise.
    if own < (0, 8):
        return None
    return min(reversed(RELEASES), key=lambda each: abs(_minor(numbers(each)) - _minor(own)))


def _minor(numbers: tuple[int, ...]) -> int:
    return 1000 * numbers[0] + numbers[1]
