"""Random systems under `sglang` decide as a program does that was written from SGLang's rules alone."""

from __future__ import annotations

import argparse
import csv
import importlib.util
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

import pandas as pd
import pytest

from pagesim.experiments.golden import GoldenLog, compare_log
from pagesim.setup.engine_config import EngineConfig
from pagesim.setup.system import System, checked
from pagesim.workloads.trace import MAX_PRIORITY

PART = 4

TEXTS = {"chunked": "Int64"}


@pytest.fixture(scope="module")
def program(shared: Path) -> Path:
    """Return the folder of that program, which imports nothing of pagesim or SGLang."""
    return folder_of(shared / "oracle" / "sglang" / "mini_sglang.py")


@pytest.fixture(scope="module")
def newer(shared: Path) -> Path:
    """Return the folder of its successors, which know delays, priorities, full queues, hosts and ranks."""
    return folder_of(shared / "golden" / "sglang-today" / "driver" / "mini_now.py")


def folder_of(program: Path) -> Path:
    """Return the folder of a program, if it is there."""
    if not program.is_file():
        pytest.skip(f"the program written from SGLang's rules, {program.name}, is absent")
    return program.parent


def load(
    folder: Path, monkeypatch: pytest.MonkeyPatch, program: str = "mini_sglang"
) -> tuple[ModuleType, ModuleType]:
    monkeypatch.syspath_prepend(str(folder))
    found = []
    for name in ("common", program):
        monkeypatch.delitem(sys.modules, name, raising=False)
        spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        found.append(module)
    return found[0], found[1]


def random_options(rnd: Random) -> dict[str, Any]:
    """Return the options of a system, under SGLang's names."""
    page = rnd.choice((1, 1, 4, 8, 16, 32))
    some: dict[str, Any] = {
        "max_total_tokens": rnd.choice((2000, 3000, 5000, 9600, 20000)) // page * page,
        "page_size": page,
        "schedule_policy": rnd.choice(
            ("fcfs", "fcfs", "fcfs", "lof", "lpm", "dfs-weight", "hrrn", "shortest-prefill-first")
        ),
        "schedule_conservativeness": rnd.choice((1.0, 1.0, 0.3, 0.1, 0.0, 1.5)),
        "radix_eviction_policy": rnd.choice(("lru", "lru", "lru", "lfu", "fifo", "mru", "filo")),
        "chunked_prefill_size": max(rnd.choice((-1, 8192, 64, 256, 512, 1024)), page)
        if rnd.random() < 0.8
        else -1,
        "context_len": rnd.choice((8192, 8192, 1500, 3500)),
    }

    def perhaps(name: str, *values: Any, chance: float = 0.3) -> None:
        if rnd.random() < chance:
            some[name] = rnd.choice(values)

    perhaps("max_running_requests", 1, 3, 8, 20)
    perhaps("max_prefill_tokens", 200, 600, 2000)
    perhaps("prefill_max_requests", 1, 2, 5, chance=0.15)
    perhaps("enable_mixed_chunk", True)
    perhaps("disable_radix_cache", True, chance=0.2)
    perhaps("disable_overlap_schedule", True, chance=0.4)
    perhaps("ignore_eos", True, chance=0.25)
    if "ignore_eos" not in some:
        perhaps("max_new_tokens", 100, 600, 1200, chance=0.5)
    return some


def random_knobs(rnd: Random, options: dict[str, Any]) -> dict[str, Any]:
    """Return what holds prompts back, priorities and limits of the queue, for a system of these options."""
    some: dict[str, Any] = {}

    def perhaps(name: str, *values: Any, chance: float = 0.3) -> None:
        if rnd.random() < chance:
            some[name] = rnd.choice(values)

    perhaps("scheduler_recv_interval", 2, 5, 30, 1500)
    perhaps("max_queued_requests", 1, 3, 10)
    perhaps("min_free_slots_delay", 1, 2, 5)
    if options["chunked_prefill_size"] in (-1, 8192):  # it lets no time pass where only a chunk is held back
        perhaps("prefill_decode_interval", 1, 4, 20)
    perhaps("prefill_decode_interval_min_bs", 1, 3, chance=0.6)
    if "disable_overlap_schedule" not in options and rnd.random() < 0.5:
        some["enable_prefill_delayer"] = True
        perhaps("prefill_delayer_max_delay_passes", 1, 3, 100)
        perhaps("prefill_delayer_token_usage_low_watermark", 0.2, 0.7)
        perhaps("prefill_delayer_queue_min_ratio", 0.1, 0.5, 2.0, chance=0.6)
        perhaps("prefill_delayer_max_delay_ms", 5, 100, chance=0.5)
    if options["schedule_policy"] in ("fcfs", "lof") and rnd.random() < 0.6:
        some["enable_priority_scheduling"] = True
        perhaps("disable_priority_preemption", True, chance=0.2)
        perhaps("schedule_low_priority_values_first", True)
        perhaps("priority_scheduling_preemption_threshold", 0, 30, chance=0.5)
        perhaps("retraction_policy", "priority", chance=0.5)
    return some


def random_drafts(rnd: Random, options: dict[str, Any]) -> dict[str, Any]:
    """Return what drafts, for a system of these options."""
    name = rnd.choice(("EAGLE", "EAGLE3", "NEXTN", "NGRAM", "STANDALONE"))
    steps, topk = rnd.choice((1, 2, 3, 5)), rnd.choice((1, 1, 2, 4))
    tokens = steps + 1 if topk == 1 else rnd.choice((2, 4, 8, 16))
    if name == "NGRAM":  # ten branches, whatever is said
        tokens, topk = rnd.choice((4, 8, 12, 24)), 10
        steps = max(1, tokens // topk)  # 0.5.23, allocation_sizing.py: 0 counts as 1
    if name in ("NGRAM", "STANDALONE"):  # the server turns it off
        options.pop("enable_mixed_chunk", None)
    return {
        "speculative_algorithm": name,
        "speculative_num_steps": steps,
        "speculative_eagle_topk": topk,
        "speculative_num_draft_tokens": tokens,
        "accept_rate": rnd.choice((0.0, 0.3, 0.6, 0.8, 1.0)),
    }


def with_priorities(file: Path, rnd: Random) -> None:
    """Give the requests of a trace priorities."""
    with file.open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines))
    with file.open("w", encoding="utf-8", newline="") as lines:
        table = csv.DictWriter(lines, [*rows[0], "priority"])
        table.writeheader()
        for row in rows:
            table.writerow({**row, "priority": rnd.choice((-MAX_PRIORITY, 0, 0, 5, 20, 40))})


def random_trace(folder: Path, file: Path, rnd: Random, seed: int) -> None:
    """Write a trace of the program's own kinds."""
    kind = rnd.choice(("plain", "prefix", "turns", "mixed", "prefix", "turns"))
    sizes = [f"p={rnd.choice((20, 60, 300))}", f"o={rnd.choice((10, 60, 300))}"] if rnd.random() < 0.5 else []
    many, rate = rnd.choice((40, 80, 150)), rnd.choice((2, 5, 10, 40))
    command = [
        sys.executable,
        str(folder / "mktrace.py"),
        str(file),
        kind,
        str(many),
        str(rate),
        str(seed),
        *sizes,
    ]
    subprocess.run(command, check=True)


def flags_of(options: dict[str, Any], trace: Path) -> list[str]:
    """Return the arguments with which a program gets options and a trace."""
    flags = ["--trace", str(trace), "--max-steps", "60000"]
    for name, value in options.items():
        flags += [f"--{name.replace('_', '-')}"] + ([] if value is True else [str(value)])
    return flags


def link_of(cost: float, options: dict[str, Any]) -> str:
    """Return the link over which a token takes so many seconds from the device to the host or back.

    Args:
        cost: those seconds.
        options: of the system, under pagesim's names.
    """
    if not cost:
        return "1e30GB/s"
    block_bytes = EngineConfig(checked(System, {"policy": "sglang", **options})).capacity.block_bytes
    return f"{block_bytes / options['block_size'] / cost / 1e9!r}GB/s"


def decided(
    common: ModuleType, mini: ModuleType, options: dict[str, Any], trace: Path
) -> pd.DataFrame | None:
    """Return what the program decides, as a log; None where it stops by itself, as a pool is too small."""
    parser: argparse.ArgumentParser = common.parser("")
    asked = parser.parse_args(flags_of(options, trace))
    try:
        log = mini.Mini(asked).go()
    except AssertionError:
        return None
    return as_log(log)


def as_log(log: list[dict[str, Any]]) -> pd.DataFrame | None:
    """Return what the program decided, as a log; None where it did not come to its end."""
    if len(log) > 60000:
        return None
    for step in log:
        step["prefill"] = [[int(request), *tokens] for request, tokens in step["prefill"].items()]
        for name in {"retracted", "preempted", "turned_away"} & step.keys():
            step[name] = [int(request) for request in step[name]]
        step["chunked"] = None if step["chunked"] is None else int(step["chunked"])
    return pd.DataFrame(log).astype(TEXTS)


def log_of(options: dict[str, Any], trace: Path, steps: Path) -> GoldenLog:
    """Return what to replay for some options."""
    ours = dict(options)
    page = ours.pop("page_size")
    if "accept_rate" in ours:
        ours["acceptance"] = ours.pop("accept_rate")
    if ours.get("speculative_algorithm") == "NGRAM":
        del ours["speculative_num_steps"], ours["speculative_eagle_topk"]
    if ours.get("speculative_algorithm") == "STANDALONE":
        ours["speculative_draft_model_path"] = "llama-3.2-1b"
    if "mamba_chunk_size" in ours:
        chunk = ours.pop("mamba_chunk_size")
        state = f"kind = 'state', conv = [3, 64], state = [2, 16, 16], kernel_chunk = {chunk}"
        ours["model"] = model_of(steps.parent, state)
    if "window" in ours:
        window = ours.pop("window")
        layer = f"kind = 'window', kv_heads = 1, head_dim = 64, window = {window + 1}"
        ours["model"] = model_of(steps.parent, layer)
    ours |= {
        "block_size": page,
        "num_blocks": ours.pop("max_total_tokens") // page,
        "max_model_len": ours.pop("context_len"),
        "cost": "affine:0.010,1e-5,1e-7",
    }
    return GoldenLog(
        name="random",
        engine="the rules",
        tables={"steps": steps},
        trace=trace,
        arrivals={},
        n=None,
        policy="sglang",
        options=ours,
        without_flush=False,
        last_sample_first=False,
        put_off=(),
        not_compared={},
    )


Draw = Callable[[Random, int, Path], dict[str, Any]]
"""Returns the options of a system, of its random numbers, its seed and its trace."""


def with_knobs(rnd: Random, seed: int, trace: Path) -> dict[str, Any]:
    """Return the options of a system that mostly has what holds prompts back, and priorities."""
    options = random_options(rnd)
    if seed % PART != 1:  # which retracts as it is
        options |= random_knobs(rnd, options)
        with_priorities(trace, rnd)
    return options


def with_drafts(rnd: Random, seed: int, trace: Path) -> dict[str, Any]:
    """Return the options of a system that verifies drafts."""
    options = random_options(rnd)
    options |= random_drafts(rnd, options)
    if seed % PART == 1:
        options |= random_knobs(rnd, options)
        with_priorities(trace, rnd)
    return options


def with_states(rnd: Random, seed: int, trace: Path) -> dict[str, Any]:
    """Return the options of a system some of whose layers keep a state."""
    options = random_options(rnd)
    if rnd.random() < 0.4:
        options |= random_knobs(rnd, options)
        with_priorities(trace, rnd)
    options |= {
        "max_mamba_cache_size": rnd.choice((12, 20, 40, 80, 200)),
        "mamba_chunk_size": rnd.choice((64, 64, 128, 256)),
        "mamba_track_interval": rnd.choice((256, 256, 128, 64, 512)),
    }
    strategies = ["auto", "extra_buffer"]
    if "disable_overlap_schedule" in options and options["page_size"] == 1:
        strategies += ["auto", "no_buffer"]
    options["mamba_radix_cache_strategy"] = rnd.choice(strategies)
    return options


def with_states_and_drafts(rnd: Random, seed: int, trace: Path) -> dict[str, Any]:
    """Return the options of a system that verifies drafts, and some of whose layers keep a state."""
    options = with_states(rnd, seed, trace)
    return options | random_drafts(rnd, options)


def model_of(folder: Path, layer: str) -> str:
    """Return a model of full attention and of another layer, by its file."""
    file = folder / "model.toml"
    full = "{ kind = 'full', kv_heads = 1, head_dim = 64 }"
    file.write_text(f"max_model_len = 8192\nlayers = [{{ {layer} }}, {full}]\n")
    return str(file)


def compare(
    folder: Path, made: Path, seeds: range, draw: Draw, decide: Callable[..., pd.DataFrame | None]
) -> list[pd.DataFrame]:
    """Compare random systems with what a program decides; return its logs, of those that reach their end.

    Args:
        folder: of the program.
        made: where files are put.
        seeds: of the systems.
        draw: of their options.
        decide: lets the program run, of options and a trace.
    """
    logs = []
    for seed in seeds:
        rnd = Random(seed)
        trace, steps = made / "trace.csv", made / "log.steps.parquet"
        random_trace(folder, trace, rnd, seed)
        options = draw(rnd, seed, trace)
        log = decide(options, trace)
        if log is None:
            continue
        logs.append(log)
        log.to_parquet(steps)
        for stepping in (False, True):
            difference = compare_log(log_of(options, trace, steps), stepping=stepping).difference
            assert difference is None, f"seed {seed}, {options}: {difference}"
    return logs


Now = Callable[[range, Draw], list[pd.DataFrame]]


@pytest.fixture
def now(newer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Now:
    """Return what compares systems of seeds with the newer program; most of them reach their end."""
    common, mini = load(newer, monkeypatch, "mini_now")

    def compared(seeds: range, draw: Draw) -> list[pd.DataFrame]:
        logs = compare(newer, tmp_path, seeds, draw, partial(decided, common, mini))
        assert len(logs) > len(seeds) / 2
        return logs

    return compared


@pytest.mark.slow
@pytest.mark.parametrize("part", range(3))
def test_random_systems_decide_by_the_rules(now: Now, part: int) -> None:
    logs = now(range(part * PART, (part + 1) * PART), with_knobs)
    assert any(log["num_retracted"].any() for log in logs) or part  # the first part has some


@pytest.mark.slow_but("1000-1001")
@pytest.mark.parametrize(("first", "end"), [(1000, 1001), (1003, 1005), (1005, 1009)])
def test_random_systems_that_verify_drafts_decide_by_the_rules(now: Now, first: int, end: int) -> None:
    logs = now(range(first, end), with_drafts)
    assert any(log["num_retracted"].any() for log in logs) or first != 1005


@pytest.mark.slow_but("0")
@pytest.mark.parametrize("part", range(4))
def test_random_systems_with_states_decide_by_the_rules(now: Now, part: int) -> None:
    logs = now(range(part * PART, (part + 1) * PART), with_states)
    assert any(log["evicted_states"].any() for log in logs) or part > 1


@pytest.mark.slow_but("0")
@pytest.mark.parametrize("part", range(4))
def test_random_systems_with_states_and_drafts_decide_by_the_rules(now: Now, part: int) -> None:
    logs = now(range(3000 + part * PART, 3000 + (part + 1) * PART), with_states_and_drafts)
    assert any(log["evicted_states"].any() for log in logs)
    assert any(log["accepted"].map(sum).any() for log in logs)
