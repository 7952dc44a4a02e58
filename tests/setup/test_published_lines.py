"""Command lines as people publish them: how many are taken whole, with a known model in each one's place."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest

import pagesim as ps
from pagesim.cli.flags import scenario_from
from pagesim.setup.build import new_scheduler
from pagesim.setup.engine_config import EngineConfig
from pagesim.setup.scenario import Scenario
from pagesim.setup.serve import read_serve

KNOWN = "meta-llama/Llama-3.1-8B-Instruct"
MODEL = re.compile(r"(?:vllm serve|--model-path|--model)[ =](\S+)")

FLOORS = {
    ("vllm recipes", "vllm"): 62,
    ("InferenceX", "vllm"): 7,
    ("club-3090", "vllm"): 15,
    ("sglang cookbook", "sglang"): 59,
    ("InferenceX", "sglang"): 2,
}
"""Lines of each source and engine that are taken at least; raise them as flags are."""


def refusal(line: str) -> ps.PagesimError | None:
    """Return why no engine starts with a line; None where one does."""
    given = {"gpu": "h200", "trace": "fixed:64,8", "num_requests": 2, "rate": 1.0}
    try:
        new_scheduler(EngineConfig(scenario_from(Scenario, None, given, read_serve(line))))
    except ps.PagesimError as refused:
        return refused
    return None


def with_known_model(line: str) -> str:
    named = MODEL.search(line)
    return line.replace(named[1], KNOWN, 1) if named else line


@pytest.fixture(scope="module")
def published(request: pytest.FixtureRequest) -> list[tuple[tuple[str, str], str]]:
    shared: Path = request.getfixturevalue("shared")
    text = (shared / "data" / "serve_lines.jsonl").read_text(encoding="utf-8")
    rows = [json.loads(line) for line in text.splitlines()]
    return [((row["source"], row["engine"]), with_known_model(row["line"])) for row in rows]


def test_no_fewer_published_lines_are_taken_than_were(published) -> None:
    taken = Counter(source for source, line in published if refusal(line) is None)
    assert set(FLOORS) == {source for source, _ in published}
    assert {source: taken[source] for source in FLOORS if taken[source] < FLOORS[source]} == {}


def test_below_each_flag_that_is_refused_stands_a_line_that_is_read(published) -> None:
    reasons = [why for _, line in published if (why := refusal(line)) is not None]
    offered = [why.remedy for why in reasons if why.remedy]
    assert len(offered) >= sum(str(why).startswith("--serve: --") for why in reasons) > 0
    for line in offered:
        assert read_serve(line)
