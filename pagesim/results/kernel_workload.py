"""Kernel workload: batches of stored runs as files for benchmarking attention kernels.

A folder has ``batches.jsonl`` with one line per batch, and the tensors as safetensors under ``tensors/``.
Batches that FlashInfer supports are also written to ``workloads/gqa_paged/`` in its own schema
(bench.flashinfer.ai, "Workload"). There, a batch's decoding sequences and its other sequences are separate
lines, each in the file of its definition. Paths are relative to the folder.
"""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pagesim.errors import PagesimError
from pagesim.models import ModelSpec, model
from pagesim.results.block_tables import KernelBatch, batches_of
from pagesim.results.replay import NotReplayed
from pagesim.results.result import Result
from pagesim.setup.files import publish

Tensors = dict[str, npt.NDArray[Any]]


def export_workload(results: Mapping[str, Result], folder: Path, count: int) -> dict[str, int]:
    """Write the batches of stored runs at ``count`` instants each; return the number of batches per run.

    Args:
        results: results as returned by `pagesim.load`, by the name under which their batches are written.
        folder: folder to write, replacing an older workload.
        count: instants per run, evenly spaced from its start to its last token.

    Raises:
        PagesimError: safetensors is missing, or a run cannot be replayed or has no numbered blocks.
    """
    try:
        from safetensors.numpy import save_file
    except ImportError:
        raise PagesimError("block tables are stored as safetensors; pip install safetensors") from None
    lines: list[dict[str, Any]] = []
    flashinfer: dict[str, list[dict[str, Any]]] = {}
    stored: dict[str, Tensors] = {}
    for name, result in results.items():
        system = result.scenario
        spec, degree = model(system.model), system.tensor_parallel_size
        try:
            batches = batches_of(result, count)
        except NotReplayed as why:
            raise PagesimError(f"{name}: {why}") from None
        for batch in batches:
            file = f"tensors/{name}-{batch.iteration:07d}.safetensors"
            parts = {part: _paged(batch, rows) for part, rows in _parts(batch)}
            stored[file] = _tensors(batch) | {
                f"{part}.{key}": tensor for part, tensors in parts.items() for key, tensor in tensors.items()
            }
            lines.append(_line(name, system.policy, spec, degree, batch) | {"file": file})
            if spec.mla is None:
                for part, tensors in parts.items():
                    definition = _definition(part, spec, degree, batch.block_size)
                    workload = _workload(part, tensors, spec, batch, f"./{file}", definition)
                    flashinfer.setdefault(definition, []).append(workload)

    def write(draft: Path) -> None:
        (draft / "tensors").mkdir()
        for file, tensors in stored.items():
            save_file(tensors, draft / file)
        _put_lines(draft / "batches.jsonl", lines)
        (draft / "workloads" / "gqa_paged").mkdir(parents=True)
        for definition, workloads in flashinfer.items():
            _put_lines(draft / "workloads" / "gqa_paged" / f"{definition}.jsonl", workloads)

    publish(folder, write, "workload")
    return {name: sum(line["run"] == name for line in lines) for name in results}


def _put_lines(file: Path, lines: list[dict[str, Any]]) -> None:
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def _line(name: str, policy: str, spec: ModelSpec, degree: int, batch: KernelBatch) -> dict[str, Any]:
    """Return a batch's line in ``batches.jsonl``, with the heads of one GPU."""
    return {
        "run": name,
        "policy": policy,
        "model": spec.name,
        "heads": spec.heads // degree,
        "kv_heads": spec.kv_heads_per_gpu(degree),
        "head_dim": spec.head_dim,
        "iteration": batch.iteration,
        "clock_s": batch.clock_s,
        "block_size": batch.block_size,
        "num_blocks": batch.num_blocks,
        "sequences": len(batch.seq_lens),
        "decodes": batch.decodes,
        "new_tokens": len(batch.slot_mapping),
        "context_tokens": int(batch.seq_lens.sum()),
    }


def _tensors(batch: KernelBatch) -> Tensors:
    names = ("block_tables", "seq_lens", "query_lens", "slot_mapping", "shared_prefix_lens")
    return {name: getattr(batch, name) for name in names}


def _parts(batch: KernelBatch) -> Iterator[tuple[str, slice]]:
    """Yield the rows of a batch that FlashInfer calls decode and those that it calls prefill."""
    if batch.decodes:
        yield "decode", slice(0, batch.decodes)
    if batch.decodes < len(batch.seq_lens):
        yield "prefill", slice(batch.decodes, None)


def _paged(batch: KernelBatch, rows: slice) -> Tensors:
    """Return sequences' tables in FlashInfer's form: concatenated page indices and each table's start."""
    lengths, size = batch.seq_lens[rows], batch.block_size
    pages = -(-lengths // size)
    tables = batch.block_tables[rows]
    return {
        "kv_indptr": _starts(pages),
        "kv_indices": tables[np.arange(tables.shape[1]) < pages[:, None]],
        "kv_last_page_len": (lengths - (pages - 1) * size).astype(np.int32),
        "qo_indptr": _starts(batch.query_lens[rows]),
    }


def _starts(lengths: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)


def _definition(part: str, spec: ModelSpec, degree: int, block_size: int) -> str:
    """Return the name of FlashInfer's definition of an operator."""
    shape = f"h{spec.heads // degree}_kv{spec.kv_heads_per_gpu(degree)}_d{spec.head_dim}_ps{block_size}"
    return f"gqa_paged_{'decode' if part == 'decode' else 'prefill_causal'}_{shape}"


def _workload(
    part: str, tensors: Tensors, spec: ModelSpec, batch: KernelBatch, file: str, definition: str
) -> dict[str, Any]:
    """Return a line of a FlashInfer trace: the axes of its definition and the sources of its inputs."""
    axes = {
        "num_pages": batch.num_blocks,
        "len_indptr": len(tensors["kv_indptr"]),
        "num_kv_indices": len(tensors["kv_indices"]),
    }
    names = ["kv_indptr", "kv_indices", "kv_last_page_len"]
    if part == "decode":
        axes["batch_size"] = len(tensors["kv_indptr"]) - 1
    else:
        axes["total_q"] = int(tensors["qo_indptr"][-1])
        names.insert(0, "qo_indptr")
    stored = {name: {"type": "safetensors", "path": file, "tensor_key": f"{part}.{name}"} for name in names}
    scale = {"type": "scalar", "value": 1 / math.sqrt(spec.head_dim)}
    random = {name: {"type": "random"} for name in ("q", "k_cache", "v_cache")}
    return {
        "definition": definition,
        "solution": None,
        "workload": {
            "uuid": str(uuid.uuid5(uuid.NAMESPACE_URL, f"{file}#{part}")),
            "axes": axes,
            "inputs": {**random, **stored, "sm_scale": scale},
        },
        "evaluation": None,
    }
