"""The nearest line that runs, which stands below the sentence about a flag that is refused."""

from __future__ import annotations

import subprocess
import sys

import pytest

import pagesim as ps
from pagesim.setup.serve import read_serve


def nearest(line: str) -> str:
    """Return the line that is offered in place of one that is refused."""
    with pytest.raises(ps.PagesimError) as caught:
        read_serve(line)
    return caught.value.remedy


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("vllm serve opt-13b --enable-prompt-embeds -tp 2", "vllm serve opt-13b -tp 2"),
        # Wherever the flag stands, however it is spelled, and all those that are refused.
        ("vllm serve --runner=pooling opt-13b --runner pooling", "vllm serve opt-13b"),
        ("vllm serve opt-13b --headless --offload-params a b --port 1", "vllm serve opt-13b --port 1"),
        ("vllm serve opt-13b --attention-config.backend FLEX", "vllm serve opt-13b"),
        # Of an object only the part that is refused.
        (
            """vllm serve opt-13b -ac '{"flash_attn_version": 2, "use_trtllm_attention": false}'""",
            """vllm serve opt-13b --attention-config '{"use_trtllm_attention": false}'""",
        ),
        (
            "vllm serve opt-13b -ac.flash_attn_version 2 -ac.use_trtllm_attention 0",
            "vllm serve opt-13b -ac.use_trtllm_attention 0",
        ),
        ("VLLM_USE_V2_MODEL_RUNNER=0 A='b c' vllm serve opt-13b", "A='b c' vllm serve opt-13b"),
        # A longer request than the model takes; kernels that it cannot have.
        ("vllm serve opt-13b --max-model-len 9999 --seed 0", "vllm serve opt-13b --seed 0"),
        ("vllm serve gpt-oss-20b --moe-backend triton", "vllm serve gpt-oss-20b"),
        ("vllm serve opt-13b --kv-cache-dtype fp4 -q awq", "vllm serve opt-13b"),
        # Flags of older releases, and the flags that took their place.
        (
            "vllm serve opt-13b --swap-space 4 --cuda-graph-sizes 8 16 --headless",
            "vllm serve opt-13b --cudagraph-capture-sizes 8 16",
        ),
        ("vllm serve opt-13b --num-redundant-experts 32", "vllm serve opt-13b"),
        ("vllm serve opt-13b --speculative-model opt-125m", "vllm serve opt-13b"),
        # What a shell would take apart is quoted.
        (
            """vllm serve opt-13b --headless --compilation-config '{"mode": 3}'""",
            """vllm serve opt-13b --compilation-config '{"mode": 3}'""",
        ),
        (
            "python3 -m vllm.entrypoints.openai.api_server --model opt-13b --headless",
            "python3 -m vllm.entrypoints.openai.api_server --model opt-13b",
        ),
        ("sglang serve opt-13b --enable-lora --tp 2", "sglang serve opt-13b --tp 2"),
        (
            "python -m sglang.launch_server --model opt-13b --attn-cp-size 4",
            "python -m sglang.launch_server --model opt-13b",
        ),
    ],
)
def test_the_line_is_offered_without_what_is_refused(line: str, offered: str) -> None:
    assert nearest(line) == offered
    assert read_serve(offered)


@pytest.mark.parametrize("line", ["vllm serve opt-13b --wings 2", "vllm serve --headless", "vllm serve a b"])
def test_nothing_is_offered_where_a_flag_is_unknown_or_no_model_is_named(line: str) -> None:
    assert nearest(line) == ""


def test_the_command_prints_it_below_the_sentence() -> None:
    line = "vllm serve opt-13b --headless --port 1"
    command = [sys.executable, "-m", "pagesim", "plan", "--gpu", "h100", "--serve", line]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    said, _, offered = ended.stderr.splitlines()
    assert said.startswith(
        "pagesim: --serve: --headless affects scheduling and is not modelled; leave it out."
    )
    assert offered == "vllm serve opt-13b --port 1"
