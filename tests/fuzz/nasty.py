"""Values that are not expected in a file."""

from __future__ import annotations

from typing import Any

NASTY_NUMBERS = (
    "0", "-1", "1", "-0.0", "nan", "NaN", "inf", "-inf", "Infinity", "1e999", "-1e308", "1e-320", "0.5",
    "2147483648", "4294967296", "9223372036854775807", "9223372036854775808", "-9223372036854775809",
    "1" + "0" * 40, "9" * 400, "9" * 5000, "1_000", "0x10", "１２", "+5", "5.", ".5", "1e5", "1e18",
)  # fmt: skip
NASTY_TEXTS = (
    "", " ", "\0", "\n", "a\nb", "\r", "\x1b[31m", "../../etc/x", "/etc/x", "\ud800", "\u202e", "😀" * 30,
    "x" * 70_000, '"', "'", ",", ";", "null", "None", "true", "{}", "[]", "%s%n", "__class__", "nan", "٣",
)  # fmt: skip
NASTY_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**53 + 1, 2**63 - 1, 2**63, -(2**63) - 1, 10**30, 10**400, 0.5, -0.0,
    1e308, 1e-320, float("nan"), float("inf"), float("-inf"), [], {}, [[]], [None], {"a": 1}, [1, 2, 3],
    *NASTY_TEXTS[:16],
)  # fmt: skip
