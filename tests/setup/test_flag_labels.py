"""The classes of servers' flags beside what the servers' own code does with each.

``<release>-labels.csv`` has a row a flag: its label, the flag without which it is not read, and where it is
read: the file and line in the release's wheel, under ``vllm/`` or ``sglang/srt/``. The labels were given from
that code and from the parser's own help, and say:

| label | changes |
|---|---|
| decides | which requests run in a step, how many tokens of each, or which blocks are kept |
| memory | what a GPU keeps of weights or cache, or what is left for it |
| feature | as the two above, and is read only with the flag that is named beside it |
| unknown | what a file, a class or a plug-in says, which the line does not show |
| mode | what kind of server runs, or that none does |
| layers | as decides or memory, where layers keep a window, a state or a part |
| replicas | as decides or memory, but only beside data parallelism |
| experts | which kernels run experts: seconds, and how far MXFP4 weights are padded |
| graphs | what CUDA graphs launch, and the memory that they take |
| images | what images, videos and sounds take, and the towers that encode them |
| device | something on other devices than GPUs |
| text | the tokens of prompts and answers, which a trace has already |
| seconds | how long a step, a transfer or a start takes |
| none | none of these: the front end, logs, metrics, loading |
"""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from serve_lines import listed_flags, refusal

import pagesim as ps
from pagesim.experiments.plan import plan
from pagesim.setup.serve import ServeLine, read_serve
from pagesim.setup.system import System, checked

FIRM = ("decides", "memory", "feature", "unknown", "mode")
LOOSE = ("replicas", "experts", "graphs", "images", "device", "text", "seconds", "none")
LAYOUTS = Path(__file__).parents[1] / "golden" / "layouts"
LINES = {
    "vllm-0.33.0": ("vllm serve llama-3.1-8b", f"vllm serve {LAYOUTS / 'qwen3-next-80b.toml'}"),
    "sglang-0.5.23": ("sglang serve llama-3.1-8b", f"sglang serve {LAYOUTS / 'gpt-oss-20b.toml'}"),
}
"""Lines that flags are added to: of a plain model, and of one whose layers keep windows or states."""

VALUES = {
    "vllm-0.33.0": {
        "speculative-config": """'{"method": "ngram", "num_speculative_tokens": 4}'""",
        "max-model-len": "4096",
        "kv-cache-dtype": "fp8",
        "gpu-memory-utilization": "0.5",
        "scheduling-policy": "priority",
        "quantization": "fp8",
        "watermark": "0.01",
        "limit-mm-per-prompt": """'{"image": 0, "video": 0}'""",
        "mm-processor-kwargs": """'{"max_pixels": 1000000}'""",
        "mamba-ssm-cache-dtype": "float32",
    },
    "sglang-0.5.23": {
        "model-path": "opt-13b",
        "context-length": "4096",
        "kv-cache-dtype": "fp8_e4m3",
        "mem-fraction-static": "0.5",
        "schedule-policy": "lpm",
        "radix-eviction-policy": "lfu",
        "quantization": "fp8",
        "attention-backend": "flashmla",
        "schedule-conservativeness": "0.5",
        "prefill-delayer-token-usage-low-watermark": "0.5",
        "retraction-policy": "priority",
    },
}
"""Values of flags that do not take 32."""


@cache
def labels(release: str) -> dict[str, dict[str, str]]:
    with Path(__file__).with_name(f"{release}-labels.csv").open(encoding="utf-8") as file:
        return {row["flag"]: row for row in csv.DictReader(file)}


def read_or_refused(line: str) -> ServeLine | str:
    try:
        return read_serve(line)
    except ps.PagesimError as refused:
        return str(refused)


@pytest.mark.parametrize("release", LINES)
def test_every_flag_has_a_label_and_a_place_where_it_is_read(release: str) -> None:
    rows = labels(release)
    assert set(rows) == set(listed_flags(release))
    for row in rows.values():
        assert row["label"] in (*FIRM, "layers", *LOOSE)
        assert row["read"]
        assert (row["label"] == "feature") == bool(row["with"])
        # What a feature is turned on by is itself refused, so that its parts never count alone.
        assert not row["with"] or rows[row["with"]]["label"] in (*FIRM, "replicas")


EVERY = [(release, flag) for release in LINES for flag in labels(release) if flag != "model"]


@pytest.mark.parametrize(("release", "flag"), EVERY)
def test_a_flag_decides_or_is_noted_or_refused_as_its_label_asks(release: str, flag: str) -> None:
    line, layered = LINES[release]
    label, arity = labels(release)[flag]["label"], listed_flags(release)[flag]
    value = {"none": "", "perhaps": "", "several": " 32 33"}.get(arity, f" {VALUES[release].get(flag, '32')}")
    outcome = read_or_refused(f"{line} --{flag}{value}")
    if isinstance(outcome, str):
        assert label not in LOOSE
        assert outcome.startswith(f"--serve: --{flag}")
        assert "affects scheduling and is not modelled; " in outcome
    elif outcome.options == read_serve(line).options:
        assert label not in FIRM
        assert outcome.notes[0].endswith(f" line without an effect here: --{flag}")
        if label == "layers":
            said = refusal(f"{layered} --{flag}{value}")
            assert said.startswith(f"--serve: --{flag} would change what the layers of ")


@pytest.mark.parametrize(
    ("flag", "passed"),
    [
        ("vllm serve opt-13b --prefill-context-parallel-size", ["1"]),
        ("vllm serve opt-13b --logprobs-mode", ["raw_logprobs", "raw_logits"]),
        ("vllm serve opt-13b --runner", ["auto", "generate"]),
        ("sglang serve opt-13b --dp-size", ["1"]),
        ("sglang serve opt-13b --offload-group-size", ["-1"]),
        ("sglang serve opt-13b --dtype", ["auto", "half", "float16", "bfloat16"]),
        ("sglang serve opt-13b --model-impl", ["auto", "sglang"]),
    ],
)
def test_some_values_of_what_is_refused_change_nothing(flag: str, passed: list[str]) -> None:
    line, name = flag.rsplit(" ", 1)
    for value in passed:
        assert read_serve(f"{flag} {value}").notes[0].endswith(f": {name}")
        assert read_serve(f"{flag} {value}").options == read_serve(line).options
    assert refusal(f"{flag} 77") == (
        f"--serve: {name} 77 affects scheduling and is not modelled; it may be {' or '.join(passed)}"
    )


@pytest.mark.parametrize(
    ("line", "flag"),
    [
        ("vllm serve {} --moe-backend triton", "--moe-backend triton"),
        ("vllm serve {} --kernel-config.moe_backend=triton", "--kernel-config triton"),
        ("sglang serve {} --moe-runner-backend triton_kernel", "--moe-runner-backend triton_kernel"),
    ],
)
def test_kernels_of_experts_are_refused_where_they_pad_weights(line: str, flag: str) -> None:
    assert refusal(line.format("gpt-oss-20b")) == (
        f"--serve: {flag} would change how far the MXFP4 experts of 'gpt-oss-20b' are padded, and is not "
        "modelled; leave it out"
    )
    assert flag.split()[0] in str(read_serve(line.format("deepseek-v3")).notes)
    assert read_serve("vllm serve gpt-oss-20b --moe-backend auto").notes


def largest_graph(flags: str) -> Any:
    return read_serve(f"vllm serve llama-3.1-8b {flags}").options.get("max_cudagraph_capture_size")


def test_every_flag_that_says_the_largest_graph_says_it() -> None:
    assert largest_graph("") is None
    assert largest_graph("--max-cudagraph-capture-size 96") == 96
    assert largest_graph("--cudagraph-capture-sizes 1 64 8") == 64
    assert largest_graph("--cudagraph-capture-sizes 1 64 --max-cudagraph-capture-size 64") == 64
    assert largest_graph("--max-cudagraph-capture-size 8 --max-cudagraph-capture-size 64") == 64
    both = "--cudagraph-capture-sizes 1 64 --max-cudagraph-capture-size 8 --max-cudagraph-capture-size 64"
    assert largest_graph(both) == 64
    assert largest_graph("--enforce-eager") == 0
    assert largest_graph("--enforce-eager --cudagraph-capture-sizes 1 64") == 0
    assert largest_graph("--no-enforce-eager") is None
    assert refusal("vllm serve opt-13b --cudagraph-capture-sizes 1 64 --max-cudagraph-capture-size 32") == (
        "--serve: --max-cudagraph-capture-size is 32, and the largest of --cudagraph-capture-sizes is 64; "
        "vLLM does not start so: leave one of them out"
    )
    assert "--cudagraph-capture-sizes is 'x'; it must be a whole number" in refusal(
        "vllm serve opt-13b --cudagraph-capture-sizes x"
    )


def test_a_server_without_graphs_leaves_no_memory_for_them() -> None:
    def graphs(line: str) -> int:
        system = checked(System, read_serve(line).merged_with({"gpu": "h100", "max_model_len": 8192}))
        return {part.name: part.bytes for part in plan(system).parts}.get("CUDA graphs", 0)

    assert graphs("vllm serve llama-3.1-8b") > 0
    assert graphs("vllm serve llama-3.1-8b --enforce-eager") == 0
