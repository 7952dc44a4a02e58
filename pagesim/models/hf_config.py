"""HfConfig: a Hugging Face ``config.json`` with checked access to its keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pagesim.errors import PagesimError, brief
from pagesim.models.families import BUILT_AS, FAMILIES, OTHER

_ENDS = ("ForConditionalGeneration", "ForCausalLM", "LMHeadModel")
_BY_CLASS = {family.replace("_", ""): family for family in (*FAMILIES, *BUILT_AS)}


MOST_REAL = 1e6
"""A width, or a factor of a width, larger than this is taken for a mistake."""


class HfConfig:
    """A config's content, and where it was read from (for error messages).

    Multimodal models keep the numbers of their language model under ``text_config``; these are read as if
    they were at the top level. A missing key has the default of the family's code
    (`ModelFamily.defaults`); null stays null. Every key that is requested is recorded, so that unread ones
    can be listed (`hf_unread.unread`).

    Attributes:
        is_part: whether the language model is a part of a multimodal model.
        model_type: the config's ``model_type``.
        family: name of the family whose code builds the model.
        rules: what that family's code fixes.

    Args:
        content: the file's content.
        where: the file, for error messages.

    Raises:
        PagesimError: ``text_config`` is not an object, ``model_type`` is not a string, or neither it nor
            ``architectures`` identifies the model.
    """

    def __init__(self, content: Mapping[str, Any], where: str) -> None:
        self.where = where
        self.whole = content
        self.asked: set[str] = set()
        text = content.get("text_config")
        self.is_part = text is not None
        if text is not None:
            if not isinstance(text, Mapping):
                raise self.error("text_config", text, "an object")
            content = {**content, **text}
        family = content.get("model_type") or self._of_class(content.get("architectures"))
        if not isinstance(family, str):
            raise self.error("model_type", family, "a text")
        self.model_type = "falcon" if family.startswith("RefinedWeb") else family.removesuffix("_text")
        self.family = BUILT_AS.get(self.model_type, self.model_type)
        self.given = content
        self.rules = FAMILIES.get(self.family, OTHER)
        self.content = {**self.rules.defaults, **content}
        self.skip(*self.rules.skips)

    def _of_class(self, architectures: object) -> str:
        """Return the family of a config without ``model_type``, by the name of the model's class."""
        for name in architectures if isinstance(architectures, list) else ():
            for end in _ENDS:
                family = (
                    _BY_CLASS.get(str(name).removesuffix(end).lower()) if str(name).endswith(end) else None
                )
                if family:
                    return family
        raise PagesimError(
            f"{self.where}: there is no model_type, and architectures, which is {brief(architectures)}, "
            "names no model that is known here; give the model_type"
        )

    def get(self, key: str) -> Any:
        """Return the value of a key; None if it is missing."""
        self.asked.add(key)
        return self.content.get(key)

    def skip(self, *keys: str) -> None:
        """Mark keys as read that add no information here."""
        self.asked.update(keys)

    def number(self, *keys: str, default: int | None = None) -> int:
        """Return the first of these keys that is present and not null; 0 is allowed if it is the default.

        A list with the same number for each layer counts as that number.

        Raises:
            PagesimError: the value is not a whole number, or there is neither a value nor a default.
        """
        least = 0 if default == 0 else 1
        for key in keys:
            value = self.get(key)
            if value is None:
                continue
            layers = self.content.get("num_hidden_layers")
            if isinstance(value, list) and value and len(value) == layers and value == value[:1] * layers:
                value = value[0]
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise self.error(key, value, f"a whole number from {least}")
            self.asked.update(alias for alias in keys if self.content.get(alias) == value)
            return value
        if default is None:
            aliases = f" (or {', '.join(keys[1:])})" if keys[1:] else ""
            raise PagesimError(f"{self.where}: key {keys[0]}{aliases} is missing; add it to the config")
        return default

    def real(self, key: str, default: float | None = None) -> float:
        """Return the number at a key, whole or fractional, above 0.

        Raises:
            PagesimError: the value is something else, or there is neither a value nor a default.
        """
        value = self.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < MOST_REAL:
            raise self.error(key, value, f"a number above 0 and below {MOST_REAL:g}")
        return value

    def part(self, key: str) -> HfConfig | None:
        """Return the object at a key as a config of its own, or None if the key is missing.

        Raises:
            PagesimError: the value is not an object.
        """
        value = self.get(key)
        return None if value is None else self._of_part(key, value)

    def parts(self, key: str) -> list[HfConfig]:
        """Return the objects in the list or object at a key, each as a config of its own.

        Raises:
            PagesimError: the value is something else.
        """
        value = self.get(key)
        if value is not None and not isinstance(value, list | tuple | Mapping):
            raise self.error(key, value, "a list or an object of objects")
        found = value.values() if isinstance(value, Mapping) else value or ()
        return [self._of_part(key, each) for each in found]

    def _of_part(self, key: str, value: object) -> HfConfig:
        if not isinstance(value, Mapping):
            raise self.error(key, value, "an object")
        return HfConfig({**value, "model_type": "part"}, f"{self.where}: {key}")

    def flag(self, key: str, default: bool = False) -> bool:
        """Return the boolean at a key.

        Raises:
            PagesimError: the value has another type; likewise for the methods below.
        """
        value = self._of_kind(key, bool, "true or false")
        return default if value is None else bool(value)

    def text(self, key: str) -> str | None:
        """Return the string at a key, or None if it is missing."""
        value: str | None = self._of_kind(key, str, "a text")
        return value

    def entries(self, key: str) -> Sequence[Any] | None:
        """Return the list at a key, or None if it is missing."""
        value: Sequence[Any] | None = self._of_kind(key, (list, tuple), "a list")
        return value

    def numbers(self, key: str) -> Sequence[int] | None:
        """Return the list of whole numbers at a key, or None if it is missing."""
        value = self.entries(key)
        if value is not None and any(isinstance(each, bool) or not isinstance(each, int) for each in value):
            raise self.error(key, value, "a list of whole numbers")
        return value

    def _of_kind(self, key: str, kind: type | tuple[type, ...], wanted: str) -> Any:
        value = self.get(key)
        if value is not None and not isinstance(value, kind):
            raise self.error(key, value, wanted)
        return value

    def error(self, key: str, value: object, wanted: str) -> PagesimError:
        """Return the error for a key whose value is not what is required."""
        return PagesimError(f"{self.where}: {key} is {brief(value)}; it must be {wanted}")
