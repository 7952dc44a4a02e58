"""HfConfig: a Hugging Face ``config.json`` whose keys are taken out one by one, each checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pagesim.costs.specs.families import DEFAULTS
from pagesim.errors import PagesimError, brief


class HfConfig:
    """A config's content, and where it was read, for the errors.

    A model of images or sound too keeps the numbers of its language model under ``text_config``; these are
    read as if they stood at the top. A key that is missing has the value that the family's code gives it
    (`families.DEFAULTS`); one that is null is null.

    Attributes:
        is_part: whether it is of a model of images or sound too.

    Args:
        content: of the file.
        where: the file, for the errors.

    Raises:
        PagesimError: ``text_config`` is no object, or ``model_type`` no text.
    """

    def __init__(self, content: Mapping[str, Any], where: str) -> None:
        self.where = where
        text = content.get("text_config")
        self.is_part = text is not None
        if text is not None:
            if not isinstance(text, Mapping):
                raise self.error("text_config", text, "an object")
            content = {**content, **text}
        family = content.get("model_type") or "llama"
        if not isinstance(family, str):
            raise self.error("model_type", family, "a text")
        self.family = "falcon" if family.startswith("RefinedWeb") else family.removesuffix("_text")
        self.content = {**DEFAULTS.get(self.family, {}), **content}

    def get(self, key: str) -> Any:
        """Return what stands at a key, None if nothing does."""
        return self.content.get(key)

    def number(self, *keys: str, default: int | None = None) -> int:
        """Return the first of these keys that is there and not null; 0 is allowed where it is the default.

        Raises:
            PagesimError: it is no whole number, or none is there and there is no default.
        """
        least = 0 if default == 0 else 1
        for key in keys:
            value = self.get(key)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise self.error(key, value, f"a whole number from {least}")
            return value
        if default is None:
            aliases = f" (or {', '.join(keys[1:])})" if keys[1:] else ""
            raise PagesimError(f"{self.where}: key {keys[0]}{aliases} is missing; add it to the config")
        return default

    def flag(self, key: str, default: bool = False) -> bool:
        """Return whether a key holds something true."""
        value = self.get(key)
        return default if value is None else bool(value)

    def entries(self, key: str) -> Sequence[Any] | None:
        """Return the list at a key, or None if there is none.

        Raises:
            PagesimError: it is something else.
        """
        value = self.get(key)
        if value is not None and not isinstance(value, list | tuple):
            raise self.error(key, value, "a list")
        return value

    def error(self, key: str, value: object, wanted: str) -> PagesimError:
        """Return the error for a key that does not hold what is wanted."""
        return PagesimError(f"{self.where}: {key} is {brief(value)}; it must be {wanted}")
