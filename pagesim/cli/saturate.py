"""``pagesim plan --saturate``: how a GPU's memory is divided while the cache is full."""

from __future__ import annotations

from pathlib import Path

from pagesim.accounting.fragmentation import categories
from pagesim.accounting.ledger import HYBRID_ENTRIES
from pagesim.cli import show
from pagesim.cli.printing import put_table
from pagesim.cli.runs import counted
from pagesim.experiments import gallery as of
from pagesim.experiments.loads import LOADS
from pagesim.hardware.gpus import GIB
from pagesim.models import model
from pagesim.results.gpu_memory import FullMemory


def saturate(models: str | None, gpu: str, jobs: int | None, out: Path | None, *, json: bool) -> None:
    """Show how the memory of a saturated GPU is divided, model by model.

    Each model serves single questions and then conversations, of ShareGPT's lengths, from twice as many
    clients as its cache holds requests.

    Args:
        models: comma-separated names; None takes those of the documentation.
        gpu: the GPU of every model.
        jobs: parallel runs.
        out: folder for ``gallery.csv`` and the figure.
        json: whether to print rows as JSON.
    """
    from pagesim.results.gpu_memory import gallery_bars

    names = of.MODELS if models is None else tuple(dict.fromkeys(models.split(",")))
    runs = of.gallery(names, gpu=gpu, jobs=jobs)
    found = list(counted("models", runs, len(names) * len(LOADS)))
    found.sort(key=lambda each: (names.index(each.model), list(LOADS).index(each.load)))
    show.say_notes(tuple(note for name in names for note in model(name).notes))
    rows = [each.row() for each in found]
    show.put_study(out, "gallery", rows, lambda: gallery_bars(found, gpu))
    if json:
        show.as_json(rows)
        return
    _show(found, gpu)
    show.stored(out)


def _show(found: list[FullMemory], gpu: str) -> None:

    parts = {
        "weights": ("weights",),
        "all else": ("activations", "CUDA graphs", "other"),
        **{row.label: row.entries for row in categories(HYBRID_ENTRIES) if not row.is_part},
        "not requested": ("not requested",),
    }
    for load in dict.fromkeys(each.load for each in found):
        rows = [each for each in found if each.load == load]
        put_table(
            f"GiB of each {gpu}, {load}",
            ["", "GPUs", "running", *(part.replace("fragmentation", "fragmen-\ntation") for part in parts)],
            [
                [
                    each.model,
                    str(each.tensor_parallel_size),
                    f"{each.running:,.0f}",
                    *(
                        f"{sum(each.bytes.get(name, 0) for name in names) / GIB:.1f}"
                        for names in parts.values()
                    ),
                ]
                for each in rows
            ],
        )
