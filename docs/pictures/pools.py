"""Draw the figure of docs/explanation/tiers.md: what a prefiller holds for transfer as its decoder saturates.

Run it from the root of the repository: python docs/pictures/pools.py
It first prints the table that it draws.
"""

from pathlib import Path

import pagesim as ps
from pagesim.results.drawing import bare, empty, head
from pagesim.results.style import ORANGE, PARTS, VERMILION

RATES = (4, 8, 12, 14, 16, 18, 20)
BLOCKS = 1500

rows = []
for rate in RATES:
    trace = ps.make_trace("sharegpt", rate=float(rate), duration=120.0)
    result = ps.simulate_pools(
        trace, prefill=1, decode=1, model="llama-3.1-8b", gpu="h100", num_blocks=BLOCKS, link="25GB/s"
    )
    prefiller, decoder = (row for _, row in result.replicas.iterrows())
    rows.append(
        (
            rate,
            decoder["used_percent"] + decoder["reserved_percent"] + decoder["landing_percent"],
            prefiller["held_for_transfer_percent"],
            prefiller["busy_share"],
            result.summary["pulls"]["waited_s"]["mean"],
            result.summary["ttft"]["p50"],
        )
    )

print("requests/s  decoder full, %  held for transfer, %  prefiller busy  waits for its pull, s  TTFT p50, s")
for rate, full, held, busy, waits, ttft in rows:
    print(f"{rate:10d}  {full:15.1f}  {held:20.2f}  {busy:14.3f}  {waits:21.4f}  {ttft:11.3f}")

figure = empty(8.4, 3.8)
left, right = figure.subplots(1, 2)
left.plot(
    RATES, [row[1] for row in rows], "o-", color=PARTS["used"].colour, label="decoder: held by requests"
)
left.plot(
    RATES,
    [row[2] for row in rows],
    "o-",
    color=PARTS["held_for_transfer"].colour,
    label="prefiller: held for transfer",
)
left.set_ylim(0, 100)
left.set_xlabel("requests/s")
left.set_ylabel("KV cache, mean over time (%)")
left.legend(frameon=False, fontsize=8)
right.plot(RATES, [row[5] for row in rows], "o-", color=VERMILION, label="time to first token, p50")
right.plot(RATES, [row[4] for row in rows], "o-", color=ORANGE, label="prompt computed to pull, mean")
right.set_yscale("log")
right.set_xlabel("requests/s")
right.set_ylabel("seconds")
right.legend(frameon=False, fontsize=8)
bare(left, right)
head(
    figure,
    "What a prefiller holds for transfer as its decoder saturates",
    "sharegpt, llama-3.1-8b on h100, a prefiller and a decoder of 1,500 blocks each, 25 GB/s between them",
)
figure.savefig(Path(__file__).with_suffix(".png"), dpi=110, metadata={"Software": None})
