"""Fig. 16: a prefix that all prompts share."""

from __future__ import annotations

from pagesim.experiments.paper.figures.panels import (
    Line,
    Panel,
    Ratio,
    around,
    panel_figure,
)
from pagesim.experiments.paper.setting import LLAMA_13B

SENTENCES = "lognormal:30,0.6,45,0.6"
"""Tokens of an English sentence and of its German translation: assumed, the paper does not print them."""

PAPER = {"80": 1.67, "341": 3.58}
SHOTS = {"80": "one example, 80 tokens", "341": "five examples, 341 tokens"}

SECONDS = 300.0
"""Of arrivals, which are many a second."""

VLLM = "vLLM, prefix shared"
AS_PUBLISHED = {
    "sizing": "paper",
    "async_scheduling": False,
    "enable_prefix_caching": True,
    "enable_chunked_prefill": False,
    "max_num_batched_tokens": 2560,
    "max_num_seqs": 2048,
}
"""The paper's vLLM keeps the prefix's blocks; of our schedulers only vllm-v1 finds it, set to the paper's
limits."""

PANELS = tuple(
    Panel(
        title,
        LLAMA_13B,
        SENTENCES,
        (
            Line(around(40.0), "vllm-v1", options={"shared_prefix": prefix, **AS_PUBLISHED}, label=VLLM),
            Line(around(10.0), "orca-oracle", options={"shared_prefix": prefix}),
        ),
        SECONDS,
    )
    for prefix, title in SHOTS.items()
)

RATIOS = tuple(Ratio(SHOTS[prefix], VLLM, "Orca (Oracle)", value, "V") for prefix, value in PAPER.items())


FIGURE = panel_figure(
    "fig16",
    "A prefix that all prompts share",
    "LLaMA-13B, translation; lengths of the sentences are assumed (lognormal, means 30 and 45 tokens); "
    "arrivals for 5 min, knees as in Fig. 12; our vLLM is vllm-v1 with prefix caching and the paper's limits",
    "step times and assumed lengths",
    PANELS,
    RATIOS,
    columns=2,
)
