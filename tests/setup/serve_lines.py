"""What the tests of servers' lines share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import pagesim as ps
from pagesim.setup.serve import read_serve
from pagesim.setup.serve_flags import Engine, flags_of

MODEL = "meta-llama/Llama-3.1-8B-Instruct"

_SIGNS = {"*": "several", "?": "perhaps", "!": "none"}


def refusal(line: str) -> str:
    """Return the sentence in which a line is refused."""
    with pytest.raises(ps.PagesimError) as caught:
        read_serve(line)
    return str(caught.value)


def vllm_options(line: str) -> dict[str, Any]:
    """Return what a line of vLLM decides besides what every line does."""
    options = dict(read_serve(line).options)
    assert options.pop("policy") == "vllm-v1"
    assert options.pop("vllm_version") == "0.33.0"
    return options


def listed_flags(release: str) -> dict[str, str]:
    """Return the flags of a release, and the values that each takes, as its own parser prints them."""
    listed = Path(__file__).with_name(f"{release}-flags.txt").read_text(encoding="utf-8").splitlines()[1:]
    return {line.rstrip("*?!"): _SIGNS.get(line[-1], "one") for line in listed}


def rows_of(engine: Engine) -> dict[str, str]:
    """Return the flags of a server's own release that the product's table has, and what each takes."""
    rows = [flag for flag in flags_of(engine).values() if not (flag.is_older or flag.is_part)]
    takes = {"switch": "none"}
    return {flag.flag: takes.get(flag.takes, flag.takes) for flag in rows if not flag.is_variable}
