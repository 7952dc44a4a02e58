"""Draw hybrid models under vLLM and SGLang for docs/explanation/engines.md, and print its table.

Run it from the root of the repository, with the trace of that page: python docs/pictures/hybrids.py TRACE
"""

import sys
from pathlib import Path

import pandas as pd

import pagesim as ps
from pagesim.results.drawing import bare, below, empty, head, stacks
from pagesim.results.plots import save
from pagesim.results.style import LINES

MODELS = {"qwen3-next-80b": 4, "gpt-oss-120b": 2, "gemma3-27b": 2}
POLICIES = {"vllm-v1": {"enable_prefix_caching": True}, "sglang": {}}

trace = ps.make_trace(sys.argv[1], num_requests=1500)
rows, memory = {}, {}
for model, gpus in MODELS.items():
    for policy, options in POLICIES.items():
        done = ps.simulate(
            trace, policy, model=model, gpu="h100", tensor_parallel_size=gpus, max_concurrency=96, **options
        )
        bar = f"{model}, {policy}"
        cache = done.summary["memory"]
        memory[bar] = cache["strict"]["per_iteration"]
        rows[bar] = {
            "tokens that it holds": cache["num_blocks"] * cache["block_size"],
            "prompt tokens found, %": 100 * done.summary["prefix"]["share"],
            "mean batch": done.summary["batch"]["mean"],
            "tokens/s": done.summary["throughput"]["tokens_per_s"],
        }
table = pd.DataFrame(rows).T
print(table.round(1).to_string())
percent = 100 * (shares := pd.DataFrame(memory).fillna(0.0)) / shares.sum()
figure = empty(11, 4)
parts, found, speed = figure.subplots(1, 3, sharey=True, width_ratios=(2.2, 1, 1))
drawn = stacks(parts, {entry: percent.loc[entry] for entry in percent.index})
parts.set_yticks(range(len(rows)), list(rows))
parts.set(xlim=(0, 100), ylim=(len(rows) - 0.4, -0.6), xlabel="% of the KV cache")
for axes, column in ((found, "prompt tokens found, %"), (speed, "tokens/s")):
    axes.barh(range(len(rows)), table[column], 0.6, color=LINES["simulated"].colour)
    axes.set_xlabel(column)
bare(parts, found, speed, but=("bottom",))
below(figure, drawn)
head(figure, "Hybrid models under two engines: where the memory is, what is found", "96 clients, H100 GPUs")
save(figure, Path("out", "engines", "hybrids"))
