"""Models of families beside a table that the classes and the planner of vLLM 0.33.0 made of their configs.

The engine was told that it runs on the GPU of the row, as for the table of released models. Configs are those
that releases have, as far as they are known.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from pagesim.hardware import gpu
from pagesim.models import from_hf_config
from pagesim.models.parameters import VOCAB_STEP
from pagesim.sizing.division import expert_padding
from tests.golden.test_open_models import GPUS, planned, told

ROWS = list(csv.DictReader(Path(__file__).with_name("engine_plans.csv").read_text().splitlines()))


@pytest.mark.parametrize("name", dict.fromkeys(row["name"] for row in ROWS))
def test_blocks_parameters_and_weights_are_those_of_the_engine(name: str) -> None:
    for row in [row for row in ROWS if row["name"] == name]:
        spec, tp = from_hf_config(json.loads(row["config"])), int(row["tp"])
        assert spec.weights_are == "exact"
        where = (row["gpu"], row["tp"], row["kv_dtype_flag"])
        assert planned(row, spec) == told(row), where
        on = gpu(GPUS.get(row["gpu"], row["gpu"]))
        padding = expert_padding(spec, on, tp, range(spec.layers))
        assert spec.weight_bytes_per_gpu(tp) + padding == int(row["weight_bytes"]), where
        if row["parameters"]:  # of which the engine counts the rows that pad the vocabulary
            more = -spec.vocab % VOCAB_STEP * spec.hidden * (1 if spec.tied else 2)
            assert spec.parameters + more == int(row["parameters"])
