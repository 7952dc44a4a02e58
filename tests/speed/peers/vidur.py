"""Vidur: https://github.com/microsoft/vidur, its README and the flags of ``python -m vidur.main --help``."""

from __future__ import annotations

import csv
from pathlib import Path

from peers import Call, Load

_PREDICTOR = "random_forrest_execution_time_predictor_config_prediction"  # as it is spelt there


class Vidur:
    """A checkout of Vidur whose environment has a Python of its own.

    Args:
        checkout: its folder, from which it reads its profiles.
        python: of its environment.
        model: one that it has profiles of, such as ``meta-llama/Meta-Llama-3-8B``.
        device: likewise, such as ``a100`` or ``h100``.
    """

    name = "vidur"

    def __init__(self, checkout: Path, python: str, model: str, device: str) -> None:
        self.checkout = checkout
        self.python = python
        self.model = model
        self.device = device

    def prepare(self, load: Load, folder: Path) -> Call:
        trace = folder / "vidur.csv"
        with trace.open("w", newline="", encoding="utf-8") as out:
            rows = csv.writer(out)
            rows.writerow(["arrived_at", "num_prefill_tokens", "num_decode_tokens"])
            columns = (load.arrival_s, load.prompt_tokens, load.output_tokens)
            rows.writerows(zip(*[column.tolist() for column in columns], strict=True))
        options = {
            "replica_config_model_name": self.model,
            "replica_config_device": self.device,
            "replica_config_tensor_parallel_size": 1,
            "replica_config_num_pipeline_stages": 1,
            "cluster_config_num_replicas": 1,
            "request_generator_config_type": "trace_replay",
            "trace_request_generator_config_trace_file": trace,
            "trace_request_generator_config_prefill_scale_factor": 1,
            "trace_request_generator_config_decode_scale_factor": 1,
            "trace_request_generator_config_time_scale_factor": 1,
            "trace_request_generator_config_max_tokens": load.longest,
            "replica_scheduler_config_type": "vllm",
            "vllm_scheduler_config_num_blocks": load.num_blocks,
            "vllm_scheduler_config_block_size": load.block_size,
            "vllm_scheduler_config_batch_size_cap": load.max_num_seqs,
            "vllm_scheduler_config_max_tokens_in_batch": load.max_num_batched_tokens,
            f"{_PREDICTOR}_max_batch_size": load.max_num_seqs,
            f"{_PREDICTOR}_max_tokens_per_request": load.longest,
            "metrics_config_output_dir": folder / "vidur",
        }
        given = [text for name, value in options.items() for text in (f"--{name}", str(value))]
        # Its figures and its time line are not what is measured.
        without = [f"--no-metrics_config_{name}" for name in ("store_plots", "enable_chrome_trace")]
        return Call([self.python, "-m", "vidur.main", *given, *without], self.checkout)

    def finished(self, folder: Path) -> int | None:
        tables = sorted((folder / "vidur").rglob("request_metrics.csv"))
        if not tables:
            return None
        with tables[-1].open(encoding="utf-8") as table:
            return sum(1 for _ in csv.DictReader(table))
