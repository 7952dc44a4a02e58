"""The one family of errors that a user can mend; the command line prints them as a sentence, exit code 2."""

from __future__ import annotations

from reprlib import Repr

_SHORT = Repr()
_SHORT.maxlevel = 4
_SHORT.maxlist = _SHORT.maxtuple = _SHORT.maxdict = 16
_SHORT.maxstring = _SHORT.maxlong = _SHORT.maxother = 1000

_MOST = 2000
"""Characters of a sentence. One that lists all metrics has 1,500."""


PACKAGES = {"re2": "google-re2", "yaml": "pyyaml"}
"""What is installed by another name than it is imported by."""


class PagesimError(ValueError):
    """Something in the user's input or options is off; the message says what, where and what is allowed.

    What cannot be printed on a line is escaped, and the middle of what is endless is left out: names in files
    may hold anything.

    Args:
        sentence: the message.
        remedy: what to write in place of the user's input, ready to be pasted; the command line prints it
            below the message. Empty where there is none.
    """

    def __init__(self, sentence: str, remedy: str = "") -> None:
        text = escaped(sentence)
        super().__init__(text if len(text) <= _MOST else f"{text[: _MOST // 2]} … {text[-_MOST // 2 + 3 :]}")
        self.remedy = remedy


class TraceError(PagesimError):
    """A trace cannot be read: the message names the file, the row, the field, the value and the bound."""


class CapacityError(PagesimError):
    """A model, a cache or a request cannot fit the memory that it was given."""


def escaped(text: str) -> str:
    """Return a text on one line, every character of it printable."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def brief(value: object, most: int = 60) -> str:
    """Return a value as Python writes it, for a message, a long one cut."""
    if isinstance(value, str):
        value = value[: most + 1]
    # Python's own repr of lists within lists takes seconds where a file is made to make it so.
    text = _SHORT.repr(value) if isinstance(value, list | tuple | dict) else repr(value)
    return text if len(text) <= most else text[: most - 3] + "..."


def reason(error: BaseException) -> str:
    """Return what a library says went wrong, for a message: its first line, a long one cut."""
    try:
        text = str(error).strip().splitlines()
    except Exception:  # a plug-in's own kind of error may fail at this, too
        text = []
    return text[0][:200] if text else type(error).__name__
