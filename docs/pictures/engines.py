"""Draw the figure of docs/explanation/engines.md, and print its tables, from stored results.

Run it from the root of the repository, after the three commands of that page: python docs/pictures/engines.py
"""

from pathlib import Path

import pandas as pd

from pagesim.results.engine_plots import engine_bars
from pagesim.results.plots import save

LOADS = {"ShareGPT": "sharegpt", "Azure, conversations": "azure-conv", "Mooncake, conversations": "mooncake"}
TERMS = (("same", "none"), ("same", "own"), ("own", "none"), ("own", "own"))
ON = "llama-3.1-8b on h100"
HERE = Path(__file__).resolve().parent

tables = {load: pd.read_csv(Path("out", "engines", name, "engines.csv")) for load, name in LOADS.items()}
whole = pd.concat([table.assign(load=load) for load, table in tables.items()])
whole.round(4).to_csv(HERE / "engines.csv", index=False)
figure = engine_bars({load: table.to_dict("records") for load, table in tables.items()}, load=ON)
save(figure, Path("out", "engines", "engines"))

COLUMNS = {
    **{"kv_gib": ("KV, GiB", 1), "used_percent": ("used, %", 1), "reserved_percent": ("reserved, %", 1)},
    **{"internal": ("internal fragmentation, %", 1)},
    **{"cached_percent": ("cached, %", 1), "batch": ("batch", 0), "preempted": ("preempted", 0)},
    **{"repeated_percent": ("repeated, %", 2), "hit_percent": ("hits, %", 2)},
    **{"tokens_per_s": ("tokens/s", 0), "ttft_p50_s": ("TTFT p50, s", 2), "tpot_p50_s": ("TPOT p50, ms", 1)},
}
whole["internal"] = whole["unused_reservation_percent"] + whole["rounding_percent"]
whole["tpot_p50_s"] *= 1000
for load in LOADS:
    for sizing, loop in TERMS:
        rows = whole[(whole["load"] == load) & (whole["sizing"] == sizing) & (whole["loop"] == loop)]
        print(f"\n{load}, {sizing} bytes, {loop} loop\n")
        print(f"| | {' | '.join(head for head, _ in COLUMNS.values())} |")
        print(f"|---|{'--:|' * len(COLUMNS)}")
        for _, row in rows.iterrows():
            cells = ("–" if pd.isna(row[name]) else f"{row[name]:,.{n}f}" for name, (_, n) in COLUMNS.items())
            print(f"| `{row['policy']}` | {' | '.join(cells)} |")
