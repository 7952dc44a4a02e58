"""Execute the notebooks of this folder, or those named, and store them with their outputs."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parent

LONGEST_S = 300
"""A cell that takes longer is taken to hang."""

METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def executed(file: Path) -> nbformat.NotebookNode:
    """Return a notebook with the outputs that its cells have now, and nothing of the machine they ran on.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell raised an error.
    """
    notebook = nbformat.read(file, as_version=4)
    # What a notebook writes is thrown away. The list of fonts is its own: a stale one makes matplotlib warn.
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as settings:
        environment = {**os.environ, "MPLCONFIGDIR": settings}
        list_fonts = [sys.executable, "-c", "import matplotlib.font_manager"]
        subprocess.run(list_fonts, env=environment, capture_output=True, check=True)
        client = NotebookClient(
            notebook,
            timeout=LONGEST_S,
            kernel_name="python3",
            resources={"metadata": {"path": folder}},
            coalesce_streams=True,
        )
        client.execute(env=environment)
    notebook.metadata = nbformat.from_dict(METADATA)
    for number, cell in enumerate(notebook.cells, 1):
        cell.id = f"cell-{number}"
        cell.metadata = nbformat.from_dict({})
    return notebook


if __name__ == "__main__":
    for each in map(Path, sys.argv[1:] or sorted(map(str, FOLDER.glob("*.ipynb")))):
        nbformat.write(executed(each), each)
        print(each.name)
