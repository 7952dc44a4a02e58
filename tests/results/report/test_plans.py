"""The page about plans: the numbers of `pagesim plan`, and how many requests of each length fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pagesim.experiments.plan import plan
from pagesim.results.report.plans import write_plan_page
from pagesim.setup.system import System
from tests.results.report.reading import data_of, unpacked

MODELS = ("llama-3.1-8b", "gpt-oss-20b")


@pytest.fixture(scope="module")
def plans() -> dict[str, Any]:
    common = {"policy": "vllm-v1", "gpu": "h100", "max_model_len": 8192}
    return {model: plan(System(model=model, **common)) for model in MODELS}


@pytest.fixture(scope="module")
def page(plans: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("plans") / "plan.html"
    write_plan_page(plans, file)
    return file


def test_parts_sum_to_the_gpu_and_the_log_is_the_servers(plans: Any, page: Path) -> None:
    data = data_of(page)
    for shown, of in zip(data["systems"], plans.values(), strict=True):
        assert sum(part["bytes"] for part in shown["parts"]) == pytest.approx(of.memory, rel=1e-4)
        assert shown["log"] == list(of.log)
        assert shown["at_once"] == of.at_once
        assert sum(group["groups"] for group in shown["groups"]) == len(of.blocks.groups)


def test_as_many_requests_fit_as_the_blocks_of_one_go_into_all(plans: Any, page: Path) -> None:
    dense, windows = data_of(page)["systems"]
    tokens = unpacked(dense["lengths"]["tokens"]).tolist()
    assert tokens == [512, 1024, 2048, 4096, 8192]
    blocks = plans["llama-3.1-8b"].blocks.num_blocks - 1
    # The last token is not in the cache when it is known.
    assert unpacked(dense["lengths"]["fit"]).tolist() == [
        blocks // -(-(length - 1) // 16) for length in tokens
    ]
    fit = unpacked(windows["lengths"]["fit"])
    assert fit[-1] > 5 * unpacked(dense["lengths"]["fit"])[-1], "half of the layers keep 128 tokens"


def test_a_browser_draws_it(browser: Any, page: Path) -> None:
    browser.open(page)
    assert browser.run("document.querySelectorAll('#bars .barlayer .bars').length") == 6
    browser.goes_dark()
