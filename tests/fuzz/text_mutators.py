"""Mutators of bytes and of texts. All randomness is the caller's."""

from __future__ import annotations

import random
import re

from nasty import NASTY_NUMBERS, NASTY_TEXTS


def flip_bits(data: bytes, rng: random.Random) -> bytes:
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8, 64))):
        if out:
            out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
    return bytes(out)


def truncate(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def remove_chunk(data: bytes, rng: random.Random) -> bytes:
    start, end = _chunk(data, rng)
    return data[:start] + data[end:]


def repeat_chunk(data: bytes, rng: random.Random) -> bytes:
    start, end = _chunk(data, rng)
    return data[:end] + data[start:end] * rng.choice((1, 1, 2, 50)) + data[end:]


def move_chunk(data: bytes, rng: random.Random) -> bytes:
    start, end = _chunk(data, rng)
    rest = data[:start] + data[end:]
    at = rng.randrange(len(rest) + 1)
    return rest[:at] + data[start:end] + rest[at:]


def insert(data: bytes, rng: random.Random) -> bytes:
    what = rng.choice(
        (
            b"\xff\xfe", b"\x80", b"\xc3\x28", b"\xed\xa0\x80", b"\0", b"\0" * 100, b"\n", b"\r", b"\r\n",
            b'"',
            b"'", b",", b";", b"[", b"]", b"{", b"}", b":", b"=", b"#", b"\\", b"\\u0000", b"\\ud800",
            b"\xef\xbb\xbf", b"\xe2\x80\xa8", b"[" * 3000, b'{"a":' * 3000, b"-" * 50, b"9" * 5000,
        )
    )  # fmt: skip
    at = rng.choice((0, len(data), rng.randrange(len(data) + 1)))
    return data[:at] + what + data[at:]


def other_magic(data: bytes, rng: random.Random) -> bytes:
    magic = rng.choice((b"PAR1", b"PK\x03\x04", b"\x1f\x8b", b"\x93NUMPY", b"[", b"{", b"\x80\x04", b"%PDF"))
    return magic + data[rng.choice((0, len(magic))) :]


def other_encoding(data: bytes, rng: random.Random) -> bytes:
    text = data.decode("utf-8", "replace")
    return text.encode(rng.choice(("utf-16", "utf-32", "utf-8-sig", "latin-1", "utf-7")), "replace")


def nasty_number(data: bytes, rng: random.Random) -> bytes:
    """Put something else in the place of a number in a text."""
    found = list(re.finditer(rb"-?\d+(\.\d+)?([eE][-+]?\d+)?", data[:100_000]))
    if not found:
        return flip_bits(data, rng)
    number = rng.choice(found)
    new = rng.choice((*NASTY_NUMBERS, rng.choice(NASTY_TEXTS)))
    return data[: number.start()] + new.encode("utf-8", "surrogatepass") + data[number.end() :]


def nasty_word(data: bytes, rng: random.Random) -> bytes:
    """Put something else in the place of a word in a text."""
    found = list(re.finditer(rb"[A-Za-z_][\w\-]*", data[:100_000]))
    if not found:
        return flip_bits(data, rng)
    word = rng.choice(found)
    others = [other.group() for other in rng.sample(found, min(3, len(found)))]
    new = rng.choice((*others, rng.choice(NASTY_TEXTS).encode("utf-8", "surrogatepass")))
    return data[: word.start()] + new + data[word.end() :]


def shuffle_lines(data: bytes, rng: random.Random) -> bytes:
    lines = data.split(b"\n")
    kind = rng.randrange(5)
    at = rng.randrange(len(lines))
    if kind == 0:
        rng.shuffle(lines)
    elif kind == 1:
        del lines[at]
    elif kind == 2:
        lines.insert(at, lines[rng.randrange(len(lines))])
    elif kind == 3:
        lines[at] = b""
    else:
        lines[at] += lines[rng.randrange(len(lines))]
    return b"\n".join(lines)


def swap_columns(data: bytes, rng: random.Random) -> bytes:
    """Swap, remove or repeat a column of a CSV, in all rows or in some."""
    rows = [line.split(b",") for line in data.split(b"\n")]
    a, b = rng.randrange(len(rows[0])), rng.randrange(len(rows[0]))
    kind = rng.randrange(3)
    first = rng.choice((0, 0, 1))  # the header stays as it is
    for row in rows[first:]:
        if max(a, b) >= len(row):
            continue
        if kind == 0:
            row[a], row[b] = row[b], row[a]
        elif kind == 1:
            del row[a]
        else:
            row.insert(a, row[b])
    return b"\n".join(b",".join(row) for row in rows)


def _chunk(data: bytes, rng: random.Random) -> tuple[int, int]:
    start = rng.randrange(len(data) + 1)
    return start, min(len(data), start + rng.choice((1, 2, 4, 16, 100, 1000)))
