"""The one family of errors that a user can mend; the command line prints them as a sentence, exit code 2."""

from __future__ import annotations


class PagesimError(ValueError):
    """Something in the user's input or options is off; the message says what, where and what is allowed."""


class TraceError(PagesimError):
    """A trace cannot be read: the message names the file, the row, the field, the value and the bound."""


class CapacityError(PagesimError):
    """A model, a cache or a request cannot fit the memory that it was given."""
