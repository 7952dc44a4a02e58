"""Start-up settings of the servers in a closed-loop table, which the table itself lacks.

Most runs are from InferenceX (SemiAnalysisAI/InferenceX, formerly InferenceMAX), whose scripts and changelog
are public: flags of `vllm serve`, lengths from 0.8 to 1.0 of the nominal ones, and ten requests per client
after a warm-up. Those of Qwen3 and of an FP8 Llama-3.1-8B are NVIDIA's own, with lengths ±20 %.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any

from pydantic import PlainValidator

from pagesim.experiments.recorded.layout import FileLayout, number

INFERENCEX = ("Llama-3.1-70B", "gpt-oss", "MiniMax-M2", "Kimi-K2", "DeepSeek-R1", "GLM-5", "Qwen3.5")
"""Prefixes of the names of models that InferenceX runs."""

SPREADS = {"Qwen3-32B": (0.8, 1.2)}
"""Range of lengths in other runs, as shares of ``isl`` and ``osl``, by the model's name."""

BLACKWELL = ("b200", "b300", "gb200", "gb300")

UNLIMITED = 1024
"""Sequences per batch if a script leaves it to vLLM, which allows this many on GPUs of 70 GiB or more."""

OF_ANY_BATCH = 512
"""Concurrency of InferenceMAX's script for gpt-oss on H100s in December 2025, for any batch size."""


_Whole = Annotated[float, PlainValidator(number(1, 10_000_000, whole=True, cell=True))]
_Milliseconds = Annotated[float, PlainValidator(number(0, 1e9, cell=True))]


class TableRow(FileLayout):
    """A row of the table; ``dtype`` is that of matrix products, and an empty ``release`` is unknown."""

    model: str
    system: str
    dtype: str
    release: str
    isl: _Whole
    osl: _Whole
    concurrency: Annotated[float, PlainValidator(number(1, 10_000, whole=True, cell=True))]
    tp: _Whole
    ep: Annotated[float, PlainValidator(number(0, 10_000, whole=True, cell=True))] = 1.0
    ttft_ms: _Milliseconds
    tpot_ms: _Milliseconds
    note: str | None = None

    @property
    def name(self) -> str:
        """The model's name, without its publisher."""
        return self.model.rsplit("/", 1)[-1]

    @property
    def gpu(self) -> str:
        """The GPU's name."""
        return self.system.removesuffix("_sxm")

    @property
    def since(self) -> tuple[int, ...]:
        """First two numbers of vLLM's release; empty if it is unknown."""
        return tuple(int(part) for part in self.release.split(".")[:2] if part.isdecimal())


def spread(model: str) -> tuple[float, float]:
    """Return the range of a model's request lengths, as shares of ``isl`` and ``osl``."""
    if model.startswith(INFERENCEX):
        return 0.8, 1.0
    return SPREADS.get(model, (1.0, 1.0))


def settings(row: TableRow) -> Mapping[str, Any]:
    """Return the settings of a run's server, as far as its script states them.

    They are fields of `System` (None for one that only the script's arguments set), ``expert_parallel_size``,
    and ``moe_backend``, the MoE kernel, if a script chooses it.
    """
    for begins, of in _SCRIPTS.items():
        if row.name.startswith(begins):
            return of(row)
    return {}


def _llama_70b(row: TableRow) -> dict[str, Any]:
    found: dict[str, Any] = {"kv_cache_dtype": "fp8", "max_num_batched_tokens": 8192}
    found["gpu_memory_utilization"] = 0.9
    if row.gpu in BLACKWELL:
        # CUDA graphs for decode only.
        found |= {"max_num_seqs": 512, "max_cudagraph_capture_size": 0}
    else:
        found["async_scheduling"] = True
    return found


def _gpt_oss(row: TableRow) -> dict[str, Any]:
    found: dict[str, Any] = {"max_num_batched_tokens": 8192, "gpu_memory_utilization": 0.9}
    found["max_cudagraph_capture_size"] = 2048
    if row.gpu in BLACKWELL:
        # VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8; the cache is fp8 since the change to 0.11.2.
        found |= {"weight_dtype": "mxfp4_mxfp8", "max_num_seqs": 512}
        found |= {"kv_cache_dtype": "fp8"} if row.since >= (0, 11) else {}
    elif row.concurrency == OF_ANY_BATCH:
        # Ten requests per sequence of the batch arrived at once: a first token waits for 4.5 others (mean).
        found["max_num_seqs"] = None
    return found


def _minimax(row: TableRow) -> dict[str, Any]:
    if row.dtype == "nvfp4":
        # The checkpoint asks for an fp8 cache; the nightly release ran with vLLM's default token budget.
        found: dict[str, Any] = {"kv_cache_dtype": "fp8", "gpu_memory_utilization": 0.9}
        return found | (_tuned(row) if row.since else {})
    if row.gpu in BLACKWELL and row.since >= (0, 19):
        return {"kv_cache_dtype": "fp8", "gpu_memory_utilization": 0.9, "block_size": 32, **_tuned(row)}
    # The script asks for expert parallelism whenever the degree is 1 or more.
    found = {"gpu_memory_utilization": 0.95, "max_num_seqs": UNLIMITED, "expert_parallel_size": int(row.tp)}
    if row.gpu in BLACKWELL:
        # VLLM_USE_FLASHINFER_MOE_FP8 and VLLM_MOE_USE_DEEP_GEMM are 0, which leaves Triton's kernel.
        found |= {"block_size": 32, "moe_backend": "triton"}
    return found


def _kimi(row: TableRow) -> dict[str, Any]:
    if row.dtype != "nvfp4":
        return {}
    # For the first script the table lists expert parallelism over 4 GPUs, which the script does not ask for.
    first = row.ep > 1
    found: dict[str, Any] = {
        "kv_cache_dtype": "fp8",
        "gpu_memory_utilization": 0.9,
        "expert_parallel_size": 1,
    }
    if not first:
        found |= {"max_num_batched_tokens": 2 * int(row.isl), "max_cudagraph_capture_size": 2048}
    return found


def _tuned(row: TableRow) -> dict[str, Any]:
    return {
        "max_num_batched_tokens": 2 * int(row.isl),
        "max_num_seqs": UNLIMITED,
        "max_cudagraph_capture_size": 2048,
    }


_SCRIPTS: dict[str, Callable[[TableRow], dict[str, Any]]] = {
    "Llama-3.1-70B": _llama_70b,
    "gpt-oss": _gpt_oss,
    "MiniMax-M2.5": _minimax,
    "Kimi-K2.5": _kimi,
}
"""Settings by the prefix of a model's name."""
