"""Print the tables of docs/validation/kernels.md from the rows of `pagesim bench all`: ``ROWS.parquet``."""

from __future__ import annotations

import sys

import pandas as pd


def table(rows: pd.DataFrame, index: list[str], columns: str, values: str = "µs") -> str:
    """Return a Markdown table of the smallest value of every place."""
    found = rows.pivot_table(values=values, index=index, columns=columns, aggfunc="min", sort=False)
    found = found.map(lambda value: f"{value:,.4g}").reset_index()
    lines = [list(found), ["--:"] * found.shape[1], *found.astype(str).to_numpy().tolist()]
    return "\n".join("|" + "|".join(map(str, line)) + "|" for line in lines)


def tables(path: str) -> str:
    """Return all tables of the page."""
    rows = pd.read_parquet(path)
    rows["µs"], rows["ms"] = rows["median_s"] * 1e6, rows["median_s"] * 1e3
    plain = rows[["splits", "window", "queries"]].isna().all(axis=1)
    attention = rows[
        plain & (rows["bench"] == "attention") & (rows["head_size"] == 128) & (rows["dtype"] == "fp16")
    ]
    attention = attention.assign(
        shape=attention["batch"].astype(str) + "×" + attention["context"].astype(str),
        heads=attention["q_heads"].map("{:.0f}".format) + "/" + attention["kv_heads"].map("{:.0f}".format),
        op=attention["op"].str.replace("-decode|-prefill", "", regex=True)
        + attention["cores"].map({"tensor": "-tensor"}).fillna(""),
    )
    decode = attention[
        attention["query"].isna() & (attention["kv_heads"] == 8) & (attention["op"] != "gather")
    ]
    at_16 = decode[decode["block_size"].isna() | (decode["block_size"] == 16)]
    full = decode[(decode["op"] == "paged") & (decode["shape"] == "64×4096")].sort_values("block_size")
    prompts = attention[attention["query"] == attention["context"]]
    swaps = rows[(rows["op"] == "swap") & (rows["pieces"] == 80) & (rows["host_blocks"] == "neighbours")]
    swaps = swaps.assign(
        block=swaps["piece_bytes"] // 10240, way=swaps["strategy"] + "-" + swaps["direction"]
    )
    return "\n\n".join(
        (
            table(at_16, ["shape"], "op"),
            table(prompts, ["heads", "shape"], "op"),
            table(full, ["op"], "block_size"),
            table(swaps, ["block"], "way", "ms"),
        )
    )


if __name__ == "__main__":
    print(tables(sys.argv[1]))
