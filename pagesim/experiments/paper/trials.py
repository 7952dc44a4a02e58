"""The experiments behind the reasons in `discrepancies`: each prints the numbers that a reason names.

python -m pagesim.experiments.paper.trials sharegpt_sosp23_opt.parquet alpaca_sample_gpt2bpe.parquet [NAME…]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import replace

from pagesim.costs import EngineTime
from pagesim.experiments.paper.engine import ENGINES, RATES, cost_text
from pagesim.experiments.paper.figures import fig12, fig14, fig15, fig16, fig17
from pagesim.experiments.paper.figures.panels import Panel, curve_jobs, knees, quotient
from pagesim.experiments.paper.jobs import Ablated, Replay
from pagesim.experiments.paper.setting import OPT_13B, Setting

Line = tuple[str, float | None]
"""What was tried, and the number that came of it."""


def _knees(setting: Setting, panel: Panel) -> dict[str, float | None]:
    found = {name: job.run() for name, job in curve_jobs(setting, (panel,)).items()}
    return {name: at for (_, name), at in knees(found, (panel,)).items()}


def _only(panel: Panel, *policies: str) -> Panel:
    return replace(panel, lines=tuple(line for line in panel.lines if line.policy in policies))


def neighbours(setting: Setting) -> Iterator[Line]:
    """Yield Fig. 13's Orca (Oracle) on Alpaca with engines next to the one that was fitted."""
    for iteration_ms, sequence_us in ((1.2, 170), (1.5, 165), (1.8, 160)):
        cost = cost_text(OPT_13B.imported, EngineTime(iteration_ms * 1e-3, sequence_us * 1e-6))
        scenario = setting.scenario(
            OPT_13B, "orca-oracle", "alpaca", rate=RATES["alpaca"], window="600:3600", cost=cost
        )
        yield f"{iteration_ms} ms and {sequence_us} µs", Replay(scenario).run()["batch"]["mean"]


def full(setting: Setting) -> Iterator[Line]:
    """Yield how many requests vLLM's memory holds together on Alpaca: its mean batch where many wait."""
    for rate in (RATES["alpaca"], 2 * RATES["alpaca"]):
        scenario = setting.scenario(OPT_13B, "vllm-sosp", "alpaca", rate=rate, window="600:3600")
        yield f"{rate:g} requests/s", Replay(scenario).run()["batch"]["mean"]


def static(setting: Setting) -> Iterator[Line]:
    """Yield FasterTransformer's knee for OPT-175B on ShareGPT over how long arrivals last."""
    for seconds in (900.0, 600.0, 120.0):
        panel = _only(replace(fig12.PANELS[2], seconds=seconds), "static")
        yield f"arrivals for {seconds:g} s", _knees(setting, panel)["FasterTransformer"]


def beams(setting: Setting) -> Iterator[Line]:
    """Yield what beams save on ShareGPT at other rates, and with a third of the chance to be dropped."""
    jobs = fig15.jobs(setting)
    for width in fig15.WIDTHS:
        job = jobs[f"sharegpt beam_width {width}"]
        for said, change in (
            ("0.25 requests/s", {"rate": 0.25}),
            ("0.5 requests/s", {}),
            ("1 request/s", {"rate": 1.0}),
            ("beam_drop 0.028", {"beam_drop": 0.028}),
        ):
            found = Replay(job.scenario.model_copy(update=change)).run()
            yield f"{width} beams, {said}", 100 * found["sharing"]["saving"]


def beam_time(setting: Setting) -> Iterator[Line]:
    """Yield Fig. 14's lead with six beams where a request takes time once and not once a beam."""
    engine = ENGINES["imported"]
    panel = _only(fig14.PANELS[-1], "vllm-sosp", "orca-oracle")
    for said, parts in (("each beam", 1), ("all six together", 6)):
        time = EngineTime(engine.iteration_s, engine.sequence_s / parts)
        found = _knees(replace(setting, cost=cost_text(OPT_13B.imported, time)), panel)
        yield f"165 µs for {said}", quotient(found["vLLM"], found["Orca (Oracle)"])


def sentences(setting: Setting) -> Iterator[Line]:
    """Yield Fig. 16's leads with longer and shorter sentences."""
    for lengths in ("lognormal:60,0.6,90,0.6", "lognormal:20,0.6,30,0.6"):
        for panel in fig16.PANELS:
            found = _knees(setting, replace(panel, workload=lengths))
            yield f"{lengths}, {panel.title}", quotient(found[fig16.VLLM], found["Orca (Oracle)"])


def turns(setting: Setting) -> Iterator[Line]:
    """Yield Fig. 17's lead over Orca (Oracle) with conversations of fewer and of more turns."""
    chat = _only(fig17.PANELS[0], "vllm-sosp", "orca-oracle")
    for change in ("conversations of 3 turns", "conversations", "conversations of 12 turns"):
        found = _knees(
            setting, replace(chat, lines=tuple(replace(line, change=change) for line in chat.lines))
        )
        yield change, quotient(found["vLLM"], found["Orca (Oracle)"])


def loaded(setting: Setting) -> Iterator[Line]:
    """Yield Fig. 19b at block 1 with copies as in the paper and slower engines."""
    for sequence_us in (345, 400, 450, 500):
        cost = cost_text(f"analytic-{OPT_13B.gpu}", EngineTime(0.0, sequence_us * 1e-6))
        scenario = setting.scenario(OPT_13B, "vllm-sosp", "sharegpt", seconds=600, rate=2.01, cost=cost)
        for way in ("swap", "recompute"):
            found = Ablated(scenario, 1, way, copies=way == "swap").run()
            yield f"{sequence_us} µs a sequence, {way}", found["normalized_latency"]["mean"]


TRIALS: dict[str, Callable[[Setting], Iterator[Line]]] = {
    trial.__name__: trial for trial in (neighbours, full, static, beams, beam_time, sentences, turns, loaded)
}


def main() -> None:
    """Print what comes of the trials that are named, or of all."""
    parser = argparse.ArgumentParser(description="Repeat the experiments behind the document's reasons.")
    parser.add_argument("sharegpt", help="the paper's own ShareGPT lengths")
    parser.add_argument("alpaca", help="Alpaca's lengths")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(TRIALS))
    given = parser.parse_args()
    for name in given.names or TRIALS:
        for said, value in TRIALS[name](Setting(given.sharegpt, given.alpaca)):
            print(f"{name}: {said}: {'–' if value is None else format(value, '.4g')}", flush=True)


if __name__ == "__main__":
    main()
