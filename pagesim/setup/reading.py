"""Reading: parse untrusted, possibly damaged or oversized files into data, or raise ValueError."""

from __future__ import annotations

import errno
import json
import math
import re
import stat
import tomllib
from pathlib import Path
from typing import Any

ROOM = 128 << 20
"""Bytes of memory that any table may use. A larger file may use `SWELLS` times its own size."""

SWELLS = 100

MOST_TEXT = 64 << 20
"""Upper bound on the bytes of a JSON or TOML file: a hundred times the largest in use."""

MOST_TOML = 4 << 20
"""Upper bound on the characters of a TOML text; Python's parser needs a second for a quarter of it."""

MOST_PARTS = 64
"""Upper bound on the parts of a dotted TOML key: Python's parser is quadratic in time and memory."""

_MANY_PARTS = re.compile(
    r"""(?<![\w-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){"""
    f"{MOST_PARTS - 1}}}"
)

_BATCH = 1 << 16
"""Rows that are read between checks of their size."""

_OBJECT = 64
"""Approximate bytes of a Python object."""


def parse_json(text: str | bytes, *, finite: bool = True) -> Any:
    """Parse a JSON text.

    Args:
        text: the text.
        finite: whether to refuse ``Infinity`` and ``NaN``, which are not JSON although Python accepts them.

    Raises:
        ValueError: it is not JSON, is nested too deeply, or holds a refused number.
    """
    try:
        number = _finite if finite else float
        return json.loads(text, parse_constant=number, parse_float=number)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_file(path: Path) -> bytes:
    """Return the contents of a regular file.

    Raises:
        OSError: it cannot be read, or is a folder, a FIFO or a device, which may never end.
    """
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode):
        names = {stat.S_IFIFO: "a FIFO", stat.S_IFDIR: "a folder"}
        what = names.get(stat.S_IFMT(mode), "a device or a socket")
        raise OSError(errno.EINVAL, f"it is {what} and no regular file", str(path))
    return path.read_bytes()


def read_text(path: Path) -> str:
    """Return the text of a regular file.

    Raises:
        OSError: it cannot be read, is not a regular file, or is longer than `MOST_TEXT`.
        ValueError: it is not UTF-8.
    """
    size = path.stat().st_size
    if size > MOST_TEXT:
        raise OSError(errno.EFBIG, f"it has {size} bytes, and at most {MOST_TEXT} are read", str(path))
    return read_file(path).decode("utf-8")


def parse_toml(text: str) -> dict[str, Any]:
    """Parse a TOML text.

    Raises:
        ValueError: it is not TOML, is nested too deeply, has an overlong key, or is longer than `MOST_TOML`.
    """
    if len(text) > MOST_TOML:
        raise ValueError(f"it has {len(text)} characters, and at most {MOST_TOML} are read")
    if (long := _MANY_PARTS.search(text)) is not None:
        line = text.count("\n", 0, long.start()) + 1
        raise ValueError(f"line {line} has a key of {MOST_PARTS} parts or more")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_parquet(data: bytes) -> Any:
    """Return the table of a Parquet file as a pyarrow table.

    The file's pandas metadata is ignored.

    Raises:
        ValueError: it is not a Parquet file, is damaged, has a column twice, or would need more memory than
            is plausible for its size: a few bytes of Parquet can claim any number of rows.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        schema = pq.read_schema(pa.BufferReader(data))
        names = schema.names
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"it has two columns {twice!r}")
        # Texts stay dictionary-encoded, as in the file, until their expanded size is known.
        texts = [field.name for field in schema if _is_text(field.type)]
        file = pq.ParquetFile(pa.BufferReader(data), read_dictionary=texts)
        room = max(ROOM, SWELLS * len(data))
        rows, size = file.metadata.num_rows, 0
        batches = []
        if 8 * rows * len(names) <= room:
            for batch in file.iter_batches(_BATCH, use_threads=False):
                size += sum(_bytes(column) for column in batch.columns)
                if size > room:
                    break
                batches.append(batch)
        else:
            size = 8 * rows * len(names)
        if size > room:
            raise ValueError(
                f"it claims {rows} rows and {size >> 20} MiB or more; a file of {len(data)} bytes may hold "
                f"{room >> 20}"
            )
        table = pa.Table.from_batches(batches, file.schema_arrow)
        for at, column in enumerate(table.columns):
            if pa.types.is_dictionary(column.type):
                table = table.set_column(at, names[at], column.cast(column.type.value_type))
        table.validate()
    except (pa.ArrowException, OSError, ValueError, MemoryError, OverflowError) as error:
        raise ValueError(str(error) or type(error).__name__) from error
    return table.replace_schema_metadata(None)


def _is_text(kind: Any) -> bool:
    import pyarrow as pa

    texts = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    return any(is_text(kind) for is_text in texts)


def _bytes(column: Any) -> int:
    """Return approximately how many bytes a column's values need in Python."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_dictionary(column.type):
        size = _OBJECT * len(column)
        if column.null_count < len(column) and _is_text(column.type.value_type):
            lengths = pc.binary_length(column.dictionary).cast(pa.int64())
            size += pc.sum(pc.take(lengths, column.indices)).as_py() or 0
        return size
    if pa.types.is_primitive(column.type):
        return _OBJECT * len(column) if column.null_count else int(column.nbytes)
    return _OBJECT * len(column) + 8 * int(column.nbytes)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:20]} is no finite number")
    return number
