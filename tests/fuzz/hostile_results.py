"""Damaged results, under ``pagesim report``, and damaged sweeps, when they are resumed."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hostile_case import Case, canary
from mutators import mutate
from nasty import NASTY_VALUES

SWEEP = ("sweep", "--trace", "fixed:20,5", "--rate", "2", "--num-requests", "4", "--seeds", "2", "--grid",
         "num_blocks=300,400", "--jobs", "1", "--out")  # fmt: skip
_RUN = ("--rate", "4", "--num-requests", "12", "--trace", "fixed:300,40", "--out")
RUNS = {
    "sosp": ("run", "--policy", "vllm-sosp", "--num-blocks", "90", *_RUN),
    "static": ("run", "--policy", "static", *_RUN),
    "v1": ("run", "--policy", "vllm-v1", "--model", "llama-3.1-8b", "--gpu", "h100", "--num-blocks", "200",
           *_RUN),
    "sglang": ("run", "--policy", "sglang", "--num-blocks", "4000", *_RUN),
    "samples": ("run", "--policy", "vllm-sosp", "--preemption", "auto", "--n", "2", "--num-blocks", "120",
                *_RUN),
    "cluster": ("run", "--policy", "vllm-sosp", "--replicas", "2", *_RUN),
    "apart": ("run", "--policy", "vllm-v1", "--prefill", "1", "--decode", "2", "--num-blocks", "300",
              *_RUN),
    "compare": ("run", "--policies", "orca-max,vllm-sosp", *_RUN),
}  # fmt: skip
"""Good ones, made by the ``pagesim`` that is tried."""

Damage = Callable[[Path, random.Random], object]


def commands(base: Path) -> list[tuple[str, ...]]:
    """Return the commands that make the good ones in a folder."""
    return [(*SWEEP, str(base / "sweep")), *((*run, str(base / name)) for name, run in RUNS.items())]


def cases(rng: random.Random, count: int, base: Path) -> list[Case]:
    """Return so many."""
    return [_case(rng, number, base) for number in range(count)]


def _case(rng: random.Random, number: int, base: Path) -> Case:
    resumed = number % 2 == 1
    name, damage, expects = (OF_SWEEPS if resumed else OF_RESULTS)[number // 2 % len(OF_RESULTS)]
    source = base / ("sweep" if resumed else rng.choice((*RUNS, "sosp")))
    seed = rng.random()

    def put(folder: Path) -> None:
        shutil.copytree(source, folder, dirs_exist_ok=True)
        damage(folder, random.Random(seed))

    kept = {**canary("beside.txt"), **canary("damaged/notes.txt")}
    if resumed:
        argv: tuple[str, ...] = (*SWEEP, "{}/damaged")
    else:
        argv = ("report", "{}/damaged", "--out", "{}/page.html")
        argv = argv if rng.random() < 0.4 else (*argv, "--instants", "0")
    files = {"damaged": put, **kept}
    return Case(
        "results", f"{argv[0]}: {name}", argv, files, expects, may_change=("damaged",) if resumed else ()
    )


def _files(folder: Path, suffix: str = "") -> list[Path]:
    return [file for file in sorted(folder.rglob(f"*{suffix}")) if file.is_file() and file.suffix in _READ]


_READ = (".parquet", ".json", ".toml")


def _write(file: Path, data: bytes, folder: Path | None = None) -> None:
    """Write a file; with a folder, put its new digest in the place of the old one, where one stands there."""
    old = file.read_bytes()
    file.write_bytes(data)
    if folder is None:
        return
    for digest in _DIGESTS:
        before, after = digest(old).hexdigest(), digest(data).hexdigest()
        for text in _files(folder):
            if text.suffix in (".json", ".toml") and text != file:
                text.write_bytes(text.read_bytes().replace(before.encode(), after.encode()))


_DIGESTS: tuple[Callable[[bytes], Any], ...] = (
    hashlib.sha256, hashlib.sha1, hashlib.md5,
    *[lambda data, size=size: hashlib.blake2b(data, digest_size=size) for size in (8, 16, 20, 32, 64)],
)  # fmt: skip


def _mutation(folder: Path, rng: random.Random) -> None:
    files = _files(folder)
    if files:
        file = rng.choice(files)
        _write(file, mutate(file.name, file.read_bytes(), rng), folder if rng.random() < 0.7 else None)


def _changed_table(folder: Path, rng: random.Random) -> None:
    """Change one number of a table, and leave the digest as it was."""
    tables = [
        file for file in _files(folder, ".parquet") if file.name in ("requests.parquet", "steps.parquet")
    ]
    if not tables:
        return _broken_table(folder, rng)
    file = rng.choice(tables)
    table = pq.read_table(file)
    at = rng.choice([n for n, field in enumerate(table.schema) if pa.types.is_integer(field.type)])
    values = table.column(at).to_pylist()
    place = rng.randrange(len(values))
    values[place] = (values[place] or 0) + 1
    pq.write_table(table.set_column(at, table.schema[at], pa.array(values, table.schema[at].type)), file)
    return None


def _broken_table(folder: Path, rng: random.Random) -> None:
    tables = _files(folder, ".parquet") or _files(folder)
    if tables:
        file = rng.choice(tables)
        data = bytearray(file.read_bytes())
        for _ in range(rng.choice((1, 5, 50))):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        file.write_bytes(bytes(data))


def _wild_numbers(folder: Path, rng: random.Random) -> None:
    """Put numbers into a column that no run has: negative, endless, none; the digest fits them."""
    tables = _files(folder, ".parquet")
    if not tables:
        return
    file = rng.choice(tables)
    table = pq.read_table(file)
    names = [name for name in table.column_names if name not in ("request_id",)]
    for name in rng.sample(names, min(len(names), rng.choice((1, 1, 3)))):
        at = table.column_names.index(name)
        kind = table.schema[at].type
        rows = len(table)
        if pa.types.is_floating(kind):
            value: Any = rng.choice((float("inf"), float("-inf"), float("nan"), -1.0, 1e300, 1e-320, 0.0))
        elif pa.types.is_integer(kind):
            # Of -1 and 0: what `np.repeat` is asked for; the others are the bounds of types.
            bits = kind.bit_width
            value = rng.choice((-1, 0, 1, 10**6, 2**31 - 1, 2 ** (bits - 1) - 1, -(2 ** (bits - 1))))
            value = value if -(2 ** (bits - 1)) <= value < 2 ** (bits - 1) else 0
            value = abs(value) if "uint" in str(kind) else value
        else:
            value = rng.choice((None, ""))
        values = table.column(at).to_pylist()
        some = [rng.randrange(rows)] if rows and rng.random() < 0.5 else range(rows)
        for row in some:
            values[row] = value
        try:
            table = table.set_column(at, name, pa.array(values, kind))
        except (pa.ArrowException, ValueError, TypeError):
            continue
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    _write(file, sink.getvalue().to_pybytes(), folder)


def _wild_summary(folder: Path, rng: random.Random) -> None:
    files = [file for file in _files(folder, ".json") if file.name != "store.json"]
    if not files:
        return
    file = rng.choice(files)
    content = json.loads(file.read_bytes())
    at = content
    while isinstance(at, dict) and at:
        key = rng.choice(list(at))
        if not isinstance(at[key], dict) or not at[key] or rng.random() < 0.2:
            at[key] = rng.choice(NASTY_VALUES)
            break
        at = at[key]
    _write(file, json.dumps(content).encode(), folder)


def _wild_scenario(folder: Path, rng: random.Random) -> None:
    files = _files(folder, ".toml")
    if not files:
        return
    file = rng.choice(files)
    lines = file.read_bytes().splitlines()
    at = rng.randrange(len(lines))
    key = lines[at].partition(b" = ")[0]
    lines[at] = rng.choice(
        (
            key + b" = " + b"[" * 20_000, key + b" = 1e999", key + b" = -1", key + b' = "\xff"', b"",
            b".".join([b"a"] * 20_000) + b" = 1", key + b" = " + b"9" * 5000, lines[at] + b"\n" + lines[at],
            key + b' = "/dev/zero"', key + b" = nan", b"[" + b".".join([b"b"] * 20_000) + b"]", b'zzz = "x"',
            key + b" = {" + b"a = {" * 5000, key + b' = "' + b"x" * 100_000 + b'"', key + b' = "\\ud800"',
        )
    )  # fmt: skip
    _write(file, b"\n".join(lines), folder)


def _deep(folder: Path, rng: random.Random) -> None:
    files = _files(folder, ".json")
    if files:
        depth = rng.choice((900, 5000, 200_000))
        left, right = rng.choice(((b"[", b"]"), (b'{"requests":', b"}")))
        rng.choice(files).write_bytes(left * depth + b"1" + right * rng.choice((0, depth)))


def _no_file(folder: Path, rng: random.Random) -> None:
    files = _files(folder)
    if not files:
        return
    file = rng.choice(files)
    file.unlink()
    match rng.randrange(7):
        case 0 | 1:
            os.mkfifo(file)
        case 2:
            file.mkdir()
        case 3:
            file.symlink_to("/proc/self/maps")  # which no fault can replace, as it could a device
        case 4:
            file.symlink_to(file.name)
        case 5:
            file.write_bytes(b"")
        case _:
            pass


def _of_another(folder: Path, rng: random.Random) -> None:
    """Put a file of another result in the place of one of the same name."""
    others = [other for other in folder.parent.parent.glob("base/*") if other.is_dir()]
    files = [file for file in _files(folder) if any((other / file.name).is_file() for other in others)]
    if files:
        file = rng.choice(files)
        others = [other / file.name for other in others if (other / file.name).is_file()]
        _write(file, rng.choice(others).read_bytes(), folder)


def _lost_rows(folder: Path, rng: random.Random) -> None:
    tables = _files(folder, ".parquet")
    if tables:
        file = rng.choice(tables)
        table = pq.read_table(file)
        order = np.random.default_rng(rng.randrange(2**32)).permutation(len(table))
        table = rng.choice(
            (table.slice(0, 0), table.slice(1), pa.concat_tables([table] * 3), table.take(order))
        )
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink)
        _write(file, sink.getvalue().to_pybytes(), folder)


def _changed_run(folder: Path, rng: random.Random) -> None:
    """Change one number of a stored run, and leave the digest as it was."""
    file = rng.choice(sorted(folder.glob("runs/*.json")))
    content = json.loads(file.read_bytes())
    content["summary"]["latency"]["mean"] *= rng.choice((2, 1.0001, -1))
    file.write_bytes(json.dumps(content).encode())


OF_RESULTS: tuple[tuple[str, Damage, str], ...] = (
    ("wild numbers", _wild_numbers, "any"), ("a changed table", _changed_table, "refused"),
    ("mutations", _mutation, "any"), ("no plain file", _no_file, "any"), ("wild summary", _wild_summary,
                                                                          "any"),
    ("wild numbers", _wild_numbers, "any"), ("wild scenario", _wild_scenario, "any"), ("deep", _deep, "any"),
    ("rows lost", _lost_rows, "any"), ("broken tables", _broken_table, "any"), ("wild numbers",
                                                                                _wild_numbers, "any"),
    ("another's file", _of_another, "any"), ("mutations", _mutation, "any"),
)  # fmt: skip
# What a sweep goes on from is its runs: its tables are made anew.
_OF_RUNS: dict[Damage, tuple[str, Damage, str]] = {
    _wild_numbers: ("wild summary", _wild_summary, "any"),
    _changed_table: ("a changed run", _changed_run, "refused"),
    _broken_table: ("wild summary", _wild_summary, "any"),
    _lost_rows: ("mutations", _mutation, "any"),
}
OF_SWEEPS: tuple[tuple[str, Damage, str], ...] = tuple(
    _OF_RUNS.get(damage, (name, damage, "any")) for name, damage, _ in OF_RESULTS
)
