"""The paper's swaps as two costs: the transfer itself, and the overhead of launching each copy."""

from __future__ import annotations

from pagesim.costs.parse import split_profile
from pagesim.costs.profiles import Profile, analytic_profile, find_profile
from pagesim.costs.table import Table
from pagesim.errors import PagesimError
from pagesim.hardware import gpu
from pagesim.models import model

SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Block sizes of the paper's Fig. 18b and 19."""

TOKENS = 256
"""Tokens of the context that Fig. 19a swaps."""

READ_AT_1_S, READ_AT_256_S = 0.135, 0.0345
"""Seconds to swap out and in at the smallest and the largest block size, read by eye in Fig. 19a."""

COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 1024, 4096, 16384)


def blocks_profile(cost: str, model_name: str, gpu_name: str, tp: int) -> Profile:
    """Return a profile that covers all of `SIZES`, if there is one.

    Args:
        cost: ``profile:NAME[,overhead_s=seconds][,sequence_s=seconds]``.
        model_name: model of the run.
        gpu_name: GPU of the run.
        tp: tensor-parallel degree of the run.

    Raises:
        PagesimError: the cost is not a profile, and so does not depend on block sizes.
    """
    kind, _, rest = cost.partition(":")
    if kind != "profile":
        raise PagesimError(
            f"cost is {cost!r}, which knows no block sizes; fig18b, fig19a and fig19b need profile:NAME, "
            "imported or analytic"
        )
    name, engine, _ = split_profile(rest)
    spec = model(model_name)
    profile = find_profile(name, model=spec, tp=tp)
    if profile.kind == "analytic":
        profile = analytic_profile(gpu(gpu_name), spec, tp=tp, block_sizes=SIZES)
    return profile.with_overhead(**engine) if engine else profile


def copy_by_copy(profile: Profile) -> Profile:
    """Return a profile whose swaps cost as much as in the paper's Fig. 19a.

    For each block, the paper's system launches one copy for each layer's keys and one for its values. Two
    numbers describe this: seconds per token and seconds per copy. They are derived from the two ends of the
    curve, so every size in between is a prediction.
    """
    spec = model(profile.model.name)
    copies = 2 * spec.layers  # keys and values
    at_1, at_256 = READ_AT_1_S / 2, READ_AT_256_S / 2  # one direction
    a_copy = (at_1 - at_256) / (copies * (TOKENS - 1))
    a_token = (at_256 - copies * a_copy) / TOKENS

    def table(size: int) -> Table:
        return Table.of({"blocks": COUNTS}, lambda count: count * (size * a_token + copies * a_copy))

    tables = {size: table(size) for size in profile.block_sizes}
    terms = profile.terms.model_copy(update={"swap_out": tables, "swap_in": tables})
    return profile.model_copy(update={"terms": terms})
