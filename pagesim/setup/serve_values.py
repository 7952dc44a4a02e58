"""What the values of a server's flags say: numbers, choices, and the dtype of quantized weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pagesim.costs.specs import model
from pagesim.costs.specs.weights import GROUPS
from pagesim.errors import PagesimError, brief, escaped

Reader = Callable[[str, str], dict[str, Any]]
"""What makes options of a flag's name and its value; PagesimError where the value is off."""


def number(option: str, read: Callable[[str], Any]) -> Reader:
    """Return the reader of a number that is an option's value.

    Args:
        option: its name.
        read: makes the number; ValueError or OverflowError where it is none.
    """

    def reads(name: str, text: str) -> dict[str, Any]:
        try:
            return {option: read(text)}
        except (ValueError, OverflowError):
            wanted = "a number" if read is float else "a whole number"
            raise PagesimError(f"--serve: --{name} is {brief(text, 80)}; it must be {wanted}") from None

    return reads


def choice(option: str, known: Mapping[str, str]) -> Reader:
    """Return the reader of one of several words.

    Args:
        option: its name.
        known: its value by the word; '' where the word says what holds without it.
    """

    def reads(name: str, text: str) -> dict[str, Any]:
        if text not in known:
            raise PagesimError(
                f"--serve: --{name} {brief(text, 80)} is not modelled; it may be {', '.join(known)}"
            )
        return {option: known[text]} if known[text] else {}

    return reads


def quantized(name: str, method: str, checkpoints: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    """Return the weight dtype that a method of quantization gives a model, if it is not the model's own.

    Args:
        name: of the model, or its path.
        method: of quantization.
        checkpoints: by method, the weight dtypes of checkpoints for which it says nothing new.

    Raises:
        PagesimError: the method is not modelled for this model.
    """
    spec = model(name)
    own = {dtype.name for group in GROUPS if (dtype := spec.weights.of(group)) and dtype.quantized}
    if method.lower() == "none" or own & set(checkpoints.get(method, ())):
        return {}
    if method == "fp8" and not own:
        return {"weight_dtype": "fp8"}
    remedy = "leave it out" if own else "it may be none or fp8, or name a quantized config.json as the model"
    raise PagesimError(
        f"--serve: --quantization {escaped(method)[:80]} affects scheduling and is not modelled "
        f"for {brief(name, 80)}, whose weights are {spec.weights_in_words}; {remedy}"
    )


def check_kernels(name: str, flag: str, given: Mapping[str, list[str]]) -> None:
    """Refuse a choice of the experts' kernels for a model whose experts are MXFP4: kernels pad such weights.

    Args:
        name: of the model, or its path.
        flag: that chooses them.
        given: flags, with their values.

    Raises:
        PagesimError: it is given, and is not ``auto``.
    """
    if given.get(flag, ["auto"])[-1] == "auto":
        return
    dtype = model(name).weights.of("experts")
    if dtype is not None and dtype.name.startswith("mxfp4"):
        raise PagesimError(
            f"--serve: --{flag} {escaped(given[flag][-1])[:80]} would change how far the MXFP4 experts of "
            f"{brief(name, 80)} are padded, and is not modelled; leave it out"
        )
