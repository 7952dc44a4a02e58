"""Import of operator timings in Vidur's schema: CSV files of medians in milliseconds, one layer each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pagesim.errors import PagesimError
from pagesim.profiles.analytic import analytic_profile
from pagesim.profiles.fit import fit_terms
from pagesim.profiles.profile import Profile, Shape, Terms
from pagesim.profiles.samples import Sample
from pagesim.specs import ALL_REDUCES_PER_LAYER, GpuSpec, ModelSpec

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
"""What a layer computes besides attention, as the linear file's columns call it."""


def import_vidur(
    linear: Path,
    attention: Path,
    all_reduce: Path | None = None,
    *,
    model: ModelSpec,
    gpu: GpuSpec,
    tp: int = 1,
    name: str,
    source: str,
) -> Profile:
    """Return a profile that rests on operators timed by others.

    What these files do not hold (LM head, copies, swaps, the engine's overhead) comes from the GPU's
    datasheet, and the profile says so. The samples are not kept in it: they are somebody else's.

    Args:
        linear: timings of linear layers, norms and embedding over tokens and degrees of parallelism.
        attention: timings of prefill and paged decode over batch and KV length.
        all_reduce: timings over bytes and workers; needed where ``tp`` is above 1.
        model: the one that was measured.
        gpu: what it was measured on.
        tp: whose rows are taken.
        name: of the profile.
        source: whose measurements they are.

    Raises:
        PagesimError: a file cannot be read, lacks a column, or holds no row of this model.
    """
    samples = [*_linear(_read(linear), linear, model, tp)]
    attention_rows = _read(attention)
    block_size = _one(attention_rows, "block_size", attention)
    samples += _attention(attention_rows, attention, model, tp, block_size)
    if tp > 1:
        if all_reduce is None:
            raise PagesimError(f"tp is {tp}; a file of all-reduces is needed")
        samples += _all_reduces(_read(all_reduce), all_reduce, model, tp)
    fit = fit_terms(samples, model.kv_heads_per_gpu(tp))
    rest = analytic_profile(gpu, model, tp=tp, block_sizes=(block_size,))
    missing = ("head", "copy", "swap_out", "swap_in", "overhead")
    terms = Terms(**{term: rest.terms.whole(term) for term in missing}, **fit.terms)
    return Profile(
        name=name,
        kind="imported",
        sentence=f"{model.name} on {gpu.name}, operators timed by others ({source})",
        model=Shape.of(model),
        tp=tp,
        gpu=gpu.name,
        terms=terms,
        origins={term: "imported" if term in fit.terms else "datasheet" for term in terms.names()},
        ranges=fit.ranges,
        errors=fit.errors,
        machine={"gpu": gpu.name, "source": source},
        notes=(
            f"the block size is {block_size}; no other was measured",
            "swaps, copies, LM head and the engine's overhead were not measured: they are the datasheet's",
            "cache writes are those of decoding: prompts' writes are taken to cost as much a token",
        ),
    )


def _linear(rows: pd.DataFrame, file: Path, model: ModelSpec, tp: int) -> Iterator[Sample]:
    rows = _of_model(
        rows, file, {"n_embd": model.hidden, "n_head": model.heads, "n_expanded_embd": model.ffn}
    )
    rows = rows[rows[_column(rows, "num_tensor_parallel_workers", file)] == tp]
    layer = sum(_median(rows, name, file) for name in LAYER)
    seconds = (model.layers * layer + _median(rows, "emb", file)) / 1e3
    for tokens, each in zip(rows["num_tokens"], seconds, strict=True):
        yield Sample("linear", 0, int(tokens), 0, float(each))


def _attention(
    rows: pd.DataFrame, file: Path, model: ModelSpec, tp: int, block_size: int
) -> Iterator[Sample]:
    rows = _of_model(
        rows, file, {"n_embd": model.hidden, "n_q_head": model.heads, "n_kv_head": model.kv_heads}
    )
    measured_tp = rows[_column(rows, "num_tensor_parallel_workers", file)]
    share = 1.0
    if tp not in set(measured_tp):
        # Heads are divided among GPUs, and each has its share of the work.
        share, tp = 1 / tp, 1
    rows = rows[measured_tp == tp]
    to_s = model.layers * share / 1e3
    columns = zip(
        rows["is_prefill"],
        rows["batch_size"],
        rows["prefill_chunk_size"],
        rows["kv_cache_size"],
        _median(rows, "attn_prefill", file) * to_s,
        _median(rows, "attn_decode", file) * to_s,
        _median(rows, "attn_kv_cache_save", file) * to_s,
        strict=True,
    )
    for is_prefill, batch, chunk, cached, prefill, decode, write in columns:
        tokens = int(batch) * int(chunk) if is_prefill else int(batch)
        if is_prefill and prefill > 0:
            pairs = int(batch) * int(chunk * cached + chunk * (chunk + 1) // 2)
            yield Sample("prefill", block_size, tokens, pairs, float(prefill))
        elif not is_prefill and decode > 0:
            yield Sample("decode", block_size, int(batch), int(batch) * (int(cached) + 1), float(decode))
        # Prompts' writes are left out: in the published rows they take thirty times as long a token.
        if not is_prefill and write > 0:
            yield Sample("write", 0, tokens, 0, float(write))


def _all_reduces(rows: pd.DataFrame, file: Path, model: ModelSpec, tp: int) -> Iterator[Sample]:
    for name in ("num_workers", "devices_per_node", "size"):
        _column(rows, name, file)
    rows = rows[(rows["num_workers"] == tp) & (rows["devices_per_node"] == min(tp, 8))]
    if rows.empty:
        raise PagesimError(f"{file}: holds no row of {tp} workers")
    times = _median(rows, "all_reduce", file) * (ALL_REDUCES_PER_LAYER * model.layers / 1e3)
    for size, seconds in zip(rows["size"], times, strict=True):
        tokens = round(size / (2 * model.hidden))
        if tokens and seconds > 0:
            yield Sample("all_reduce", 0, tokens, 0, float(seconds))


def _read(file: Path) -> pd.DataFrame:
    import pandas as pd

    try:
        return pd.read_csv(file)
    except OSError as error:
        raise PagesimError(f"{file}: cannot be read ({error.strerror})") from None
    except (ValueError, UnicodeDecodeError) as error:
        raise PagesimError(f"{file}: is no CSV that can be read ({str(error).splitlines()[0]})") from None


def _column(rows: pd.DataFrame, name: str, file: Path) -> str:
    if name not in rows:
        raise PagesimError(f"{file}: has no column {name}; a file in Vidur's schema is needed")
    return name


def _median(rows: pd.DataFrame, operator: str, file: Path) -> pd.Series[float]:
    return rows[_column(rows, f"time_stats.{operator}.median", file)]


def _one(rows: pd.DataFrame, name: str, file: Path) -> int:
    values = sorted(set(rows[_column(rows, name, file)]))
    if len(values) != 1:
        raise PagesimError(f"{file}: {name} is {values}; rows of one are needed")
    return int(values[0])


def _of_model(rows: pd.DataFrame, file: Path, shape: dict[str, int]) -> pd.DataFrame:
    for name, wanted in shape.items():
        rows = rows[rows[_column(rows, name, file)] == wanted]
        if rows.empty:
            raise PagesimError(f"{file}: holds no row with {name} {wanted}, as the model has it")
    return rows
