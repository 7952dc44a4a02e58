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


class Part(NamedTuple):
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


PARTS: dict[str, Part] = {
    # Entries of the ledger, in its order.
    "used": Part(LABELS["used"], BLUE, "", "█"),
    "state": Part(LABELS["state"], "#004166", "", "▓"),
    "reserved": Part(LABELS["reserved"], SKY, "/", "▒"),
    "internal": Part("internal fragmentation", VERMILION, "x", "x"),
    "unused_reservation": Part(_internal("unused_reservation"), VERMILION, "x", "x"),
    "rounding": Part(_internal("rounding"), ORANGE, ".", "o"),
    "padding": Part(_internal("padding"), "#8C8C8C", "+", "/"),
    "out_of_window": Part(LABELS["out_of_window"], "#F0E442", "-", "-"),
    "held_for_transfer": Part(LABELS["held_for_transfer"], "#8F2D56", "/", "h"),
    "landing": Part("landing (being filled)", "#F4A6C0", "\\", "l"),
    "loading": Part("loading (being filled)", "#B5A3E0", "-", "l"),
    "fenced": Part("fenced (a batch still writes)", "#4D3B7A", "x", "f"),
    "external": Part(LABELS["external"], PURPLE, "\\", "#"),
    "cached": Part(LABELS["cached"], GREEN, "|", "+"),
    "free": Part(LABELS["free"], "#E8E8E8", "", "·"),
    # Categories of the PagedAttention paper's Fig. 2.
    "token_states": Part("token states", BLUE),
    "reservation": Part("reservation", SKY, "/"),
    "others": Part("external fragmentation & others", PURPLE),
    # A GPU's memory outside the cache, paler than the cache's entries.
    "KV cache": Part("KV cache", BLUE),
    "weights": Part("weights", "#B9B2A6"),
    "weights and all else": Part("weights and all else", "#B9B2A6"),
    "adapters": Part("adapters", "#C6B8D2"),
    "drafter": Part("drafter", "#6F7F6A"),
    "activations": Part("activations", "#8C8373"),
    "CUDA graphs": Part("CUDA graphs", "#A9BFB7"),
    "other": Part("other", "#DAD5CB"),
    "all else": Part("activations, CUDA graphs, other", "#DAD5CB"),
    "not requested": Part("not requested", "#FFFFFF"),
}
"""Parts of memory: entries of the ledger, categories of the paper and parts of a GPU's memory."""

TIERS: dict[str, Part] = {
    "pending": Part("pending (being written)", ORANGE, "/"),
    "pinned": Part("pinned (being read)", VERMILION, "x"),
    "duplicate": Part("duplicate (on the device, too)", SKY, "|"),
    "kept": Part("kept (not on the device)", BLUE),
    "free": PARTS["free"],
}
"""Entries of a tier's ledger."""

PHASES: dict[str, Part] = {
    "queued": Part("queued", "#999999"),
    "prefill": Part("prefill (until the first token)", VERMILION, "x"),
    "decode": Part("decode", BLUE),
    "preempted": Part("preempted, to be recomputed", ORANGE, "/"),
    "swapped": Part("swapped out", PURPLE, "|"),
}
"""Phases of a request."""

ITERATIONS: dict[str, Part] = {
    "prefill": Part("prefill", VERMILION),
    "decode": Part("decode", BLUE),
    "mixed": Part("mixed", GREEN),
    "with swap": Part("with swap", PURPLE),
}
"""Kinds of iterations: prefill only, decode only, both, or with swapped blocks."""

LOADS: dict[str, Part] = {
    "num_running": Part("running", LINE_COLOURS[0]),
    "num_waiting": Part("waiting", LINE_COLOURS[1]),
    "num_swapped": Part("swapped out", LINE_COLOURS[2]),
}
"""Requests by state, as columns of the steps table."""


LINES: dict[str, Part] = {
    "measured": Part("measured", "#555555"),
    "simulated": Part("simulated", BLUE),
    "published": Part("published", "#999999"),
}
"""Sources of numbers, in figures that compare them."""

LOOPS: dict[str, Part] = {
    "none": Part("loops take no time", "#B5B5B5"),
    "own": Part("each engine's loop takes its time", "#3C3C3C"),
}
"""Whether the time of an engine's own loop is counted, in figures that compare engines."""


def ink(colour: str) -> str:
    """Return ``white`` or ``black``, whichever is easier to read on a colour."""
    linear = [(int(colour[i : i + 2], 16) / 255) ** 2.2 for i in (1, 3, 5)]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "white" if luminance < WHITE_BELOW else "black"


WHITE_BELOW = 0.28
"""Luminance at which white and black text are equally readable."""


def drawn(parts: Mapping[str, Part], names: Iterable[str]) -> list[dict[str, Any]]:
    """Return parts in the form that a page's scripts draw, each made of one entry of the ledger."""
    return [_drawn(name, parts[name], (name,)) for name in names]


def drawn_categories(entries: Iterable[str]) -> list[dict[str, Any]]:
    """Return the ledger's categories as pages draw them, with internal fragmentation as a single part."""
    rows = [row for row in categories(entries) if not row.is_part]
    return [_drawn(key_of(row), PARTS[key_of(row)], row.entries) for row in rows]


def key_of(row: Category) -> str:
    """Return the key in `PARTS` of a row of a memory table."""
    return "internal" if set(row.entries) & set(INTERNAL) and not row.is_part else row.name


def _drawn(key: str, part: Part, entries: tuple[str, ...]) -> dict[str, Any]:
    return {
        "key": key,
        "keys": entries,
        "label": part.label,
        "colour": part.colour,
        "hatch": part.hatch,
    }
