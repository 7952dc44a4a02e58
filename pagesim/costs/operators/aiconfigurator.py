"""Conversion of AIConfigurator's Parquet files into compact tables."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from pagesim.costs.held_out import TermError, fifths
from pagesim.costs.operators.experts import KERNELS, ROUTINGS
from pagesim.costs.operators.tables import (
    Floats,
    Ints,
    OperatorTable,
    OperatorTables,
    bundled_tables,
    packed,
    version_of,
)
from pagesim.errors import PagesimError
from pagesim.setup.reading import read_parquet

PACKAGE = "aiconfigurator_core"
"""Package that holds the operator tables; its distribution is ``aiconfigurator-core``."""

SYSTEMS = {
    **{"a100_sxm": "a100-80gb", "h100_sxm": "h100", "h200_sxm": "h200", "b200_sxm": "b200"},
    **{"b300_sxm": "b300", "gb200": "gb200", "gb300": "gb300", "l40s": "l40s"},
    "rtx_pro_6000_server": "rtx-pro-6000",
}
"""Catalogue names of the package's systems that have a complete set of vLLM tables."""

SHARED = ("flashinfer_trtllm", "flashinfer_cutlass")
"""Library kernels that several engines call: SGLang's tables of them fill gaps in vLLM's."""

FEWEST = 8
"""Least number of timed sizes for which a shape of experts is used."""

COVERED, FEW = 0.5, 0.1
"""Conditions for using a grid of GEMMs: the least measured fraction of its points, and its least size as a
fraction of the largest grid."""

HOST_LAUNCH_S, SMALL = 20e-6, 512
"""GEMMs with n and k up to `SMALL` and m up to 64 take microseconds on the device. A kernel that takes longer
than this for them was timed with single launches by the host."""

_VERSION = re.compile(r"\d+(\.\d+)*")


class Layout(NamedTuple):
    """How one kind of Parquet file is converted into tables.

    Attributes:
        family: family of the tables.
        folder, file: location of the files: ``data/SYSTEM/folder/ENGINE/VERSION/file.parquet``.
        names: text columns whose values name the tables.
        keys: integer columns that identify a row.
        axes: columns of sizes.
    """

    family: str
    folder: str
    file: str
    names: tuple[str, ...]
    keys: tuple[str, ...]
    axes: tuple[str, ...]


_HEADS = ("num_heads", "num_key_value_heads", "head_dim", "window_size")
_EXPERTS = ("hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size", "routing")
_NETS = ("d_model", "num_k_heads", "num_v_heads")
_MODULE = ("gemm_type", "kv_cache_dtype")

_DECODING, _LENGTHS = ("batch_size", "context"), ("batch_size", "isl")

LAYOUTS = (
    Layout("gemm", "gemm", "gemm_perf", ("gemm_dtype",), (), ("n", "k", "m")),
    Layout("decode", "attention", "generation_attention_perf", ("kv_cache_dtype",), _HEADS, _DECODING),
    Layout("prompts", "attention", "context_attention_perf", ("kv_cache_dtype",), _HEADS, _LENGTHS),
    Layout("all_reduce", "comm", "custom_allreduce_perf", ("backend",), ("num_gpus",), ("message_size",)),
    Layout("experts", "moe", "moe_perf", ("moe_dtype", "kernel"), _EXPERTS, ("num_tokens",)),
    Layout("latent decode", "mla", "mla_generation_module_perf", _MODULE, ("num_heads",), _DECODING),
    Layout("latent prompts", "mla", "mla_context_module_perf", _MODULE, ("num_heads",), _LENGTHS),
    Layout("states", "linear_attention", "gdn_perf", ("phase",), _NETS, ("batch_size", "seq_len")),
)

NCCL = Layout("all_reduce", "comm", "nccl_perf", ("backend",), ("num_gpus",), ("message_size",))


def tables_folder(tables: Path | None = None) -> Path:
    """Return the folder that holds one folder per system.

    Args:
        tables: the package's folder, its ``systems``, or one like it; by default, the installed package.

    Raises:
        PagesimError: there is no such folder, or the package is not installed.
    """
    if tables is None:
        spec = find_spec(PACKAGE)
        places = list(spec.submodule_search_locations or ()) if spec else []
        if not places:
            raise PagesimError(
                f"{PACKAGE.replace('_', '-')} is not installed; pip install '.[operators]' in the checkout, "
                "or name a folder that holds its systems with --tables"
            )
        tables = Path(places[0])
    for folder in (tables, tables / "systems", tables / PACKAGE / "systems"):
        if (folder / "data").is_dir():
            return folder / "data"
    raise PagesimError(f"tables is {tables}; it must be a folder that holds systems/data, or data")


def tables_of(
    system: str, engine: str = "vllm", version: str | None = None, tables: Path | None = None
) -> OperatorTables:
    """Return the bundled tables of a system, or read them if another engine, version or folder is given.

    Args:
        system: the package's name of the system, e.g. ``h100_sxm``, or the GPU's name, e.g. ``h100``.
        engine: see `read_system`.
        version: see `read_system`.
        tables: see `tables_folder`.

    Raises:
        PagesimError: see `read_system`.
    """
    bundled = bundled_tables(SYSTEMS.get(system, system))
    if bundled is not None and engine == "vllm" and version is None and tables is None:
        return bundled
    names = {gpu: name for name, gpu in SYSTEMS.items()}
    return read_system(names.get(system, system), engine, version, tables)


def read_system(
    system: str, engine: str = "vllm", version: str | None = None, tables: Path | None = None
) -> OperatorTables:
    """Return the tables of one system and engine.

    Args:
        system: the package's name of the system, e.g. ``h100_sxm``.
        engine: ``vllm``, ``sglang`` or ``trtllm``.
        version: version of the engine. Each table comes from that release, else from the newest older one,
            else from the oldest newer one. By default, tables of all releases are returned.
        tables: see `tables_folder`.

    Raises:
        PagesimError: there is no such system or engine, or a file is damaged.
    """
    data = tables_folder(tables)
    known = sorted(each.name for each in data.iterdir() if any(each.glob("*/*/*/*.parquet")))
    if system not in known:
        raise PagesimError(f"system is {system!r}; it must be one of {', '.join(known)}")
    engines = sorted(
        {each.name for each in (data / system).glob("*/*") if each.is_dir()} - {"nccl", "oneccl"}
    )
    if engine not in engines:
        raise PagesimError(f"backend is {engine!r}; {system} has tables of {', '.join(engines)}")
    found = [table for layout in LAYOUTS for table in _tables(data / system, engine, version, layout)]
    if engine == "vllm" and (peers := _versions(data / system / "moe" / "sglang", "moe_perf")):
        found += _peers(_experts_of(peers[-1], "sglang"), found)
    if nccl := _versions(data / system / "comm" / "nccl", NCCL.file):
        found += _nccl(nccl[-1])
    return OperatorTables(SYSTEMS.get(system, system), packed([held_out(table) for table in found]))


def _versions(folder: Path, name: str, version: str | None = None) -> list[Path]:
    """Return the files of all releases, oldest first; development versions are ignored.

    Args:
        folder: folder with one folder per release.
        name: name of the files, without their suffix.
        version: if given, return only the file used for this version (see `read_system`).
    """
    files = [each for each in folder.glob(f"*/{name}.parquet") if _VERSION.match(each.parent.name)]
    files = [each for each in files if ".dev" not in each.parent.name]
    files.sort(key=lambda file: (version_of(file.parent.name), file.parent.name))
    if version is None or not files:
        return files
    older = [file for file in files if version_of(file.parent.name) <= version_of(version)]
    asked = [file for file in files if file.parent.name == version]
    return (asked or older or files[:1])[-1:]


def _tables(data: Path, engine: str, version: str | None, layout: Layout) -> Iterator[OperatorTable]:
    for file in _versions(data / layout.folder / engine, layout.file, version):
        if layout.family == "experts":
            yield from _experts_of(file, engine)
        else:
            rows = _prepared(layout.family, _read(file))
            made = list(_gridded(rows, layout, f"{engine} {file.parent.name}", file))
            yield from _products(made, rows) if layout.family == "gemm" else made


def _prepared(family: str, rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of a file that are used, with the columns that their layout names."""
    if family in ("decode", "prompts"):
        if "window_size" not in rows:  # older tables lack this column
            rows["window_size"] = 0
        # More KV heads are equivalent to more sequences with fewer KV heads each.
        rows = rows[(rows["attn_dtype"] == "bfloat16") & (rows["num_key_value_heads"] <= 8)]
    if family.startswith("latent"):
        rows = rows[rows["tp_size"] == 1]
        # Prefer attention that computes in 16 bits where it was timed.
        plain = rows["mla_dtype"] == "bfloat16"
        rows = rows[
            plain | ~rows.set_index(list(_MODULE)).index.isin(rows[plain].set_index(list(_MODULE)).index)
        ]
    if "decode" in family:
        rows = rows.assign(context=rows["step"] + 1)
    if family == "states":
        kernels = rows.groupby("phase")["kernel_source"].transform("nunique")
        sizes = rows.groupby(["phase", *_NETS, "batch_size", "seq_len"])["latency"]
        rows = rows.assign(latency=sizes.transform("sum"))[sizes.transform("size") >= kernels]
        rows = rows.drop_duplicates(["phase", *_NETS, "batch_size", "seq_len"])
    return rows


def _experts_of(file: Path, engine: str) -> Iterator[OperatorTable]:
    layout = next(each for each in LAYOUTS if each.family == "experts")
    rows = _read(file)
    names = {source: _kernel(source) for source in rows["kernel_source"].unique()}
    places = {routing: place for place, routing in enumerate(ROUTINGS)}
    rows = rows[rows["distribution"].isin(places)]
    rows = rows.assign(kernel=rows["kernel_source"].map(names), routing=rows["distribution"].map(places))
    # Too few points make no curve.
    rows = rows[rows.groupby([*layout.names, *layout.keys])["latency"].transform("size") >= FEWEST]
    return _gridded(rows, layout, f"{engine} {file.parent.name}", file)


def _kernel(source: str) -> str:
    return next((name for name, parts in KERNELS.items() if any(part in source for part in parts)), "other")


def _peers(theirs: Iterator[OperatorTable], own: list[OperatorTable]) -> Iterator[OperatorTable]:
    """Yield another engine's timings of experts with shared kernels that the engine's own tables lack."""
    for table in theirs:
        if table.name[2] not in SHARED:
            continue
        mine = [each.keys for each in own if each.name == table.name]
        known = {tuple(key) for keys in mine for key in keys.tolist()}
        new = np.array([tuple(key) not in known for key in table.keys.tolist()])
        if new.any():
            yield table._replace(keys=table.keys[new], seconds=table.seconds[new])


def _nccl(file: Path) -> Iterator[OperatorTable]:
    rows = _read(file)
    rows = rows[(rows["op_name"] == "all_reduce") & (rows["nccl_dtype"] == "half")].assign(backend="nccl")
    return _gridded(rows, NCCL, f"nccl {file.parent.name}", file)


def _gridded(rows: pd.DataFrame, layout: Layout, release: str, file: Path) -> Iterator[OperatorTable]:
    """Yield one table per combination of names, taking the geometric mean of repeated timings."""
    if missing := [name for name in (*layout.names, *layout.keys, *layout.axes) if name not in rows]:
        raise PagesimError(f"{file}: has no column {missing[0]}; a table of operator timings needs it")
    for name in (*layout.keys, *layout.axes):
        if not pd.api.types.is_numeric_dtype(rows[name]) or ((rows[name] % 1 != 0) | (rows[name] < 0)).any():
            raise PagesimError(f"{file}: {name} holds a number that is not whole or below 0")
    for texts, of in rows.groupby(list(layout.names)):
        keys, row = np.unique(of[list(layout.keys)].to_numpy(np.int64), axis=0, return_inverse=True)
        if not layout.keys:
            keys, row = np.zeros((1, 0), np.int64), np.zeros(len(of), np.int64)
        axes, places = [], [row.ravel()]
        for name in layout.axes:
            sizes, at = np.unique(of[name].to_numpy(np.int64), return_inverse=True)
            axes.append(sizes)
            places.append(at)
        shape = (len(keys), *map(len, axes))
        sums, counts = np.zeros(shape), np.zeros(shape)
        np.add.at(sums, tuple(places), np.log(of["latency"].to_numpy(np.float64) / 1e3))
        np.add.at(counts, tuple(places), 1)
        with np.errstate(invalid="ignore"):
            seconds = np.where(counts > 0, np.exp(sums / counts), np.nan)
        yield OperatorTable((layout.family, *map(str, texts)), release, keys, tuple(axes), seconds)


def _products(tables: list[OperatorTable], rows: pd.DataFrame) -> Iterator[OperatorTable]:
    """Yield tables of GEMMs without gaps, as launched by CUDA graphs."""
    most = max(table.seconds.size for table in tables)
    whole = {
        table.name[1]: table._replace(seconds=_filled(table))
        for table in tables
        if np.isfinite(table.seconds).mean() >= COVERED and table.seconds.size >= FEW * most
    }
    for dtype, table in whole.items():
        other = whole.get("fp8")
        if dtype == "fp8_block" and other is not None and table.seconds.shape == other.seconds.shape:
            table = _launched_by_graphs(table, other, rows[rows["gemm_dtype"] == dtype])
        yield table


def _filled(table: OperatorTable) -> Floats:
    """Return the seconds with gaps filled: interpolated along m, else scaled from a smaller k or n."""
    (n_axis, k_axis, m_axis), seconds = table.axes, table.seconds[0].copy()
    for n, k in np.ndindex(*seconds.shape[:2]):
        line, known = seconds[n, k], np.isfinite(seconds[n, k])
        if known.sum() >= 2:
            line[~known] = np.interp(m_axis[~known], m_axis[known], line[known])
        elif k:
            line[:] = seconds[n, k - 1] * k_axis[k] / k_axis[k - 1]
        elif n:
            line[:] = seconds[n - 1, k] * n_axis[n] / n_axis[n - 1]
    filled: Floats = seconds[None]
    return filled


def _launched_by_graphs(table: OperatorTable, other: OperatorTable, rows: pd.DataFrame) -> OperatorTable:
    """Correct GEMMs that were timed with single host launches to the time under a CUDA graph.

    A host launch takes longer than small GEMMs do on the device (60 to 230 µs for block-scaled weights).
    Timings below twice the launch say nothing about the device. They are replaced by those of the same GEMM
    with weights of another type and equal size, if these are smaller.
    """
    places = tuple(
        np.searchsorted(axis, rows[name].to_numpy()) for axis, name in zip(table.axes, "nkm", strict=True)
    )
    kernels = np.full(table.seconds.shape[1:], -1)
    kernels[places] = pd.factorize(rows["kernel_source"], sort=True)[0]
    n, k, m = np.ix_(*table.axes)
    small = (n <= SMALL) & (k <= SMALL) & (m <= 64)
    seconds, theirs = table.seconds[0].copy(), other.seconds[0]
    for kernel in range(kernels.max() + 1):
        mine = kernels == kernel
        least = np.median(seconds[mine & small]) if (mine & small).any() else seconds[mine].min()
        if least > HOST_LAUNCH_S:
            hidden = mine & (seconds < 2 * least)
            seconds[hidden] = np.minimum(seconds, theirs)[hidden]
    return table._replace(seconds=seconds[None])


def _read(file: Path) -> pd.DataFrame:
    """Return a Parquet file's rows.

    Raises:
        PagesimError: the file cannot be read, or a latency is not above 0.
    """
    try:
        table = read_parquet(file.read_bytes())
    except OSError as error:
        raise PagesimError(f"{file}: cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise PagesimError(f"{file}: is no Parquet file that can be read ({error})") from None
    if "latency" not in table.column_names:
        raise PagesimError(f"{file}: has no column latency; a table of operator timings needs it")
    rows: pd.DataFrame = table.to_pandas()
    latency = pd.to_numeric(rows["latency"], errors="coerce")
    if not (np.isfinite(latency) & (latency > 0)).all():
        raise PagesimError(f"{file}: latency must hold milliseconds above 0")
    return rows


def held_out(table: OperatorTable) -> OperatorTable:
    """Return the table with its held-out error, each fifth of its inner points predicted from the rest.

    A prediction is the geometric mean of the linear interpolations along each axis.
    """
    errors: list[float] = []
    for seconds in table.seconds:
        places = np.argwhere(np.isfinite(seconds))
        sizes = [each[at].tolist() for each, at in zip(table.axes, places.T, strict=True)]
        points = list(zip(*sizes, strict=True))
        for fifth in fifths(points, " ".join(table.name)):
            unseen = tuple(places[fifth].T)
            kept = seconds.copy()
            kept[unseen] = np.nan
            lines = [np.apply_along_axis(_line, axis, kept, each) for axis, each in enumerate(table.axes)]
            logs = np.log(np.stack([each[unseen] for each in lines]))
            known = np.isfinite(logs)
            asked = known.any(0)
            guess = np.exp(np.where(known, logs, 0).sum(0)[asked] / known.sum(0)[asked])
            errors += np.abs(guess / seconds[unseen][asked] - 1).tolist()
    return table._replace(held_out=TermError.of(errors))


def _line(seconds: Floats, sizes: Ints) -> Floats:
    """Interpolate linearly between the known points, ``[S]``; NaN before the first and after the last."""
    known = np.isfinite(seconds)
    if not known.any():
        return seconds
    return np.interp(sizes, sizes[known], seconds[known], left=np.nan, right=np.nan)
