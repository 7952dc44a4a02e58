"""The documented validations on a GPU are under pressure: what is simulated beside live runs preempts."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from pagesim.api import run, trace_of
from pagesim.cli.validate import POLICIES
from pagesim.setup.comparison import each_policy
from pagesim.setup.scenario import Scenario

ROOT = Path(__file__).parents[3]
PAGES = ("docs/how-to/usage.md", "docs/how-to/validate.md", "docs/how-to/bench.md")


def documented() -> set[str]:
    """Return every live validation of OPT-13B that a page tells the reader to run on a GPU."""
    command = re.compile(r"pagesim validate --live --device cuda --model opt-13b [^#\n&`]*")
    texts = [(ROOT / page).read_text(encoding="utf-8") for page in PAGES]
    return {found.strip() for text in texts for found in command.findall(text)}


def scenario(command: str) -> Scenario:
    """Return what a command asks for, without what is said of profiles, devices and places of results."""
    words = iter(shlex.split(command)[3:])
    flags = {word.removeprefix("--").replace("-", "_"): next(words) for word in words}
    return Scenario(**{name: flags[name] for name in ("model", "num_blocks", "trace", "rate", "duration")})


def preemptions(asked: Scenario, policy: str, preemption: str, gpu: str) -> int:
    """Return how often a policy preempts when the validation is simulated."""
    options = {"cost": f"profile:analytic-{gpu}", "preemption": None if policy == "vllm-v1" else preemption}
    system = each_policy(asked.model_copy(update=options), [policy])[policy]
    return sum(run(system, trace_of(asked), steps="none").summary["preemptions"].values())


def test_every_page_names_the_same_load():
    loads = {(s.num_blocks, s.trace, s.rate, s.duration) for s in map(scenario, documented())}
    assert loads == {(500, "sharegpt", 8.0, 20.0)}


@pytest.mark.parametrize("gpu", ["h100", "h200"])
def test_the_documented_validation_preempts(gpu):
    (asked,) = {scenario(command) for command in documented()}
    for preemption in ("recompute", "swap"):
        assert 110 <= preemptions(asked, "vllm-sosp", preemption, gpu) <= 120
        for policy in POLICIES.split(","):
            assert 90 <= preemptions(asked, policy, preemption, gpu) <= 140


def test_two_requests_a_second_on_900_blocks_are_no_pressure():
    asked = next(map(scenario, documented()))
    calm = asked.model_copy(update={"num_blocks": 900, "rate": 2.0, "duration": 60.0})
    assert preemptions(calm, "vllm-sosp", "recompute", "h200") == 0
