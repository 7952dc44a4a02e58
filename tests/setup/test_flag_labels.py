"""The classes of servers' flags beside what the servers' own code does with each.

``<release>-labels.csv`` has a row a flag: its label, the flag without which it is not read, and the values
with which it changes nothing. The labels were given from the release's code, at the file and line that the
product's own row names, and from the parser's help. They say:

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
from pagesim.setup import serve_flags
from pagesim.setup.serve import ServeLine, read_serve
from pagesim.setup.serve_flags import Engine, flags_of
from pagesim.setup.system import System, checked
from tests.pages import module_of

FIRM = ("decides", "memory", "feature", "unknown", "mode")
LOOSE = ("replicas", "experts", "graphs", "images", "device", "text", "seconds", "none")
ENGINES: dict[str, Engine] = {"vllm-0.33.0": "vllm", "sglang-0.5.23": "sglang"}
LAYOUTS = Path(__file__).parents[1] / "golden" / "layouts"
LINES = {
    "vllm-0.33.0": ("vllm serve llama-3.1-8b", f"vllm serve {LAYOUTS / 'qwen3-next-80b.toml'}"),
    "sglang-0.5.23": ("sglang serve llama-3.1-8b", f"sglang serve {LAYOUTS / 'gpt-oss-20b.toml'}"),
}
"""Lines that flags are added to: of a plain model, and of one whose layers keep windows or states."""

VALUES = {
    "vllm-0.33.0": {
        "max-model-len": "4096",
        "kv-cache-dtype": "fp8",
        "gpu-memory-utilization": "0.5",
        "scheduling-policy": "priority",
        "quantization": "fp8",
        "watermark": "0.01",
        "limit-mm-per-prompt": """'{"image": 0, "video": 0}'""",
        "mm-processor-kwargs": """'{"max_pixels": 1000000}'""",
        "mamba-ssm-cache-dtype": "float32",
        "attention-backend": "B12X",
        "optimization-level": "0",
        "speculative-config": """'{"method": "ngram", "num_speculative_tokens": 4}'""",
        "performance-mode": "throughput",
        "nnodes": "1",
        "kv-transfer-config": """'{"kv_connector": "NixlConnector", "kv_role": "kv_both"}'""",
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
        "mamba-radix-cache-strategy": "no_buffer",
        "mamba-ssm-dtype": "bfloat16",
        "speculative-algorithm": "EAGLE",
        "moe-a2a-backend": "deepep",
        "hicache-write-policy": "write_back",
        "nnodes": "1",
    },
}
"""Values of flags that do not take 32."""


VARIABLES = Path(__file__).with_name("vllm-0.33.0-variables.csv")
"""The variables of vLLM's envs.py with labels as above, and the values with which each changes nothing."""


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
        assert flags_of(ENGINES[release])[row["flag"]].source
        assert (row["label"] == "feature") == bool(row["with"])
        # What a feature is turned on by is itself refused, so that its parts never count alone.
        assert not row["with"] or rows[row["with"]]["label"] in (*FIRM, "replicas")


@pytest.mark.parametrize("release", LINES)
def test_no_value_of_a_refused_flag_passes_that_changes_something(release: str) -> None:
    flags = [flag for name, flag in flags_of(ENGINES[release]).items() if name in listed_flags(release)]
    passing = {flag.flag: " ".join(flag.values) for flag in flags if flag.values}
    assert passing == {name: row["but"] for name, row in labels(release).items() if row["but"]}


EVERY = [(release, flag) for release in LINES for flag in labels(release) if flag != "model"]


@pytest.mark.parametrize(("release", "flag"), EVERY)
def test_a_flag_decides_or_is_noted_or_refused_as_its_label_asks(release: str, flag: str) -> None:
    line, layered = LINES[release]
    label, arity = labels(release)[flag]["label"], listed_flags(release)[flag]
    value = {"none": "", "perhaps": "", "several": " 32 33"}.get(arity, f" {VALUES[release].get(flag, '32')}")
    beside = labels(release)[flag]["with"]
    is_switch = listed_flags(release).get(beside) == "none"
    if is_switch and flags_of(ENGINES[release])[beside].kind == "taken":
        line = f"{line} --{beside}"  # without which nothing reads it
    outcome = read_or_refused(f"{line} --{flag}{value}")
    if isinstance(outcome, str):
        assert label in FIRM
        assert outcome.startswith(f"--serve: --{flag}")
        why = ("affects scheduling and is not modelled; ", "does not start so")
        assert any(each in outcome for each in why)
    elif outcome.options == read_serve(line).options:
        assert label not in FIRM
        assert outcome.notes[0].endswith(f" line without an effect here: --{flag}")
        if label not in ("layers", "experts"):
            assert isinstance(read_or_refused(f"{layered} --{flag}{value}"), ServeLine)
        elif label == "layers":
            said = refusal(f"{layered} --{flag}{value}")
            assert said.startswith(f"--serve: --{flag} would change what the layers of ")


@pytest.mark.parametrize(
    ("flag", "passed"),
    [
        ("vllm serve opt-13b --prefill-context-parallel-size", ["1"]),
        ("vllm serve opt-13b --logprobs-mode", ["raw_logprobs", "raw_logits"]),
        ("vllm serve opt-13b --runner", ["auto", "generate"]),
        ("sglang serve opt-13b --attn-cp-size", ["1"]),
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
    said = f"--serve: {name} 77 affects scheduling and is not modelled; it may be {' or '.join(passed)}. The "
    assert refusal(f"{flag} 77").startswith(said)


@pytest.mark.parametrize(
    ("line", "flag"),
    [
        ("vllm serve {} --moe-backend triton", "--moe-backend triton"),
        ("vllm serve {} --kernel-config.moe_backend=triton", "--kernel-config.moe_backend triton"),
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


def test_every_variable_of_the_release_is_noted_or_refused_as_its_label_asks() -> None:
    with VARIABLES.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert {row["variable"] for row in rows} == {
        name for name, flag in flags_of("vllm").items() if flag.is_variable
    }
    plain = read_serve("vllm serve opt-13b").options
    for row in rows:
        line = f"{row['variable']}={{}} vllm serve opt-13b"
        assert " ".join(flags_of("vllm")[row["variable"]].values) == row["but"]
        outcome = read_or_refused(line.format("77"))
        if row["label"] in LOOSE:
            assert isinstance(outcome, ServeLine)
            assert outcome.options == plain
            assert outcome.notes[0].endswith(f" an effect here: {row['variable']}")
        elif isinstance(outcome, str):
            assert outcome.startswith(f"--serve: {row['variable']} may affect scheduling")
            for value in row["but"].split():
                assert read_serve(line.format(value)).options == plain
        else:
            assert outcome.options != plain


def test_a_variable_may_decide_an_option_or_be_none_of_the_releases() -> None:
    torch = read_serve("VLLM_USE_FLASHINFER_SAMPLER=0 vllm serve opt-13b")
    assert torch.options["flashinfer_sampler"] is False
    assert torch.notes == ()
    # vLLM warns of a variable that it does not know, and goes on.
    assert "VLLM_USE_V1" in read_serve("VLLM_USE_V1=1 vllm serve opt-13b").notes[0]


def test_the_page_of_flags_is_the_table_as_it_is() -> None:
    made = module_of("docs/make_flags.py")
    assert made.PAGE.read_text(encoding="utf-8") == made.page(), "run: python docs/make_flags.py"


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_no_flag_has_two_rows_and_no_spelling_two_flags(engine: Engine) -> None:
    file = Path(serve_flags.__file__).with_name("serve_flags.csv")
    with file.open(encoding="utf-8") as opened:
        names = [row["flag"] for row in csv.DictReader(opened) if row["engine"] == engine]
    assert len(names) == len(set(names)) == len(flags_of(engine))
    spelled = [each for flag in flags_of(engine).values() for each in flag.spellings()]
    assert len(spelled) == len(set(spelled))
