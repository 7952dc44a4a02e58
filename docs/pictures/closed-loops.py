"""Draw the figure of docs/how-to/closed-loops.md: preemptions by watermark, beside those published.

Run it from the root of the repository: python docs/pictures/closed-loops.py
It first prints the table that it draws.
"""

from pathlib import Path

import numpy as np

import pagesim as ps
from pagesim.results.drawing import bare, empty, head
from pagesim.results.style import BLUE, LINES, SKY, VERMILION

PUBLISHED = {0.0: 1065, 0.02: 400, 0.05: 187, 0.1: 168}
"""vllm-project/vllm#44594: one run each on a GB200, of lengths that were not published."""

SCHEDULER = {0.0: 1012, 0.02: 377, 0.05: 236, 0.1: 183}
"""vLLM 0.33.0's own scheduler, for one draw of lengths (tests/sim/test_closed_loops.py)."""

tables = ps.sweep(
    "uniform:800-1200,4000-6000",
    grid={"watermark": list(PUBLISHED), "async_scheduling": [False, True]},
    seeds=20,
    num_requests=450,
    rate=float("inf"),
    max_concurrency=128,
    policy="vllm-v1",
    vllm_version="0.33.0",
    num_blocks=18724,
    max_num_batched_tokens=8192,
    max_num_seqs=256,
    max_model_len=16384,
    enable_prefix_caching=False,
)
name = "preemptions.recompute"
means = tables.means.set_index(["async_scheduling", "watermark"])
runs = tables.runs[~tables.runs["async_scheduling"].astype(bool)]
draws = {watermark: own.to_numpy() for watermark, own in runs.groupby("watermark")[name]}


def ours(ahead: bool, watermark: float) -> str:
    """Return the mean of the draws with its margin."""
    row = means.loc[ahead, watermark]
    return f"{row[name]:.0f} ± {row[f'{name}.ci95']:.0f}"


print("watermark  published  mean of 20 draws, 95 %  lowest and highest draw  asynchronous, mean")
for watermark, published in PUBLISHED.items():
    extremes = f"{draws[watermark].min():.0f}–{draws[watermark].max():.0f}"
    columns = f"{ours(False, watermark):>22}  {extremes:>23}  {ours(True, watermark):>18}"
    print(f"{watermark:9.2f}  {published:9d}  {columns}")

mean = [means.loc[False, watermark][name] for watermark in PUBLISHED]
margin = [means.loc[False, watermark][f"{name}.ci95"] for watermark in PUBLISHED]
figure = empty(7, 3.7)
axes = figure.add_subplot()
places = np.arange(len(PUBLISHED))
axes.bar(
    places - 0.2, PUBLISHED.values(), 0.36, color=LINES["published"].colour, label="published, GB200, one run"
)
axes.bar(
    *(places + 0.2, mean, 0.36), yerr=margin, capsize=4, color=SKY,
    label="pagesim, mean of 20 draws, 95 %",
)  # fmt: skip
spread = np.linspace(0.08, 0.32, 20)
for place, own in zip(places, draws.values(), strict=True):
    axes.plot(place + spread, own, ".", color=BLUE, markersize=3, label=None if place else "each draw")
axes.plot(
    *(places + 0.2, list(SCHEDULER.values())), "D", color=VERMILION, markersize=5,
    label="vLLM 0.33.0's scheduler and pagesim, one draw",
)  # fmt: skip
axes.set_xticks(places, [f"{watermark:g}" for watermark in PUBLISHED])
axes.set_xlabel("watermark")
axes.set_ylabel("preemptions")
bare(axes)
axes.legend(frameon=False)
head(
    figure,
    "Preemptions in a closed loop, by watermark",
    "450 requests of 800 to 1,200 and 4,000 to 6,000 tokens, 128 at a time, under vllm-v1",
)
figure.savefig(Path(__file__).with_suffix(".png"), dpi=120, metadata={"Software": None})
