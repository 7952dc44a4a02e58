"""Every cost model: a run of decode steps takes what its iterations take together, to the tick."""

from __future__ import annotations

import pytest

from pagesim.costs import Affine, CostModel, Profiled, Roofline, step_shape
from pagesim.costs.profiles import Launching, Profile, analytic_profile
from pagesim.costs.table import Table
from pagesim.hardware import gpu
from pagesim.models import model
from pagesim.sim.clock import span_of

OPT, A100 = model("opt-13b"), gpu("a100-40gb")
SPLIT = Table.of(
    {"sequences": (1, 4, 40), "context": (1, 150, 256, 300, 600, 2000)},
    lambda batch, mean: 1e-4 + 1e-6 * batch + 3e-7 * batch * mean**1.2,
)


def split(host_s: float = 0.0) -> Profile:
    """Return a profile whose attention is no single line, and whose host launches for so long."""
    profile = analytic_profile(A100, OPT)
    launching = Launching(decode_s=host_s)
    terms = profile.terms.model_copy(update={"decode": {16: SPLIT}, "launching": launching})
    return profile.model_copy(update={"terms": terms})


COSTS: dict[str, CostModel] = {
    "affine": Affine(0.024, 1e-4, 8.2e-7),
    "roofline": Roofline(model("llama-3-8b"), gpu("h200"), kv_dtype="fp8"),
    "profile": Profiled(split(), OPT),
    **{f"a host of {host_s} s": Profiled(split(host_s), OPT) for host_s in (0.01, 0.02, 0.03, 1.0)},
}


@pytest.mark.parametrize("sequences", [1, 2, 5, 33])
@pytest.mark.parametrize("name", COSTS)
def test_a_run_of_steps_takes_what_its_iterations_take(name: str, sequences: int) -> None:
    cost, context = COSTS[name], 101 * sequences + sequences // 2
    for _ in range(6):
        first, increment, steps = cost.decode(sequences, context)
        steps = min(steps, 400)
        assert steps >= 1
        one_by_one = [cost.iteration(step_shape(sequences, context + j * sequences)) for j in range(steps)]
        assert one_by_one == [first + j * increment for j in range(steps)]
        assert span_of(first, increment, steps) == sum(one_by_one)
        context += steps * sequences


def test_a_run_ends_at_a_knot() -> None:
    cost = COSTS["profile"]
    ends, context = 0, 100
    for _ in range(6):
        first, increment, steps = cost.decode(1, context)
        context += steps
        ends += cost.iteration(step_shape(1, context)) != first + steps * increment
    assert ends > 0
