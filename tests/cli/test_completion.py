"""The shell completes what pagesim knows by name."""

from __future__ import annotations

import pytest


@pytest.fixture
def offered(cli, monkeypatch):
    """Return a function that gives what is offered after these words, of which the last is begun."""

    def ask(*words: str) -> list[str]:
        monkeypatch.setenv("_PAGESIM_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", " ".join(("pagesim", *words)))
        monkeypatch.setenv("COMP_CWORD", str(len(words)))
        return cli().out.split()

    return ask


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (("swe",), ["sweep"]),
        (("run", "--policy", "orca-"), ["orca-max", "orca-pow2", "orca-oracle"]),
        (("run", "--policies", "static,vllm-s"), ["static,vllm-sosp"]),
        (("run", "--model", "opt-1"), ["opt-125m", "opt-1.3b", "opt-13b", "opt-175b"]),
        (("run", "--gpu", "h"), ["h100", "h200", "h20", "h100-pcie", "h100-nvl", "h20-3e"]),
        (("run", "--trace", "s"), ["sharegpt"]),
        (("trace", "describe", "a"), ["alpaca", "azure-conv"]),
        (("profile", "show", "analytic-h20"), ["analytic-h200", "analytic-h20", "analytic-h20-3e"]),
        (("run", "--allocator", "b"), ["best-fit", "buddy"]),
        (("run", "--scheduler", "vllm-v"), ["vllm-v0", "vllm-v1"]),
        (("run", "--router", "l"), ["least-loaded"]),
        (("reproduce", "fig18"), ["fig18a", "fig18b"]),
    ],
)
def test_a_name_that_was_begun_is_completed(words, names, offered):
    assert offered(*words) == names


def test_what_costs_are_named_after_is_completed(offered):
    # bash breaks words at colons, so it is asked for those without one.
    assert {"roofline", "profile:analytic-h100"} <= set(offered("run", "--cost", ""))
