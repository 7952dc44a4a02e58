"""``pagesim trace``: look at, convert, make and fit traces."""

from __future__ import annotations

import json

import pytest

from pagesim.workloads import load
from tests.experiments.recorded.samples import guidellm, sglang, vllm
from tests.workloads.conftest import SAMPLES, assert_same

OURS = (
    b"prompt_tokens,output_tokens,hash_ids,hash_block_size,prefix_tokens,session_id\n"
    b"75,426,1;2,64,30,x\n1000,142,1;2;3,64,0,x\n",
    b"request_id,arrival_s,prompt_tokens,output_tokens,n\nx,0.25,75,426,1\ny,0.5,103,142,4\n",
)


@pytest.fixture(
    params=[*OURS, *(sample.data for sample in SAMPLES)],
    ids=["what is shared", "our own", *(sample.name for sample in SAMPLES)],
)
def file(request, tmp_path):
    """A file of each format in turn, under a name that tells nothing."""
    path = tmp_path / "trace.dat"
    path.write_bytes(request.param)
    return path


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_trace_that_was_converted_holds_the_same_requests(suffix, file, succeeds, tmp_path):
    target = tmp_path / f"converted{suffix}"
    outcome = succeeds("trace", "convert", file, target)
    assert_same(load(target), load(file))
    assert outcome.out == f"{len(load(file))} requests written to {target}\n"


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize(
    ("name", "thought"),
    [
        ("burstgpt-sessions", [0, 0, 6]),  # sent at 1000 s, over 4 s later; the next one is sent at 1010 s
        ("llmservingsim-agentic", [0, 0.25, 0]),  # a tool of 250,000,000 ns
    ],
)
def test_a_converted_trace_keeps_the_time_between_turns(name, thought, suffix, succeeds, tmp_path):
    source, target = tmp_path / "trace.dat", tmp_path / f"converted{suffix}"
    source.write_bytes(next(sample.data for sample in SAMPLES if sample.name == name))
    succeeds("trace", "convert", source, target)
    assert load(target, turns="after-completion").think_s.tolist() == thought
    # Turns that have times of their own arrive at these unless told otherwise.
    assert (load(target).think_s is None) == (name == "burstgpt-sessions")


def test_every_format_can_be_described_and_replayed(file, succeeds):
    assert "prompt tokens" in succeeds("trace", "describe", file).out
    system = ("--policy", "vllm-sosp", "--model", "llama-2-7b", "--num-blocks", "300")
    summary = succeeds("run", "--trace", file, *system, "--json").json
    assert summary["requests"]["finished"] == len(load(file))


@pytest.mark.slow
def test_every_published_trace_can_be_described(shared, succeeds):
    # One sample holds questions without answers, and is refused.
    found = [path for path in sorted((shared / "data" / "raw").iterdir()) if "ml_energy" not in path.name]
    assert found
    for path in found:
        assert "prompt tokens" in succeeds("trace", "describe", path, "--num-requests", "10").out


def test_a_description_counts_and_draws(succeeds, trace_file, tmp_path):
    trace = trace_file("a,0,10,1\nb,1,20,3\nc,4,30,5\n")
    outcome = succeeds("trace", "describe", trace, "--out", tmp_path / "figures")
    lines = {tuple(line.split()[:-2]): line.split()[-2:] for line in outcome.out.splitlines() if line.split()}
    assert lines["prompt", "tokens", "mean"] == ["20.00", "tokens"]
    assert lines["arrivals", "rate"] == ["0.50", "requests/s"]
    assert {file.name for file in (tmp_path / "figures").iterdir()} == {"trace.png", "trace.svg"}


def test_a_trace_that_was_made_is_the_one_that_is_replayed(succeeds, tmp_path):
    made = tmp_path / "made.csv"
    flags = ("--arrivals", "gamma", "--rate", "4", "--cv", "3", "--duration", "20", "--seed", "7")
    outcome = succeeds("trace", "make", "lognormal:300,1.5,200,1", made, *flags)
    assert outcome.out == f"{len(load(made))} requests written to {made}\n"
    direct = succeeds("run", "--trace", "lognormal:300,1.5,200,1", *flags, "--json").json
    stored = succeeds("run", "--trace", made, "--json").json
    assert direct["latency"] == stored["latency"]
    assert direct["requests"] == stored["requests"]


def test_a_shared_prefix_is_made_and_replayed_as_given(succeeds, tmp_path):
    made = tmp_path / "made.csv"
    flags = ("--num-requests", "40", "--shared-prefix", "341:0.5")
    outcome = succeeds("trace", "make", "fixed:100,20", made, *flags)
    assert "note: a shared prefix of 341 tokens in front of " in outcome.err
    trace = load(made)
    assert trace.prefix_tokens is not None
    assert sorted(set(zip(trace.prompt_tokens.tolist(), trace.prefix_tokens.tolist(), strict=True))) == [
        (100, 0),
        (441, 341),
    ]
    direct = succeeds("run", "--trace", "fixed:100,20", *flags, "--json").json
    stored = succeeds("run", "--trace", made, "--json").json
    assert direct["latency"] == stored["latency"]


def test_samples_of_different_lengths_are_converted(succeeds, trace_file, tmp_path):
    source = trace_file("a,0,5,5;7\nb,0,5,6\n")
    for suffix in (".csv", ".parquet"):
        succeeds("trace", "convert", source, tmp_path / f"t{suffix}")
        assert load(tmp_path / f"t{suffix}").sample_tokens == [(5, 7), (6,)]


def test_a_description_says_how_much_prompts_share(succeeds, tmp_path):
    trace = tmp_path / "t.csv"
    trace.write_text("prompt_tokens,output_tokens,hash_ids,hash_block_size\n8,1,1;2,4\n12,1,1;2;3,4\n")
    printed = " ".join(succeeds("trace", "describe", trace).out.split())
    assert "prompt blocks count 5 blocks of 4 tokens" in printed
    assert "prompt blocks ideal reuse 40.00 %" in printed


def test_a_model_that_was_fitted_can_be_sampled(succeeds, trace_file, tmp_path):
    rows = "".join(f"{i},{i},{50 + i % 7},{20 + i % 5}\n" for i in range(200))
    model = tmp_path / "model.json"
    outcome = succeeds(
        *("trace", "fit", trace_file(rows), model),
        *("--name", "mine", "--origin", "a test", "--licence", "none"),
    )
    assert "model mine of 200 requests" in outcome.out
    content = json.loads(model.read_text())
    assert (content["provenance"]["source"], content["provenance"]["licence"]) == ("a test", "none")
    out = tmp_path / "out"
    succeeds("run", "--trace", model, "--rate", "5", "--duration", "20", "--out", out)
    succeeds("trace", "make", model, tmp_path / "sampled.csv", "--num-requests", "500")
    sampled = load(tmp_path / "sampled.csv")
    assert len(sampled) == 500
    assert sampled.prompt_tokens.min() >= 50
    assert sampled.prompt_tokens.max() <= 56


def test_notes_go_beside_the_output(succeeds, trace_file, tmp_path):
    unsorted = trace_file("a,5,10,10\nb,1,10,10\n")
    for arguments in (("describe",), ("convert", tmp_path / "c.csv"), ("fit", tmp_path / "m.json")):
        outcome = succeeds("trace", arguments[0], unsorted, *arguments[1:])
        assert "note: " in outcome.err
        assert "sorted" in outcome.err
        assert "note: " not in outcome.out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("convert", "{trace}", "x.txt"), "a trace is saved as .csv or .parquet"),
        (("convert", "{trace}", "nosuch/x.csv"), "cannot be written"),
        (("convert", "nosuch.csv", "x.csv"), "there is no such file"),
        (("fit", "{trace}", "nosuch/x.json"), "cannot be written"),
        (("fit", "{trace}", "folder"), "cannot be written"),
        (("fit", "{trace}", "x.json", "--total-below", "1"), "has no request to fit"),
        (("make", "fixed:10,10", "x.csv", "--duration", "5"), "give a rate as well"),
        (("make", "fixed:10,10", "x.csv", "--arrivals", "posson"), "'poisson'"),
        (("make", "fixed:10,10", "x.csv", "--on-bad-row", "stop"), "'error' or 'skip'"),
        (("make", "fixed:10,10", "x.csv", "--seed", "-1"), "seed is -1"),
        (("make", "fixed:10,10", "x.csv", "--rate", "nan"), "rate is nan"),
        (("describe", "sharegtp"), "did you mean sharegpt?"),
    ],
)
def test_what_cannot_be_done_is_said_and_nothing_is_written(
    arguments, said, refused, trace_file, tmp_path, monkeypatch
):
    trace = trace_file("a,0,10,10\nb,1,10,10\n")
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    assert said in refused("trace", *(str(trace) if a == "{trace}" else a for a in arguments))
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("taken", ["a file", "a figure's name"])
def test_a_figure_that_cannot_be_written_leaves_nothing_behind(taken, cli, trace_file, tmp_path):
    out = tmp_path / "out"
    out.touch() if taken == "a file" else (out / "trace.png").mkdir(parents=True)
    before = sorted(tmp_path.rglob("*"))
    trace = trace_file("a,0,10,10\nb,1,10,10\n")
    outcome = cli("trace", "describe", trace, "--out", out)
    assert outcome.code == 2
    assert outcome.err.splitlines()[-1].startswith(f"pagesim: {out}")
    assert ": cannot be written (" in outcome.err.splitlines()[-1]
    assert sorted(set(tmp_path.rglob("*")) - {trace}) == before


def test_what_a_benchmarks_client_recorded_is_a_trace(succeeds, tmp_path):
    data = vllm()
    (tmp_path / "bench.json").write_text(json.dumps(data))
    said = succeeds("trace", "convert", tmp_path / "bench.json", tmp_path / "trace.csv")
    trace = load(tmp_path / "trace.csv")
    assert sorted(trace.prompt_tokens.tolist()) == sorted(data["input_lens"])
    assert "when they were sent and how long they were" in said.err


def test_each_run_of_a_file_becomes_a_trace_of_its_own(succeeds, tmp_path):
    data = guidellm()
    data["benchmarks"] *= 2
    (tmp_path / "guide.json").write_text(json.dumps(data))
    succeeds("trace", "convert", tmp_path / "guide.json", tmp_path / "trace.csv")
    assert sorted(file.name for file in tmp_path.glob("*.csv")) == ["trace-1.csv", "trace-2.csv"]


def test_what_is_neither_a_trace_nor_a_record_is_refused_as_a_trace(refused, tmp_path):
    (tmp_path / "other.json").write_text('[{"colour": "red"}]')
    assert "the format is not recognised" in refused(
        "trace", "convert", tmp_path / "other.json", tmp_path / "o.csv"
    )


def without(data, *names):
    """Return a record without some of its fields."""
    return {name: value for name, value in data.items() if name not in names}


def hidden():
    """Return records of clients that lack what a trace needs, and what their readers say of them."""
    report = guidellm()
    del report["benchmarks"][0]["requests"]["successful"][0]["info"]
    return {
        "a result without details": (
            without(vllm(), "ttfts", "itls"),
            "run vllm bench serve with --save-result",
        ),
        "no times of sending": (
            without(vllm(), "start_times"),
            "has no start_times, and request_rate is 2.0",
        ),
        "lists of two lengths": ({**vllm(), "itls": [[]]}, "itls has 1 values, and ttfts has 4"),
        "failures": ({**vllm(), "errors": ["timeout"] * 4}, "4 of 4 requests"),
        "sglang's without details": (without(sglang(4), "itls"), "SGLang's bench with --output-details"),
        "a report without times": (report, "request_start"),
    }


@pytest.mark.parametrize("case", list(hidden()))
def test_why_a_record_is_no_trace_is_said_by_its_own_reader(case, refused, tmp_path):
    data, said = hidden()[case]
    (tmp_path / "bench.json").write_text(json.dumps(data))
    sentence = refused("trace", "convert", tmp_path / "bench.json", tmp_path / "t.csv")
    assert said in sentence
    assert "not recognised" not in sentence


def test_why_a_table_is_no_trace_is_said_by_the_reader_of_traces(refused, tmp_path):
    (tmp_path / "t.csv").write_text("foo,bar\n1,2\n")
    sentence = refused("trace", "convert", tmp_path / "t.csv", tmp_path / "t.parquet")
    assert "the format is not recognised: its columns are foo, bar" in sentence


def test_runs_that_vllm_appended_to_a_file_are_traces_of_their_own(succeeds, tmp_path):
    # vllm/benchmarks/serve.py: --append-result writes a newline and one more object.
    (tmp_path / "bench.json").write_text("\n".join(json.dumps(vllm()) for _ in range(3)))
    succeeds("trace", "convert", tmp_path / "bench.json", tmp_path / "t.csv")
    assert sorted(file.name for file in tmp_path.glob("*.csv")) == ["t-1.csv", "t-2.csv", "t-3.csv"]
