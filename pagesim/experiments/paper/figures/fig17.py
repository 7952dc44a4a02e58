"""Fig. 17: a chatbot whose prompts hold the conversation so far."""

from __future__ import annotations

from pagesim.experiments.paper.figures.fig16 import AS_PUBLISHED
from pagesim.experiments.paper.figures.panels import (
    Line,
    Panel,
    Ratio,
    around,
    panel_figure,
)
from pagesim.experiments.paper.setting import OPT_13B

CHAT, WHOLE = "chatbot, last 1024 tokens", "chatbot, conversations of at most 1024 tokens"

SECONDS = 1800.0

FORGET, KEEP = "vllm-v1, nothing kept", "vllm-v1, KV kept between turns"

PANELS = (
    Panel(
        CHAT,
        OPT_13B,
        "sharegpt",
        tuple(
            Line(around(rate), policy, change="conversations")
            for policy, rate in (
                ("vllm-sosp", 0.8),
                ("orca-oracle", 0.4),
                ("orca-pow2", 0.4),
                ("orca-max", 0.4),
            )
        ),
        SECONDS,
    ),
    # A question of ours and not of the paper's.
    Panel(
        WHOLE,
        OPT_13B,
        "sharegpt",
        tuple(
            Line(
                around(1.2),
                "vllm-v1",
                None,
                {**AS_PUBLISHED, "enable_prefix_caching": keep},
                "conversations",
                label,
            )
            for keep, label in ((False, FORGET), (True, KEEP))
        ),
        SECONDS,
    ),
)

RATIOS = (
    *(Ratio(CHAT, "vLLM", orca, 2.0, "V") for orca in ("Orca (Oracle)", "Orca (Pow2)", "Orca (Max)")),
    Ratio(WHOLE, KEEP, FORGET, None, ""),
)


FIGURE = panel_figure(
    "fig17",
    "A chatbot",
    "OPT-13B; conversations of six turns, assumed, made of ShareGPT's lengths; prompts cut to their last "
    "1024 tokens, outputs of at most 1024; arrivals for half an hour, knees as in Fig. 12. Beside it: "
    "conversations that begin anew instead of being cut, with and without KV kept between turns",
    "step times and assumed conversations",
    PANELS,
    RATIOS,
    columns=2,
)
