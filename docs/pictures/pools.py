"""Draw the figure of docs/tiers.md: what a prefiller holds for transfer as its decoder saturates.

Run it from the root of the repository: python docs/pictures/pools.py
It first prints the table that it draws.
"""

from pathlib import Path

import matplotlib.pyplot as plt

import pagesim as ps

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

figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 3.4), layout="constrained")
left.plot(RATES, [row[1] for row in rows], "o-", color="#0072B2", label="decoder: held by requests")
left.plot(RATES, [row[2] for row in rows], "o-", color="#8F2D56", label="prefiller: held for transfer")
left.set_ylim(0, 100)
left.set_xlabel("requests/s")
left.set_ylabel("KV cache, mean over time (%)")
left.legend(frameon=False, fontsize=8)
right.plot(RATES, [row[5] for row in rows], "o-", color="#D55E00", label="time to first token, p50")
right.plot(RATES, [row[4] for row in rows], "o-", color="#E69F00", label="prompt computed to pull, mean")
right.set_yscale("log")
right.set_xlabel("requests/s")
right.set_ylabel("seconds")
right.legend(frameon=False, fontsize=8)
for axes in (left, right):
    axes.spines[["top", "right"]].set_visible(False)
figure.savefig(Path(__file__).with_suffix(".png"), dpi=110, metadata={"Software": None})
