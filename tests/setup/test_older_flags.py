"""Flags of earlier releases, which a server of today does not know."""

from __future__ import annotations

from typing import get_args

import pytest
from serve_lines import MODEL, listed_flags, refusal

from pagesim.setup.serve import read_serve
from pagesim.setup.serve_flags import Engine, flags_of

RELEASES = dict(zip(get_args(Engine), ("vllm-0.33.0", "sglang-0.5.23"), strict=True))
VLLM, SGLANG = f"vllm serve {MODEL}", f"python -m sglang.launch_server --model-path {MODEL}"


@pytest.mark.parametrize("engine", RELEASES)
def test_no_flag_of_the_release_is_called_older(engine: Engine) -> None:
    older = {name for name, flag in flags_of(engine).items() if flag.is_older}
    assert older
    assert not older & set(listed_flags(RELEASES[engine]))


@pytest.mark.parametrize("engine", RELEASES)
def test_what_takes_the_place_of_a_flag_is_a_flag_of_the_release(engine: Engine) -> None:
    for flag in flags_of(engine).values():
        if flag.is_older and flag.instead:
            name = flag.instead.split()[0].removeprefix("--")
            assert name.partition(".")[0] in {f"no-{each}" for each in listed_flags(RELEASES[engine])} | set(
                listed_flags(RELEASES[engine])
            )


@pytest.mark.parametrize(
    ("line", "older", "today"),
    [
        # vLLM 0.10: V1 never swaps; parsers imply reasoning; requests are not logged by default since 0.12.
        (VLLM, "--swap-space 16 --disable-log-requests --enable-reasoning", ""),
        (VLLM, "--swap_space=16 --task generate --device cuda", ""),
        (VLLM, "--max-seq-len-to-capture 8192 --num-scheduler-steps 8 --use-v2-block-manager", ""),
        (VLLM, "--cuda-graph-sizes 8 16", "--cudagraph-capture-sizes 8 16"),
        (VLLM, "--disable-async-output-proc", "--no-async-scheduling"),
        (
            VLLM,
            """--rope-scaling '{"rope_type": "linear", "factor": 2.0}'""",
            """--hf-overrides.rope_scaling '{"rope_type": "linear", "factor": 2.0}'""",
        ),
        # SGLang 0.5.0 to 0.5.9, whose help names these flags.
        (SGLANG, "--cuda-graph-max-bs 64", "--cuda-graph-max-bs-decode 64"),
        (SGLANG, "--cuda-graph-bs 1 2 4", "--cuda-graph-bs-decode 1 2 4"),
        (SGLANG, "--disable-piecewise-cuda-graph", "--disable-prefill-cuda-graph"),
        (SGLANG, "--piecewise-cuda-graph-max-tokens 1024", "--cuda-graph-max-bs-prefill 1024"),
        (SGLANG, "--enable-flashmla --enable-nan-detection", "--attention-backend flashmla"),
        (SGLANG, "--mamba-scheduler-strategy no_buffer", "--mamba-radix-cache-strategy no_buffer"),
        (
            SGLANG,
            "--speculative-algo EAGLE --speculative-draft a/b",
            "--speculative-algo EAGLE --speculative-draft-model-path a/b",
        ),
    ],
)
def test_an_older_flag_says_what_took_its_place_or_nothing(line: str, older: str, today: str) -> None:
    read, written = read_serve(f"{line} {older}"), read_serve(f"{line} {today}")
    assert read.options == written.options
    (note,) = set(read.notes) - set(written.notes)
    assert " does not start with flags of older releases; the line is read without --" in note


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            f"{VLLM} --speculative-model a/b",
            "--speculative-model is a flag of older releases, which vllm serve ",
        ),
        (
            f"{VLLM} --task embed",
            "--task is a flag of older releases, which vllm serve 0.33.0 refuses: its place",
        ),
        (
            f"{VLLM} --num-redundant-experts 32",
            "--eplb-config.num_redundant_experts is 32 without --enable-eplb",
        ),
        (
            f"{SGLANG} --hybrid-kvcache-ratio 0.5",
            "--hybrid-kvcache-ratio is a flag of older releases, which SGLang",
        ),
        (
            f"{SGLANG} --max-micro-batch-size 2",
            "--pp-max-micro-batch-size 2 affects scheduling and is not modelled",
        ),
    ],
)
def test_an_older_flag_that_decides_something_is_refused(line: str, said: str) -> None:
    assert refusal(line).startswith(f"--serve: {said[:50]}")
