"""Latent attention: seconds of one layer's whole module, including its projections."""

from __future__ import annotations

from typing import NamedTuple

from pagesim.costs.operators.dtypes import BF16
from pagesim.costs.operators.planes import Plane
from pagesim.costs.operators.products import LatentShape
from pagesim.costs.operators.tables import Chip, OperatorTable

DECODE, PROMPTS = "latent decode", "latent prompts"

TIMED = LatentShape(7168, 128, 1536, 512, 64, 128, 128)
"""The timed shape, with several numbers of heads: DeepSeek-V3's."""


class Latent(NamedTuple):
    """Timings of one layer's attention module of DeepSeek-V3, with some of its heads on the GPU.

    Attributes:
        heads: number of heads that were timed.
        decode: seconds over sequences and context.
        prompts: seconds over prompts and their length.
        tables: source tables of ``decode`` and ``prompts``.
        notes: what was substituted, one sentence each.
    """

    heads: int
    decode: Plane
    prompts: Plane
    tables: tuple[OperatorTable, OperatorTable]
    notes: tuple[str, ...]


def latent(chip: Chip, heads: int, gemm_dtype: str, cache: str) -> Latent | None:
    """Return the timings of a layer's attention module; None if none was timed.

    Args:
        chip: the GPU and its measurements.
        heads: heads on the GPU; if untimed, the next larger timed number is used.
        gemm_dtype: type of the projections' weights; if untimed, another type is used.
        cache: type of the cache, ``bfloat16`` or ``fp8``; if untimed, ``bfloat16`` is used.
    """
    types = [(gemm, kv) for kv in (cache, BF16) for gemm in (gemm_dtype, "fp8_block", BF16)]
    for gemm, kv in types:
        decoding, prompting = chip.tables.find(DECODE, gemm, kv), chip.tables.find(PROMPTS, gemm, kv)
        if decoding and prompting:
            break
    else:
        return None
    notes = []
    if (gemm, kv) != (gemm_dtype, cache):
        notes.append(
            f"latent attention with projections in {gemm_dtype} and a cache in {cache} was not timed on "
            f"{chip.gpu.name}: that in {gemm} and {kv} counts"
        )
    known = sorted(each[0] for each in decoding[0].keys.tolist())
    measured = next((each for each in known if each >= heads), known[-1])
    if measured != heads:
        notes.append(f"latent attention of {heads} heads was not timed: that of {measured} counts")
    decode_row, prompt_row = decoding[0].row(measured), prompting[0].row(measured)
    if decode_row is None or prompt_row is None:
        return None
    decode = Plane.decoding(decoding[0].axes, decode_row)
    prompts = Plane.prompting(prompting[0].axes, prompt_row)
    return Latent(measured, decode, prompts, (decoding[0], prompting[0]), tuple(notes))
