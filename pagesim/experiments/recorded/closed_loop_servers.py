"""How the servers of a table of closed loops were started, which the table itself does not say.

Most of its runs are InferenceX's (SemiAnalysisAI/InferenceX, InferenceMAX before), whose scripts and
changelog are public: flags of `vllm serve`, lengths from 0.8 to 1.0 of those named, ten requests a client
after a warm-up. Those of Qwen3 and of an FP8 Llama-3.1-8B are NVIDIA's own, with lengths ±20 %.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any

from pydantic import PlainValidator

from pagesim.experiments.recorded.layout import FileLayout, number

INFERENCEX = ("Llama-3.1-70B", "gpt-oss", "MiniMax-M2", "Kimi-K2", "DeepSeek-R1", "GLM-5", "Qwen3.5")
"""How the names of models begin that InferenceX runs."""

SPREADS = {"Qwen3-32B": (0.8, 1.2)}
"""Of lengths, as shares of ``isl`` and ``osl``, of others' runs, by the model's name."""

BLACKWELL = ("b200", "b300", "gb200", "gb300")

UNLIMITED = 1024
"""Sequences of a batch where a script leaves them to vLLM, which takes so many on GPUs of 70 GiB and more."""

OF_ANY_BATCH = 512
"""Requests that InferenceMAX's script for gpt-oss on H100s sent at a time in December 2025, for any batch."""


_Whole = Annotated[float, PlainValidator(number(1, 10_000_000, whole=True, cell=True))]
_Milliseconds = Annotated[float, PlainValidator(number(0, 1e9, cell=True))]


class TableRow(FileLayout):
    """A row of the table; ``dtype`` is of the products, an empty ``release`` is not known."""

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
        """The model's name, without whose it is."""
        return self.model.rsplit("/", 1)[-1]

    @property
    def gpu(self) -> str:
        """The GPU's name."""
        return self.system.removesuffix("_sxm")

    @property
    def since(self) -> tuple[int, ...]:
        """First two numbers of the release of vLLM; empty where it is not known."""
        return tuple(int(part) for part in self.release.split(".")[:2] if part.isdecimal())


def spread(model: str) -> tuple[float, float]:
    """Return between which shares of ``isl`` and ``osl`` lengths of a model's requests were drawn."""
    if model.startswith(INFERENCEX):
        return 0.8, 1.0
    return SPREADS.get(model, (1.0, 1.0))


def settings(row: TableRow) -> Mapping[str, Any]:
    """Return the settings of a run's server, as far as its script says them.

    Fields of `System`, None for one that only the script's own arguments said; ``expert_parallel_size``; and
    ``moe_backend``, the kernel of experts, where a script chooses it.
    """
    for begins, of in _SCRIPTS.items():
        if row.name.startswith(begins):
            return of(row)
    return {}


def _llama_70b(row: TableRow) -> dict[str, Any]:
    found: dict[str, Any] = {"kv_cache_dtype": "fp8", "max_num_batched_tokens": 8192}
    found["gpu_memory_utilization"] = 0.9
    if row.gpu in BLACKWELL:
        # Graphs of decoding alone.
        found |= {"max_num_seqs": 512, "max_cudagraph_capture_size": 0}
    else:
        found["async_scheduling"] = True
    return found


def _gpt_oss(row: TableRow) -> dict[str, Any]:
    found: dict[str, Any] = {"max_num_batched_tokens": 8192, "gpu_memory_utilization": 0.9}
    found["max_cudagraph_capture_size"] = 2048
    if row.gpu in BLACKWELL:
        # VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8; the cache is fp8 since they went over to 0.11.2.
        found |= {"weight_dtype": "mxfp4_mxfp8", "max_num_seqs": 512}
        found |= {"kv_cache_dtype": "fp8"} if row.since >= (0, 11) else {}
    elif row.concurrency == OF_ANY_BATCH:
        # Ten requests a sequence of the batch came at once: the first token waits for 4.5 others in the mean.
        found["max_num_seqs"] = None
    return found


def _minimax(row: TableRow) -> dict[str, Any]:
    if row.dtype == "nvfp4":
        # The checkpoint asks for a cache in fp8; the nightly release ran with vLLM's own budget.
        found: dict[str, Any] = {"kv_cache_dtype": "fp8", "gpu_memory_utilization": 0.9}
        return found | (_tuned(row) if row.since else {})
    if row.gpu in BLACKWELL and row.since >= (0, 19):
        return {"kv_cache_dtype": "fp8", "gpu_memory_utilization": 0.9, "block_size": 32, **_tuned(row)}
    # The script asks for expert parallelism whenever the degree is 1 or more.
    found = {"gpu_memory_utilization": 0.95, "max_num_seqs": UNLIMITED, "expert_parallel_size": int(row.tp)}
    if row.gpu in BLACKWELL:
        # VLLM_USE_FLASHINFER_MOE_FP8 and VLLM_MOE_USE_DEEP_GEMM are 0: Triton's kernel is left.
        found |= {"block_size": 32, "moe_backend": "triton"}
    return found


def _kimi(row: TableRow) -> dict[str, Any]:
    if row.dtype != "nvfp4":
        return {}
    # Of the first script the table says 4 GPUs of expert parallelism, which it does not ask for.
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
"""By how the names of models begin."""
