"""Names in files are text: whatever they are, nothing is written outside the folder that was named."""

from __future__ import annotations

import json

import pytest

from pagesim.costs.profiles import Sample, analytic_profile
from pagesim.hardware import gpu
from pagesim.models import model
from pagesim.results.result import load

NAMES = (
    "../../escaped",
    "/tmp/escaped-from-pagesim",
    "a/b/c",
    "..",
    "nul\0byte",
    "two\nlines",
    "\x1b[31mred",
    "x" * 5000,
    "CON",
    "-rf",
    "%s%n",
    "{0.__class__}",
    "$(touch escaped)",
    "`touch escaped`",
    "$x^2$ \\frac{",
)  # fmt: skip


@pytest.fixture
def outside(tmp_path, monkeypatch):
    """Return the folder that may be written, deep within one in which nothing else may change."""
    home = tmp_path / "a" / "b" / "home"
    home.mkdir(parents=True)
    monkeypatch.chdir(home)
    (tmp_path / "mine.txt").write_text("mine")

    def everything():
        return {str(file) for file in tmp_path.rglob("*") if not file.is_relative_to(home / "out")}

    files = {"home": home, "everything": everything}
    yield files
    assert (tmp_path / "mine.txt").read_text() == "mine"


def write_traces(home, name):
    """Write traces in which every text is the name."""
    rows = [
        {"request_id": name, "session_id": name, "prompt_tokens": 40, "output_tokens": 9, "arrival_s": 0.5},
        {"request_id": "b", "session_id": name, "prompt_tokens": 60, "output_tokens": 9, "arrival_s": 1.0},
    ]
    (home / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    talk = [{"id": name, "conversations": [{"from": "human", "value": name}, {"from": "gpt", "value": name}]}]
    (home / "talk.json").write_text(json.dumps(talk))


def write_profile(home, name):
    samples = tuple(Sample("linear", 0, size, 0, 1e-3 * size) for size in (1, 8, 64))
    profile = analytic_profile(gpu("a100-40gb"), model("opt-13b"))
    texts = {"name": name, "sentence": name, "date": name, "notes": (name,), "machine": {"gpu": name}}
    profile.model_copy(update={"samples": samples, **texts}).save(home / "p.json")


def write_config(home, name):
    config = {
        "model_type": name, "_name_or_path": name, "hidden_size": 256, "intermediate_size": 688,
        "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 1024, "max_position_embeddings": 2048,
    }  # fmt: skip
    (home / "config.json").write_text(json.dumps(config))


COMMANDS = {
    "run": (
        *("run", "--trace", "t.jsonl", "--policy", "vllm-sosp", "--preemption", "auto"),
        *("--out", "out/x"),
    ),
    "run, static": ("run", "--trace", "t.jsonl", "--policy", "static", "--out", "out/x"),
    "compare": ("run", "--trace", "t.jsonl", "--policies", "orca-max,vllm-sosp", "--out", "out/x"),
    "cluster": ("run", "--trace", "t.jsonl", "--replicas", "2", "--out", "out/x"),
    "sweep": (
        *("sweep", "--trace", "t.jsonl", "--grid", "num_blocks=300,400", "--jobs", "1"),
        *("--x", "num_blocks", "--y", "ttft.p50", "--out", "out/x"),
    ),
    "describe": ("trace", "describe", "t.jsonl", "--out", "out/x"),
    "convert": ("trace", "convert", "t.jsonl", "out/t.parquet"),
    "conversations": ("run", "--trace", "talk.json", "--tokenizer", "approximate", "--out", "out/x"),
    "profile": ("profile", "show", "p.json", "--out", "out/x"),
    "run by a profile": ("run", "--trace", "t.jsonl", "--cost", "profile:p.json", "--out", "out/x"),
    "run of a model": ("run", "--trace", "t.jsonl", "--model", "config.json", "--out", "out/x"),
    "swap ablation": (
        *("ablate", "preemption", "--profile", "p.json", "--trace", "t.jsonl", "--num-blocks", "300"),
        *("--out", "out/x"),
    ),
}


def some_with_some():
    """Return every name with a command, and with two more that are slow; every command has several names."""
    commands = list(COMMANDS)
    return [
        pytest.param(
            commands[(column + beside) % len(commands)],
            name,
            marks=(pytest.mark.slow,) if beside else (),
            id=f"{commands[(column + beside) % len(commands)]}-{shown(name)}",
        )
        for column, name in enumerate(NAMES)
        for beside in (0, 3, 5)
    ]


def shown(name):
    return name[:12].encode("unicode_escape").decode()


@pytest.mark.parametrize(("command", "name"), some_with_some())
def test_names_in_files_write_nothing_outside_the_folder(command, name, outside, cli):
    home = outside["home"]
    (home / "out").mkdir()
    for write in (write_traces, write_profile, write_config):
        write(home, name)
    before = outside["everything"]()
    outcome = cli(*COMMANDS[command])
    assert outside["everything"]() == before
    assert outcome.code == 0 or (outcome.code == 2 and outcome.err.splitlines()[-1].startswith("pagesim: "))
    assert "\x1b[31mred" not in outcome.out + outcome.err, "no name colours the terminal"
    if command == "run":
        assert outcome.code == 0, outcome.err
        assert load(home / "out" / "x").requests["request_id"].tolist() == [name, "b"]


@pytest.mark.parametrize("name", NAMES[:7:2], ids=shown)
@pytest.mark.parametrize("option", ["policy", "model", "gpu", "router", "trace", "cost"])
def test_names_of_options_write_nothing_at_all(option, name, outside, refused):
    home = outside["home"]
    (home / "s.toml").write_text(f"{option} = {json.dumps(name)}\n")
    before = outside["everything"]()
    assert refused("run", "s.toml", "--out", "out/x")
    if option == "policy":
        grid = f"policy = [{json.dumps(name)}]"
        (home / "s.toml").write_text(f'trace = "fixed:5,5"\nnum_requests = 2\n[grid]\n{grid}\n')
        assert refused("sweep", "s.toml", "--out", "out/y")
        (home / "s.toml").write_text(f"policies = [{json.dumps(name)}]\n")
        assert refused("run", "s.toml", "--out", "out/z")
    (home / "s.toml").write_text(f"{option} = {json.dumps(name)}\n")
    assert outside["everything"]() == before
