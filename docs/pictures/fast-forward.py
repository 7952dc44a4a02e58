"""Draw the figure of docs/explanation/fast-forward.md: every iteration, and the first of every stretch.

Run it from the root of the repository: python docs/pictures/fast-forward.py
"""

from pathlib import Path

import pagesim as ps
from pagesim.results.drawing import bare, empty, head
from pagesim.results.style import SKY, VERMILION

trace = ps.make_trace("sharegpt", arrivals="poisson", rate=2.0, duration=20)
common = {"policy": "vllm-sosp", "model": "opt-13b", "gpu": "a100-40gb"}
every = ps.simulate(trace, steps="iterations", until=20.0, **common).steps
stretches = ps.simulate(trace, steps="stretches", until=20.0, **common).steps

figure = empty(8, 3.7)
axes = figure.add_subplot()
axes.plot(*(every["clock"], every["used"]), ".", color=SKY, markersize=2, label=f"{len(every):,} iterations")
axes.plot(
    *(stretches["clock"], stretches["used"]), ".", color=VERMILION, markersize=5,
    label=f"{len(stretches):,} of them begin a stretch",
)  # fmt: skip
axes.set_xlim(0, 20)
axes.set_xlabel("time (s)")
axes.set_ylabel("slots in use")
bare(axes)
axes.legend(frameon=False)
head(
    figure,
    "Every iteration, and the first of every stretch that is fast-forwarded",
    "sharegpt, 2 requests/s, opt-13b on a100-40gb under vllm-sosp",
)
figure.savefig(Path(__file__).with_suffix(".png"), dpi=120, metadata={"Software": None})
