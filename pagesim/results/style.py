"""Style: what the parts of memory and of time are called, and how they look, wherever they are drawn.

A part has the same name, colour and hatching in every figure and on every page. Hatchings, where they are
drawn, tell apart what colours do not.
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
"""Okabe and Ito's palette: told apart by colour-blind people. Its yellow is hard to see on white."""

LINE_COLOURS = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY)
"""Of the lines of a chart, in order."""


class Part(NamedTuple):
    """How a part looks.

    Attributes:
        label: what it is called.
        colour: as ``#RRGGBB``.
        hatch: the hatching upon it, a character of plotly.js's patterns, or none.
        glyph: a character that stands for it where there are no colours.
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
    # A GPU's memory beside the cache: paler than what is in it.
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
"""Where memory goes: by entry of the ledger, by category of the paper, and by part of a GPU's memory."""

TIERS: dict[str, Part] = {
    "pending": Part("pending (being written)", ORANGE, "/"),
    "pinned": Part("pinned (being read)", VERMILION, "x"),
    "duplicate": Part("duplicate (on the device, too)", SKY, "|"),
    "kept": Part("kept (not on the device)", BLUE),
    "free": PARTS["free"],
}
"""The entries of a tier's ledger."""

PHASES: dict[str, Part] = {
    "queued": Part("queued", "#999999"),
    "prefill": Part("prefill (until the first token)", VERMILION, "x"),
    "decode": Part("decode", BLUE),
    "preempted": Part("preempted, to be recomputed", ORANGE, "/"),
    "swapped": Part("swapped out", PURPLE, "|"),
}
"""What a request is in the middle of."""

ITERATIONS: dict[str, Part] = {
    "prefill": Part("prefill", VERMILION),
    "decode": Part("decode", BLUE),
    "mixed": Part("mixed", GREEN),
    "with swap": Part("with swap", PURPLE),
}
"""Kinds of iterations: a prompt is computed, or a token of each request, or both, or blocks are moved."""

LOADS: dict[str, Part] = {
    "num_running": Part("running", LINE_COLOURS[0]),
    "num_waiting": Part("waiting", LINE_COLOURS[1]),
    "num_swapped": Part("swapped out", LINE_COLOURS[2]),
}
"""Requests by where they are, columns of the steps table."""


LINES: dict[str, Part] = {
    "measured": Part("measured", "#555555"),
    "simulated": Part("simulated", BLUE),
    "published": Part("published", "#999999"),
}
"""Where numbers come from, in figures that hold some against others."""

LOOPS: dict[str, Part] = {
    "none": Part("loops take no time", "#B5B5B5"),
    "own": Part("each engine's loop takes its time", "#3C3C3C"),
}
"""Whether an engine's own time is counted, in figures that compare engines."""


def ink(colour: str) -> str:
    """Return ``white`` or ``black``, whichever is better read on a colour."""
    linear = [(int(colour[i : i + 2], 16) / 255) ** 2.2 for i in (1, 3, 5)]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "white" if luminance < WHITE_BELOW else "black"


WHITE_BELOW = 0.28
"""Luminance of a colour on which white is read as well as black is."""


def drawn(parts: Mapping[str, Part], names: Iterable[str]) -> list[dict[str, Any]]:
    """Return parts in the form in which the scripts of a page draw them, one of the ledger's entries each."""
    return [_drawn(name, parts[name], (name,)) for name in names]


def drawn_categories(entries: Iterable[str]) -> list[dict[str, Any]]:
    """Return the ledger's categories as pages draw them, all internal fragmentation as one part."""
    rows = [row for row in categories(entries) if not row.is_part]
    return [_drawn(key_of(row), PARTS[key_of(row)], row.entries) for row in rows]


def key_of(row: Category) -> str:
    """Return which of `PARTS` a row of a table about memory is."""
    return "internal" if set(row.entries) & set(INTERNAL) and not row.is_part else row.name


def _drawn(key: str, part: Part, entries: tuple[str, ...]) -> dict[str, Any]:
    return {
        "key": key,
        "keys": entries,
        "label": part.label,
        "colour": part.colour,
        "hatch": part.hatch,
    }
