"""The main loop of compiled machine code: what a turn of it issues, and what is in flight beside it."""

from __future__ import annotations

import re

WIDE_LOAD = re.compile(r"\b(?:LDGSTS|LDG)\.E\S*\.128\b|\bUBLKCP|\bUTMALDG")
"""Loads of 16 bytes a thread from global memory, or of whole tiles."""

_LOAD = re.compile(r"\b(?:LDGSTS|LDG)\.E|\bUBLKCP|\bUTMALDG")
_INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]+\*/")
_LABEL = re.compile(r"^(\.L\w+):")
_BRANCH = re.compile(r"\bBRA\S* .*`\((\.L\w+)\)")
_TILES = re.compile(r"ttg\.local_alloc\b.*: \(\) -> !ttg\.memdesc<(\d+)x(\d+)x(\d+)x[a-z]+(\d+).*\bmutable\b")


def loop_instructions(code: str) -> int:
    """Return how many instructions a turn of the loop has that loads most; 0 where no loop loads.

    Args:
        code: as ``nvdisasm -c`` prints it.
    """
    labels: dict[str, int] = {}
    lines = code.splitlines()
    best, fewest = (0, 0), 0
    for number, line in enumerate(lines):
        if label := _LABEL.match(line):
            labels[label[1]] = number
        branch = _BRANCH.search(line)
        if not branch or branch[1] not in labels:  # one that goes forward
            continue
        body = [text for text in lines[labels[branch[1]] : number + 1] if _INSTRUCTION.match(text)]
        loads = sum(bool(WIDE_LOAD.search(text)) for text in body), sum(map(bool, map(_LOAD.search, body)))
        if loads > best or (loads == best and any(loads) and len(body) < fewest):
            best, fewest = loads, len(body)
    return fewest


def buffer_bytes(ttgir: str) -> int:
    """Return the bytes of the tiles that asynchronous copies of a program fill, all stages together.

    Args:
        ttgir: Triton's GPU intermediate representation. What is copied ahead is shared memory that begins
            empty, so many tiles of rows and columns: ``memdesc<2x64x128xf16, …, mutable>``. Block ids and
            scales that are copied beside them are no tiles.
    """
    tiles = (map(int, found) for found in _TILES.findall(ttgir))
    return sum(stages * rows * columns * bits // 8 for stages, rows, columns, bits in tiles)
