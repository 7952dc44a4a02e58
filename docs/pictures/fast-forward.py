"""Draw the figure of docs/fast-forward.md: every iteration, and the first of every stretch.

Run it from the root of the repository: python docs/pictures/fast-forward.py
"""

from pathlib import Path

import matplotlib.pyplot as plt

import pagesim as ps

trace = ps.make_trace("sharegpt", arrivals="poisson", rate=2.0, duration=20)
common = {"policy": "vllm-sosp", "model": "opt-13b", "gpu": "a100-40gb"}
every = ps.simulate(trace, steps="iterations", until=20.0, **common).steps
stretches = ps.simulate(trace, steps="stretches", until=20.0, **common).steps

figure, axes = plt.subplots(figsize=(8, 3.4), layout="constrained")
axes.plot(
    *(every["clock"], every["used"]), ".", color="#56B4E9", markersize=2, label=f"{len(every):,} iterations"
)
axes.plot(
    *(stretches["clock"], stretches["used"]), ".", color="#D55E00", markersize=5,
    label=f"{len(stretches):,} of them begin a stretch",
)  # fmt: skip
axes.set_xlim(0, 20)
axes.set_xlabel("time (s)")
axes.set_ylabel("slots in use")
axes.spines[["top", "right"]].set_visible(False)
axes.legend(frameon=False)
figure.savefig(Path(__file__).with_suffix(".png"), dpi=120, metadata={"Software": None})
