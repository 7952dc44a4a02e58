"""Style: labels and looks of the parts of memory and time, in all figures and pages.

A part has the same label, colour and hatching in every figure and on every page. Hatching, where it is drawn,
distinguishes parts with similar colours.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from pagesim.accounting.fragmentation import INTERNAL, LABELS, Category, categories

BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
)
"""Okabe and Ito's colour-blind-safe palette, without its yellow, which is hard to see on white."""

LINE_COLOURS = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY)
"""Colours of a chart's lines, in order."""


class PartStyle(NamedTuple):
    """How a part looks.

    Attributes:
        label: name of the part.
        colour: colour as ``#RRGGBB``.
        hatch: hatching, as a character of plotly.js's patterns, or empty.
        glyph: character that represents it where colours are not available.
    """

    label: str
    colour: str
    hatch: str = ""
    glyph: str = ""


def _internal(entry: str) -> str:
    return f"internal fragmentation: {LABELS[entry]}"


PARTS: dict[str, PartStyle] = {
    # Entries of the ledger, in its order.
    "used": PartStyle(LABELS["used"], BLUE, "", "█"),
    "state": PartStyle(LABELS["state"], "#004166", "", "▓"),
    "reserved": PartStyle(LABELS["reserved"], SKY, "/", "▒"),
    "internal": PartStyle("internal fragmentation", VERMILION, "x", "x"),
    "unused_reservation": PartStyle(_internal("unused_reservation"), VERMILION, "x", "x"),
    "rounding": PartStyle(_internal("rounding"), ORANGE, ".", "o"),
    "padding": PartStyle(_internal("padding"), "#8C8C8C", "+", "/"),
    "out_of_window": PartStyle(LABELS["out_of_window"], "#F0E442", "-", "-"),
    "held_for_transfer": PartStyle(LABELS["held_for_transfer"], "#8F2D56", "/", "h"),
    "landing": PartStyle("landing (being filled)", "#F4A6C0", "\\", "l"),
    "loading": PartStyle("loading (being filled)", "#B5A3E0", "-", "l"),
    "fenced": PartStyle("fenced (a batch still writes)", "#4D3B7A", "x", "f"),
    "external": PartStyle(LABELS["external"], PURPLE, "\\", "#"),
    "cached": PartStyle(LABELS["cached"], GREEN, "|", "+"),
    "free": PartStyle(LABELS["free"], "#E8E8E8", "", "·"),
    # Categories of the PagedAttention paper's Fig. 2.
    "token_states": PartStyle("token states", BLUE),
    "reservation": PartStyle("reservation", SKY, "/"),
    "others": PartStyle("external fragmentation & others", PURPLE),
    # A GPU's memory outside the cache, paler than the cache's entries.
    "KV cache": PartStyle("KV cache", BLUE),
    "weights": PartStyle("weights", "#B9B2A6"),
    "weights and all else": PartStyle("weights and all else", "#B9B2A6"),
    "adapters": PartStyle("adapters", "#C6B8D2"),
    "drafter": PartStyle("drafter", "#6F7F6A"),
    "activations": PartStyle("activations", "#8C8373"),
    "CUDA graphs": PartStyle("CUDA graphs", "#A9BFB7"),
    "other": PartStyle("other", "#DAD5CB"),
    "all else": PartStyle("activations, CUDA graphs, other", "#DAD5CB"),
    "not requested": PartStyle("not requested", "#FFFFFF"),
}
"""Parts of memory: entries of the ledger, categories of the paper and parts of a GPU's memory."""

TIERS: dict[str, PartStyle] = {
    "pending": PartStyle("pending (being written)", ORANGE, "/"),
    "pinned": PartStyle("pinned (being read)", VERMILION, "x"),
    "duplicate": PartStyle("duplicate (on the device, too)", SKY, "|"),
    "kept": PartStyle("kept (not on the device)", BLUE),
    "free": PARTS["free"],
}
"""Entries of a tier's ledger."""

PHASES: dict[str, PartStyle] = {
    "queued": PartStyle("queued", "#999999"),
    "prefill": PartStyle("prefill (until the first token)", VERMILION, "x"),
    "decode": PartStyle("decode", BLUE),
    "preempted": PartStyle("preempted, to be recomputed", ORANGE, "/"),
    "swapped": PartStyle("swapped out", PURPLE, "|"),
}
"""Phases of a request."""

ITERATIONS: dict[str, PartStyle] = {
    "prefill": PartStyle("prefill", VERMILION),
    "decode": PartStyle("decode", BLUE),
    "mixed": PartStyle("mixed", GREEN),
    "with swap": PartStyle("with swap", PURPLE),
}
"""Kinds of iterations: prefill only, decode only, both, or with swapped blocks."""

LOADS: dict[str, PartStyle] = {
    "num_running": PartStyle("running", LINE_COLOURS[0]),
    "num_waiting": PartStyle("waiting", LINE_COLOURS[1]),
    "num_swapped": PartStyle("swapped out", LINE_COLOURS[2]),
}
"""Requests by state, as columns of the steps table."""


LINES: dict[str, PartStyle] = {
    "measured": PartStyle("measured", "#555555"),
    "simulated": PartStyle("simulated", BLUE),
    "published": PartStyle("published", "#999999"),
}
"""Sources of numbers, in figures that compare them."""

LOOPS: dict[str, PartStyle] = {
    "none": PartStyle("loops take no time", "#B5B5B5"),
    "own": PartStyle("each engine's loop takes its time", "#3C3C3C"),
}
"""Whether the time of an engine's own loop is counted, in figures that compare engines."""


def ink(colour: str) -> str:
    """Return ``white`` or ``black``, whichever is easier to read on a colour."""
    linear = [(int(colour[i : i + 2], 16) / 255) ** 2.2 for i in (1, 3, 5)]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "white" if luminance < WHITE_BELOW else "black"


WHITE_BELOW = 0.28
"""Luminance at which white and black text are equally readable."""


def drawn(parts: Mapping[str, PartStyle], names: Iterable[str]) -> list[dict[str, Any]]:
    """Return parts in the form that a page's scripts draw, each made of one entry of the ledger."""
    return [_drawn(name, parts[name], (name,)) for name in names]


def drawn_categories(entries: Iterable[str]) -> list[dict[str, Any]]:
    """Return the ledger's categories as pages draw them, with internal fragmentation as a single part."""
    rows = [row for row in categories(entries) if not row.is_part]
    return [_drawn(key_of(row), PARTS[key_of(row)], row.entries) for row in rows]


def key_of(row: Category) -> str:
    """Return the key in `PARTS` of a row of a memory table."""
    return "internal" if set(row.entries) & set(INTERNAL) and not row.is_part else row.name


def _drawn(key: str, part: PartStyle, entries: tuple[str, ...]) -> dict[str, Any]:
    return {
        "key": key,
        "keys": entries,
        "label": part.label,
        "colour": part.colour,
        "hatch": part.hatch,
    }
