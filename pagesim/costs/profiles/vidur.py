"""Import of operator timings in Vidur's schema: CSV files of medians in milliseconds for one layer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pagesim.costs.profiles.analytic import analytic_profile
from pagesim.costs.profiles.columns import MOST_MS, counts, flags, numbers, one, read
from pagesim.costs.profiles.fitting import fit_terms
from pagesim.costs.profiles.profile import ANY_BLOCK, Origin, Profile, Shape, Terms
from pagesim.costs.profiles.rescale import LAUNCH_S
from pagesim.costs.profiles.samples import BLOCK_CURVES, Sample
from pagesim.errors import PagesimError
from pagesim.hardware import GpuSpec
from pagesim.models import ALL_REDUCES_PER_LAYER, ModelSpec

if TYPE_CHECKING:
    import pandas as pd

LAYER = (
    "input_layernorm",
    "attn_pre_proj",
    "attn_rope",
    "attn_post_proj",
    "post_attention_layernorm",
    "mlp_up_proj",
    "mlp_act",
    "mlp_down_proj",
    "add",
)
"""A layer's operators besides attention, by their names in the linear file's columns."""


def import_vidur(
    linear: Path | None,
    attention: Path,
    all_reduce: Path | None = None,
    *,
    model: ModelSpec,
    gpu: GpuSpec,
    tp: int = 1,
    name: str,
    source: str,
    any_block: bool = False,
) -> Profile:
    """Return a profile of operators timed by others, at the block size at which they were timed.

    What these files do not hold (LM head, copies, swaps) comes from the GPU's datasheet, and the profile says
    so. Overhead is the run's engine's. The samples are not stored, as they belong to their authors. If
    ``tp`` was not timed, attention is derived from one GPU's: one launch per layer stays, and the rest is
    divided by ``tp``.

    Args:
        linear: timings of linear layers, norms and embedding over tokens and degrees of parallelism.
        attention: timings of prefill and paged decode over batch and KV length.
        all_reduce: timings over bytes and workers; needed if ``tp`` is above 1, unless ``any_block``.
        model: the model that was measured.
        gpu: the GPU it was measured on.
        tp: tensor parallel degree whose rows are used.
        name: name of the profile.
        source: authors of the measurements.
        any_block: whether attention is used for any block size, as with Frontier's files; the datasheet
            then replaces other files that are left out.

    Raises:
        PagesimError: a needed file is missing or unreadable, lacks a column, or has no row of this model.
    """
    if tp > 1 and all_reduce is None and not any_block:
        raise PagesimError(f"tp is {tp}; a file of all-reduces is needed")
    if linear is None and not any_block:
        raise PagesimError("linear is left out; a file of linear layers is needed")
    notes: list[str] = []
    rows = read(attention)
    block_size = one(rows, "block_size", attention)
    samples = [*attention_samples(rows, attention, model, tp, block_size, notes)]
    wanted = dict.fromkeys(("prefill", "decode", "write"), attention)
    if linear is not None:
        samples += linear_samples(read(linear), linear, model, tp)
        wanted["linear"] = linear
    if all_reduce is not None and tp > 1:
        samples += all_reduce_samples(read(all_reduce), all_reduce, model, tp, notes)
    for term, file in wanted.items():
        if not any(sample.term == term for sample in samples):
            raise PagesimError(f"{file}: holds no row of {term} for tp {tp} that took a time above 0")
    fit, at = fit_terms(samples), ANY_BLOCK if any_block else block_size
    fitted: dict[str, Any] = {
        term: {at: each[block_size]} if isinstance(each, dict) else each for term, each in fit.terms.items()
    }
    size = at or 1
    rest = analytic_profile(gpu, model, tp=tp, block_sizes=(size,)).terms
    moves: dict[str, Any] = {term: {at: rest.whole(term)[size]} for term in BLOCK_CURVES}
    of_datasheet = {"linear": rest.linear, "head": rest.head, "all_reduce": rest.all_reduce, **moves}
    terms = Terms(**{**of_datasheet, **fitted})
    origins: dict[str, Origin] = {
        term: "imported" if term in fitted else "datasheet" for term in terms.names()
    }
    others = ", ".join(term for term, origin in origins.items() if origin == "datasheet")
    blocks = (
        f"attention was timed with blocks of {block_size} tokens, and is taken for that of any"
        if any_block
        else f"the block size is {at}; no other was measured"
    )
    return Profile(
        name=name,
        kind="imported",
        sentence=f"{model.name} on {gpu.name}, operators timed by others ({source})",
        model=Shape.of(model),
        tp=tp,
        gpu=gpu.name,
        terms=terms,
        origins=origins,
        ranges=fit.ranges,
        errors=fit.errors,
        machine={"gpu": gpu.name, "source": source},
        notes=(
            blocks,
            f"not measured, but the datasheet's: {others}; the engine's own time is that of the run's engine",
            "cache writes are those of decoding: prompts' writes are taken to cost as much a token",
            *notes,
        ),
    )


def linear_samples(rows: pd.DataFrame, file: Path, model: ModelSpec, tp: int) -> Iterator[Sample]:
    """Yield the samples of a model's layers without attention, plus its embedding, over tokens."""
    rows = _of_model(
        rows, file, {"n_embd": model.hidden, "n_head": model.heads, "n_expanded_embd": model.ffn}
    )
    rows = rows[numbers(rows, "num_tensor_parallel_workers", file) == tp]
    layer = sum(_median(rows, name, file) for name in LAYER)
    seconds = (model.layers * layer + _median(rows, "emb", file)) / 1e3
    for tokens, each in zip(counts(rows, "num_tokens", file), seconds, strict=True):
        if not (tokens and each > 0):
            raise PagesimError(f"{file}: a row of {tokens} tokens took {each} s; both must be above 0")
        yield Sample("linear", 0, tokens, 0, float(each))


def attention_samples(
    rows: pd.DataFrame, file: Path, model: ModelSpec, tp: int, block_size: int, notes: list[str]
) -> Iterator[Sample]:
    """Yield the samples of a model's attention and cache writes; ``notes`` gains what was left out."""
    rows = _of_model(
        rows, file, {"n_embd": model.hidden, "n_q_head": model.heads, "n_kv_head": model.kv_heads}
    )
    measured_tp = numbers(rows, "num_tensor_parallel_workers", file)
    share, launch_s = 1.0, LAUNCH_S * model.layers
    if tp not in set(measured_tp):
        # Heads are divided among GPUs, so each does its share of the work.
        share, tp = 1 / tp, 1
    rows = rows[measured_tp == tp]
    to_s = model.layers / 1e3
    columns = zip(
        flags(rows, "is_prefill", file),
        counts(rows, "batch_size", file),
        counts(rows, "prefill_chunk_size", file),
        counts(rows, "kv_cache_size", file),
        # Each row holds only one of the two kinds of attention.
        _median(rows, "attn_prefill", file, needed=False) * to_s,
        _median(rows, "attn_decode", file, needed=False) * to_s,
        _median(rows, "attn_kv_cache_save", file, needed=False) * to_s,
        strict=True,
    )
    left_out = 0
    for is_prefill, batch, chunk, cached, prefill, decode, write in columns:
        tokens = batch * chunk if is_prefill else batch
        taken = prefill if is_prefill else decode
        # One launch per layer is not divided.
        taken, write = (share * each + (1 - share) * min(launch_s, each) for each in (taken, write))
        if not (tokens and taken > 0):
            left_out += 1
        elif is_prefill:
            pairs = batch * (chunk * cached + chunk * (chunk + 1) // 2)
            yield Sample("prefill", block_size, tokens, pairs, float(taken))
        else:
            yield Sample("decode", block_size, batch, batch * (cached + 1), float(taken))
        # Writes of prompts are left out: in the published rows they take thirty times as long per token.
        if not is_prefill and tokens and write > 0:
            yield Sample("write", 0, tokens, 0, float(write))
    if left_out:
        notes.append(f"{left_out} of {len(rows)} rows of {file.name} hold no attention that took a time")


def all_reduce_samples(
    rows: pd.DataFrame, file: Path, model: ModelSpec, tp: int, notes: list[str]
) -> Iterator[Sample]:
    """Yield the samples of a model's all-reduces over tokens; ``notes`` gains what was left out."""
    workers, nodes = numbers(rows, "num_workers", file), numbers(rows, "devices_per_node", file)
    rows = rows[(workers == tp) & (nodes == min(tp, 8))]
    if rows.empty:
        raise PagesimError(f"{file}: holds no row of {tp} workers")
    times = _median(rows, "all_reduce", file) * (ALL_REDUCES_PER_LAYER * model.layers / 1e3)
    left_out = 0
    for size, seconds in zip(counts(rows, "size", file), times, strict=True):
        tokens = round(size / (2 * model.hidden))
        if tokens and seconds > 0:
            yield Sample("all_reduce", 0, tokens, 0, float(seconds))
        else:
            left_out += 1
    if left_out:
        notes.append(
            f"{left_out} of {len(rows)} rows of {file.name} are of less than a token, or took no time"
        )


def _median(rows: pd.DataFrame, operator: str, file: Path, *, needed: bool = True) -> pd.Series[float]:
    """Return an operator's median milliseconds; NaN where they are missing and not needed."""
    return numbers(rows, f"time_stats.{operator}.median", file, MOST_MS, needed=needed)


def _of_model(rows: pd.DataFrame, file: Path, shape: dict[str, int]) -> pd.DataFrame:
    for name, wanted in shape.items():
        rows = rows[numbers(rows, name, file) == wanted]
        if rows.empty:
            raise PagesimError(f"{file}: holds no row with {name} {wanted}, as the model has it")
    return rows
