"""Readers of options: scenarios, sweeps, profiles, models."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from target import TESTS, Target, of_tests, one_line

import pagesim as ps
from pagesim.cli.flags import scenario_from
from pagesim.costs import IterationShape, Profiled
from pagesim.costs.profiles import Sample, analytic_profile, find_profile
from pagesim.experiments.sweeps.grid import Sweep, grid_toml
from pagesim.experiments.sweeps.search import Search
from pagesim.hardware import gpu
from pagesim.models import model
from pagesim.models.catalogue import rows
from pagesim.setup.comparison import scenarios_of
from pagesim.setup.prepare import check as check_system
from pagesim.setup.scenario import Cluster, Comparison, Scenario
from pagesim.setup.serve import read_serve
from pagesim.setup.system import System, checked
from pagesim.sizing import plan_blocks

SYSTEM = """trace = "sharegpt"
policy = "vllm-sosp"
model = "opt-13b"
gpu = "a100-40gb"
tensor_parallel_size = 1
num_blocks = 900
cpu_blocks = 100
rate = 1.5
duration = 30.0
window = "3:20"
cost = "affine:0.02,1e-4,1e-6"
seed = 3
fast_forward = true
n = 2
shared_prefix = "30:0.5"
until = 100.0
"""
GRID = '\n[grid]\npolicy = ["orca-max", "vllm-sosp"]\nrate = [0.5, 1.0]\nnum_blocks = [500, 900]\n'


def made() -> list[Target]:
    """Return these."""
    return [*_scenarios(), *_profiles(), *_models(), *_layer_files(), *_serve_lines()]


def _scenarios() -> list[Target]:
    def read(kind: type[Any]) -> Callable[[Path], object]:
        def scenario(folder: Path) -> object:
            chosen = scenario_from(kind, folder / "s.toml", {})
            if isinstance(chosen, Sweep):
                chosen = chosen.located(folder)
                size = chosen.seeds
                for values in chosen.axes().values():
                    size *= len(values)
                if size > 200:
                    return None
                grid_toml(chosen)
                return [check_system(each) for each in list(chosen.scenarios())[:2]]
            if isinstance(chosen, Search):
                chosen.parsed_goals()
                return check_system(chosen.base())
            if isinstance(chosen, Comparison):
                return [check_system(each) for each in list(scenarios_of(chosen).values())[:2]]
            check_system(chosen)
            return None

        return scenario

    extra = {
        Scenario: "",
        Comparison: 'policies = ["orca-max", "vllm-sosp"]\n',
        Cluster: 'replicas = 3\nrouter = "least-loaded"\n',
        Search: 'goals = ["p99_ttft<=2s"]\nlowest = 0.5\nhighest = 8.0\nseeds = 2\n',
        Sweep: "seeds = 2\n" + GRID,
    }
    without = {
        Search: ("rate", "duration", "policy"),
        Sweep: ("rate", "num_blocks", "policy"),
        Comparison: ("policy",),
    }
    return [
        Target(
            f"scenario: {kind.__name__}",
            {"s.toml": ("".join(
                line + "\n" for line in SYSTEM.splitlines() if line.split()[0] not in without.get(kind, ())
            ) + more).encode()},
            ("s.toml",),
            read(kind),
        )
        for kind, more in extra.items()
    ]  # fmt: skip


def _serve_lines() -> list[Target]:
    of_vllm = (
        "HF_HOME=/data VLLM_PORT=8 vllm serve facebook/opt-13b --max-model-len 2k --kv-cache-dtype=fp8 -tp 2 "
        "--no-enable-prefix-caching --max_num_seqs 64 --port 8000 --served-model-name 'a b' c -O3 -q none"
    )
    of_sglang = (
        "SGLANG_PORT=8 sglang serve facebook/opt-13b --mem-fraction-static 0.8 --max-total-tokens 64k --tp 2 "
        "--page-size 16 --chunked-prefill-size -1 --schedule-policy lpm --attention-backend fa3 --port 8000"
    )

    def read(folder: Path) -> None:
        text = (folder / "line").read_bytes().decode("utf-8", "surrogateescape")
        check_system(checked(System, read_serve(text).merged_with({"gpu": "h100"})))

    lines = {"vllm serve": of_vllm, "sglang serve": of_sglang}
    return [Target(name, {"line": line.encode()}, ("line",), read) for name, line in lines.items()]


SHAPES = (
    IterationShape(0, 0, 0, 0, 0, 5, 3, 0, 0, 0),
    IterationShape(8, 8, 900, 900, 0, 0, 0, 2, 8, 8),
    IterationShape(300, 300, 900, 600, 40_000, 0, 0, 0, 5, 6),
)


def _profiles() -> list[Target]:
    plain = analytic_profile(gpu("a100-40gb"), model("opt-13b"), block_sizes=(1, 16)).with_overhead(0.003)
    samples = tuple(
        Sample(term, 0 if term in ("linear", "head", "write", "overhead") else 16, size, 0, 1e-3 * size)
        for term in plain.terms.names()
        for size in (1, 8)
    )
    measured = plain.model_copy(
        update={"name": "mine", "kind": "measured", "samples": samples, "held_out": (3,)}
    )
    bundled = find_profile("opt-13b-a100-40gb-rescaled", model=model("opt-13b"))

    def read(folder: Path) -> None:
        from pagesim.cli import show_profile

        found = find_profile(str(folder / "p.json"), model=model("opt-13b"))
        show_profile.terms(found)
        cost = Profiled(found, model("opt-13b"), block_size=16, kv_dtype=found.kv_dtype, tp=found.tp)
        for shape in SHAPES:
            assert cost.iteration(shape) >= 0
        first, increment, steps = cost.decode(8, 900)
        assert first > 0
        assert increment >= 0
        assert steps > 0

    return [
        Target(f"profile: {name}", {"p.json": each.model_dump_json(by_alias=True, indent=1).encode()},
               ("p.json",), read)
        for name, each in (("analytic", plain), ("measured", measured), ("bundled", bundled))
    ]  # fmt: skip


def _layer_files() -> list[Target]:
    toml = (TESTS / "golden" / "layouts" / "nemotron-h-8b.toml").read_bytes()

    def read(folder: Path) -> None:
        (name,) = (file.name for file in folder.iterdir())
        spec = model(str(folder / name))
        for tp in (1, 2):
            plan = plan_blocks(
                spec.cache_layers,
                max_model_len=spec.max_model_len,
                in_flight_tokens=4096,
                num_blocks=100,
                tp=tp,
            )
            assert sum(len(group.layers) for group in plan.groups) == len(spec.cache_layers)
            assert 0 <= plan.longest <= spec.max_model_len

    return [
        Target("layers: TOML", {"m.toml": toml}, ("m.toml",), read),
        Target(
            "layers: JSON", {"m.json": json.dumps(tomllib.loads(toml.decode())).encode()}, ("m.json",), read
        ),
    ]


def _models() -> list[Target]:
    configs = of_tests("models/test_huggingface")
    plain = {name: getattr(configs, name) for name in ("LLAMA_3_8B", "OPT_350M", "QWEN3_4B", "DEEPSEEK_V3")}

    released = {config["model_type"]: config for config in map(rows.config_of, rows.names())}

    def read(folder: Path) -> None:
        file = str(folder / "config.json")
        spec = model(file)
        assert spec.parameters >= spec.active_parameters > 0
        assert spec.linear_flops_per_token > 0
        for values in (
            {},
            {"tensor_parallel_size": 8, "sizing": "vllm"},
            {"num_blocks": 500, "cost": "roofline"},
        ):
            try:
                check_system(System(model=file, **values))
            except ps.PagesimError as error:
                one_line(error)

    return [
        Target(f"config.json: {name}", {"config.json": json.dumps(config, indent=1).encode()},
               ("config.json",), read)
        for name, config in (plain | released).items()
    ]  # fmt: skip
