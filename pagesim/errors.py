"""Errors that a user can fix; the command line prints them as one sentence and exits with code 2."""

from __future__ import annotations

from reprlib import Repr

_SHORT = Repr()
_SHORT.maxlevel = 4
_SHORT.maxlist = _SHORT.maxtuple = _SHORT.maxdict = 16
_SHORT.maxstring = _SHORT.maxlong = _SHORT.maxother = 1000

_MOST = 2000
"""Maximum characters of a message; one that lists all metrics has 1,500."""


PACKAGES = {"re2": "google-re2", "yaml": "pyyaml"}
"""Packages whose import name differs from the name under which they are installed."""


class PagesimError(ValueError):
    """The user's input or options are invalid; the message says what, where and what is allowed.

    Unprintable characters are escaped and the middle of overlong messages is left out, since names in files
    may contain anything.

    Args:
        sentence: the message.
        remedy: replacement for the user's input, ready to paste; the command line prints it below the
            message. Empty if there is none.
    """

    def __init__(self, sentence: str, remedy: str = "") -> None:
        text = escaped(sentence)
        super().__init__(text if len(text) <= _MOST else f"{text[: _MOST // 2]} … {text[-_MOST // 2 + 3 :]}")
        self.remedy = remedy


class TraceError(PagesimError):
    """A trace cannot be read; the message names the file, the row, the field, the value and the bound."""


class CapacityError(PagesimError):
    """A model, a cache or a request does not fit into the available memory."""


def escaped(text: str) -> str:
    """Return a text on one line, with unprintable characters escaped."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def brief(value: object, most: int = 60) -> str:
    """Return a value's ``repr`` for a message, shortened to at most ``most`` characters."""
    if isinstance(value, str):
        value = value[: most + 1]
    # The built-in repr of nested lists can take seconds on a maliciously crafted file.
    text = _SHORT.repr(value) if isinstance(value, list | tuple | dict) else repr(value)
    return text if len(text) <= most else text[: most - 3] + "..."


def reason(error: BaseException) -> str:
    """Return the first line of a library's error for a message, shortened if it is long."""
    try:
        text = str(error).strip().splitlines()
    except Exception:  # str() of a plug-in's own error class may fail
        text = []
    return text[0][:200] if text else type(error).__name__
