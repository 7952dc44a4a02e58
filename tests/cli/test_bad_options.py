"""A bad option ends in one sentence that names it, its value and its bound, and exit code 2."""

from __future__ import annotations

import pytest

SMALL = ("--trace", "fixed:100,20", "--num-requests", "5")

UNKNOWN = {
    "model": (("--model", "opt-31b"), "'opt-31b'", "opt-30b"),
    "a model whose name is no path": (("--model", "x" * 5000), "'" + "x" * 500, "list models"),
    "empty model": (("--model", ""), "model is ''", "at least 1 character"),
    "gpu": (("--gpu", "a100"), "'a100'", "a100-40gb"),
    "policy": (("--policy", "vlm-sosp"), "'vlm-sosp'", "vllm-sosp"),
    "cost": (("--cost", "rofline"), "'rofline'", "roofline"),
    "cost's part": (("--cost", "roofline:foo=1"), "'foo'", "flops, hbm"),
    "cost's numbers": (("--cost", "affine:1"), "'affine:1'", "3 or 4 numbers"),
    "cost's sign": (("--cost", "affine:-1,0,0"), "-1", "from 0 to 1000"),
    "arrivals": (("--arrivals", "posson"), "'posson'", "poisson"),
    "preemption": (("--preemption", "recmpute"), "'recmpute'", "'recompute'"),
    "scheduler": (("--scheduler", "fifo"), "'fifo'", "static, orca, vllm-sosp, vllm-v0, vllm-v1"),
    "reservation": (("--reservation", "half"), "'half'", "'oracle'"),
    "allocator": (("--allocator", "worst"), "'worst'", "best-fit"),
    "page size": (("--page-size", "1M"), "'1M'", "'64K', '128K', '256K' or '2M'"),
    "sizing": (("--sizing", "guess"), "'guess'", "'paper', 'vllm' or 'sglang'"),
    "kv-cache-dtype": (("--kv-cache-dtype", "fp32"), "'fp32'", "'fp8'"),
    "tensor-parallel-size": (("--tensor-parallel-size", "3"), "tp is 3", "one of 1, 2, 4, 5, 8"),
    "on-bad-row": (("--on-bad-row", "stop"), "'stop'", "'error' or 'skip'"),
    "shared-prefix": (("--shared-prefix", "341:2"), "'341:2'", "TOKENS or TOKENS:SHARE, such as 341"),
    "lengths": (("--trace", "fixed:0,5"), "is 0", "from 1 to 10000000"),
}


@pytest.mark.parametrize("case", UNKNOWN)
def test_an_unknown_value_is_named_with_what_is_known(case, refused):
    flags, named, known = UNKNOWN[case]
    sentence = refused("run", *SMALL, *flags)
    assert named in sentence
    assert known in sentence


CONTRADICTIONS = {
    "recorded arrivals of a distribution": (("--arrivals", "recorded"), "need a file that recorded them"),
    "max-batch where no batch is static": (("--max-batch", "3"), "max_batch is for scheduler static"),
    "preemption where memory is reserved": (
        ("--policy", "vllm-sosp", "--reservation", "max", "--preemption", "swap"),
        "preemption swap needs reservation on-demand",
    ),
    "preemption where the scheduler never preempts": (
        ("--policy", "orca-max", "--preemption", "swap"),
        "preemption is for scheduler vllm-sosp and vllm-v0, not orca",
    ),
    "a limit that a static batch does not have": (
        ("--policy", "static", "--max-num-seqs", "4"),
        "max_num_seqs is for scheduler orca, vllm-sosp, vllm-v0 and vllm-v1, not static",
    ),
    "recomputing several samples": (
        ("--n", "2", "--preemption", "recompute"),
        "recompute cannot be forced on requests of several samples",
    ),
    "on demand from a buddy": (
        ("--reservation", "on-demand", "--allocator", "buddy"),
        "on-demand needs allocator paged or virtual, not buddy",
    ),
    "pages that are reserved": (
        ("--allocator", "virtual", "--reservation", "max"),
        "allocator virtual needs reservation on-demand, not max",
    ),
    "pages under a release that shares": (
        ("--policy", "vllm-v0", "--allocator", "virtual"),
        "scheduler vllm-v0 needs allocator paged, not virtual",
    ),
    "another block than one token": (
        ("--policy", "token-granular", "--block-size", "16"),
        "block_size is 16; it must be 1 or left out",
    ),
    "tokens a block where pages decide": (
        ("--policy", "virtual-contiguous", "--block-size", "16"),
        "block_size is 16; allocator virtual takes page_size instead",
    ),
    "swapping pages": (
        ("--policy", "virtual-contiguous", "--preemption", "swap"),
        "preemption swap is not for allocator virtual",
    ),
    "choosing to swap pages": (
        ("--policy", "virtual-contiguous", "--preemption", "auto"),
        "preemption auto is not for allocator virtual",
    ),
    "swap space for pages": (
        ("--policy", "virtual-contiguous", "--cpu-blocks", "5"),
        "cpu_blocks is 5; allocator virtual has no swap space",
    ),
    "static on demand": (
        ("--policy", "static", "--reservation", "on-demand", "--allocator", "paged"),
        "static needs reservation oracle",
    ),
    "static from a buddy": (
        ("--policy", "static", "--allocator", "buddy"),
        "static needs allocator first-fit or best-fit or paged, not buddy",
    ),
    "window backwards": (("--window", "900:300"), "the first not after the second"),
    "a length that no cache holds": (
        ("--sizing", "vllm", "--max-model-len", "1000000"),
        "max_model_len is 1000000 tokens, but the KV cache",
    ),
}


@pytest.mark.parametrize("case", CONTRADICTIONS)
def test_options_that_contradict_one_another_are_refused(case, refused, tmp_path):
    flags, said = CONTRADICTIONS[case]
    policy, compared = ("--policy", "vllm-sosp"), ("--policies", "vllm-sosp")
    if flags[0] == "--policy":
        policy, compared, flags = flags[:2], ("--policies", flags[1]), flags[2:]
    assert said in refused("run", *SMALL, *policy, *flags, "--out", tmp_path / "out")
    assert said in refused("run", *SMALL, *compared, *flags, "--out", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_an_option_that_no_policy_of_a_comparison_can_use_is_refused(refused):
    reserving = ("--policies", "orca-max,orca-oracle")
    assert "preemption is for" in refused("run", *SMALL, *reserving, "--preemption", "swap")
    assert "max_batch" in refused("run", *SMALL, *reserving, "--max-batch", "3")


def test_memory_that_is_not_one_block_of_a_compared_policy_is_refused(refused):
    few = ("--policies", "vllm-sosp,virtual-contiguous", "--num-blocks", "12")
    sentence = refused("run", *SMALL, *few)
    assert "num_blocks is 12; that many blocks of 16 tokens are 0 of virtual-contiguous's own" in sentence


@pytest.mark.parametrize("policy", ["static", "vllm-sosp"])
@pytest.mark.parametrize("cost", ["affine:1000,1000,1000", "affine:1000,1000,0", "roofline:flops=1e-300"])
def test_costs_that_no_clock_can_count_are_refused(cost, policy, refused):
    sentence = refused("run", "--trace", "sharegpt", "--policy", policy, "--cost", cost)
    assert sentence.startswith("the run exceeds 4.6e+06 s of simulated time")


@pytest.mark.parametrize("policies", ["vllm-sosp,vllm-sosp", "", "vllm-sosp,", "nosuch", "../x"])
def test_policies_are_known_and_distinct(policies, refused):
    sentence = refused("run", *SMALL, "--policies", policies)
    assert "must be distinct" in sentence or "it must be one of static, contiguous-max" in sentence


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (
            ("--serve", "vllm serve opt-13b -tp 3", "--gpu", "h100"),
            "tp is 3; opt-13b has 40 heads, so it must",
        ),
        (
            ("--serve", "vllm serve opt-13b", "--gpu", "h100", "--model", "opt-30b"),
            "--serve says model opt-13b, and beside it model is opt-30b; leave one of them out",
        ),
        (
            ("--serve", "vllm serve opt-13b --max-num-seqs 9 --max-num-batched-tokens 8", "--gpu", "h100"),
            "max_num_seqs is 9, more than the 8 of max_num_batched_tokens",
        ),
    ],
)
def test_a_serve_line_that_cannot_be_run_is_said_in_a_sentence(flags, said, refused):
    assert said in refused("run", "--trace", "fixed:10,10", "--num-requests", "1", *flags)


POSITIVE = (
    "block-size num-blocks max-model-len max-num-seqs max-num-batched-tokens max-batch n beam-width "
    "num-requests tensor-parallel-size max-concurrency"
)
COUNTS = [*POSITIVE.split(), "cpu-blocks", "seed"]
REAL = "rate duration cv until watermark gpu-memory-utilization"


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        *((flag, "0") for flag in POSITIVE.split()),
        *((flag, value) for flag in COUNTS for value in ("-1", "99999999999999999999999999")),
    ],
)
def test_a_count_out_of_bounds_is_named_with_its_bound(flag, value, refused):
    policy = "static" if flag == "max-batch" else "vllm-sosp"
    sentence = refused("run", *SMALL, "--policy", policy, f"--{flag}", value)
    assert sentence.startswith(f"{flag.replace('-', '_')} is {value}")
    assert any(
        bound in sentence for bound in ("greater than or equal to", "less than or equal to", " from 1")
    )


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        (flag, value)
        for flag in REAL.split()
        for value in ("-1", "nan", "inf", "-inf", "1e300")
        if (flag, value) != ("rate", "inf")  # all at once
    ],
)
def test_a_number_out_of_bounds_is_named_with_its_bound(flag, value, refused):
    flags = {"duration": ("--rate", "1"), "cv": ("--rate", "1")}.get(flag, ())
    sentence = refused("run", *SMALL, *flags, f"--{flag}", value)
    assert sentence.startswith((f"{flag.replace('-', '_')} is {float(value)}", f"{flag} is {float(value):g}"))
    assert any(bound in sentence for bound in ("greater than", "less than", "finite number", "a number from"))


@pytest.mark.parametrize(
    "value", ["5", "a:b", "1:2:3", "", "-1:5", "0:nan", "0:inf", "nan:nan", "1e300:1e301", "0:1e7"]
)
def test_a_window_is_two_times(value, refused):
    assert refused("run", *SMALL, f"--window={value}").startswith(f"window is {value!r}: must be ")


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "--nosuch"),
        ("run", "--rate", "fast"),
        ("run", "--out"),
        ("run", "one.toml", "two.toml"),
        ("nosuch",),
        ("trace", "nosuch"),
        ("trace", "convert", "only-one"),
    ],
)
def test_a_command_that_is_spelt_wrong_shows_its_usage(arguments, cli):
    outcome = cli(*arguments)
    assert outcome.code == 2
    assert outcome.out == ""
    assert "Error" in outcome.err
    assert "Traceback" not in outcome.err


def test_profiles_of_several_models_are_not_compared(refused):
    said = refused("profile", "compare", "analytic-h200", "llama-2-7b-a100-tp1")
    assert "analytic-h200 of opt-13b, llama-2-7b-a100-tp1 of llama-2-7b" in said
