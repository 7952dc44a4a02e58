"""Kept frames: a growing table that stays in memory while short and spills to a temporary file."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pagesim.errors import PagesimError

if TYPE_CHECKING:  # see pagesim.api
    import pandas as pd

MOST_ROWS = 1 << 16
"""Maximum number of rows kept in memory, about 20 MB of a steps table."""


class KeptFrames:
    """A table made of consecutive frames with the same columns.

    Once there are more than ``MOST_ROWS`` rows in memory they move to a temporary Parquet file in ``TMPDIR``,
    so that a run's memory does not grow with its length. The file is deleted together with this object.
    """

    def __init__(self) -> None:
        self.rows = 0
        self._frames: list[pd.DataFrame] = []  # the latest frames, in memory
        self._kept = 0  # number of their rows
        self._file: Any = None  # all earlier frames
        self._writer: Any = None

    @classmethod
    def of(cls, frame: pd.DataFrame) -> Self:
        """Return a table made of one frame."""
        kept = cls()
        kept.rows = kept._kept = len(frame)
        kept._frames = [frame]
        return kept

    def add(self, frame: pd.DataFrame) -> None:
        """Append a frame; the first one defines the columns.

        Raises:
            PagesimError: the temporary file cannot be written.
        """
        self._frames.append(frame)
        self.rows += len(frame)
        self._kept += len(frame)
        if self._kept > MOST_ROWS:
            try:
                self._move_to_file()
            except OSError as error:
                raise PagesimError(
                    f"{tempfile.gettempdir()}: cannot keep the {self.rows} steps of a long run "
                    f"({error.strerror or error}); name a folder with room in TMPDIR, or keep no steps"
                ) from None

    def frame(self) -> pd.DataFrame:
        """Return the whole table, in memory; at least one frame must have been added."""
        import pandas as pd

        return pd.concat(self._parts(), ignore_index=True)

    def thinned(self, most: int) -> pd.DataFrame:
        """Return every k-th row, where k is ``rows // most`` or 1; fewer than twice ``most`` rows remain."""
        import pandas as pd

        apart = max(1, self.rows // most)
        shown, before = [], 0
        for part in self._parts():
            shown.append(part.iloc[-before % apart :: apart].copy())  # a view would keep the whole part alive
            before += len(part)
        return pd.concat(shown, ignore_index=True)

    def last(self) -> pd.Series[Any]:
        """Return the last row of a table that is not empty."""
        for part in self._parts():
            if len(part):
                row = part.iloc[-1]
        return row

    def write(self, file: Path) -> None:
        """Write the whole table as a Parquet file."""
        if self._file is None:
            self.frame().to_parquet(file, index=False)
            return
        self._close()
        self._file.seek(0)
        with file.open("wb") as copy:
            shutil.copyfileobj(self._file, copy)

    def __reduce__(self) -> tuple[Any, ...]:
        return KeptFrames.of, (self.frame(),)

    # Inside

    def _parts(self) -> Iterator[pd.DataFrame]:
        """Yield the table in parts, in order; no frame may be added afterwards."""
        if self._file is None:
            yield from self._frames
            return
        import pyarrow.parquet as pq

        self._close()
        stored = pq.ParquetFile(self._file)
        for group in range(stored.num_row_groups):
            # Every further thread would need as much memory again.
            yield stored.read_row_group(group, use_threads=False).to_pandas(use_threads=False)

    def _close(self) -> None:
        """Move all frames to the file and complete it."""
        if self._frames:
            self._move_to_file()
        self._writer.close()

    def _move_to_file(self) -> None:
        """Append the frames in memory to the file."""
        import pandas as pd

        part = _arrow(pd.concat(self._frames, ignore_index=True))
        if self._file is None:
            import pyarrow.parquet as pq

            self._file = tempfile.TemporaryFile(prefix="pagesim-")  # noqa: SIM115
            self._writer = pq.ParquetWriter(self._file, part.schema)
            weakref.finalize(self, _let_go, self._writer, self._file)
        self._writer.write_table(part)
        self._frames, self._kept = [], 0


def _let_go(writer: Any, file: Any) -> None:
    writer.close()
    file.close()


def _arrow(frame: pd.DataFrame) -> Any:
    import pyarrow as pa

    return pa.Table.from_pandas(frame, preserve_index=False)
