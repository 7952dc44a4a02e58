"""Columns: converts pagesim's tables to the names, texts and rows of a golden log."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pagesim.errors import PagesimError
from pagesim.experiments.golden.data_parallel import plain
from pagesim.experiments.golden.manifest import GoldenLog
from pagesim.experiments.golden.sglang_details import as_text, is_of_sglang

if TYPE_CHECKING:  # pandas is slow to import
    import pandas as pd

OURS = {
    "arrival": "arrival_s",
    "output_target": "output_tokens",
    "first_scheduled": "first_scheduled_s",
    "first_token_time": "first_token_s",
    "finish_time": "finish_s",
    "preemptions": "recomputes",
    "retractions": "recomputes",
    "batch_start": "first_scheduled_s",
    "ext_tokens": "loaded_tokens",
    "host_tokens": "loaded_tokens",
}
"""Columns with different names in some logs, and pagesim's name for each."""


def alike(
    log: GoldenLog, table: str, ours: pd.DataFrame, theirs: pd.DataFrame
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return both tables with the log's columns, in a form in which equal decisions are equal cells.

    Args:
        log: the log that the tables belong to.
        table: ``steps``, ``batches``, ``requests``, or one of `tables_of_ranks`.
        ours: pagesim's table, ``[M]`` rows.
        theirs: the log's table, ``[N]`` rows.

    Raises:
        PagesimError: a column of the log is neither in pagesim's table nor in ``not_compared``, or a column
            in ``not_compared`` is not in the log.
    """
    left_out = [name.partition(".")[2] for name in log.not_compared if name.partition(".")[0] == table]
    if unknown := [name for name in left_out if name not in theirs]:
        raise PagesimError(f"log {log.name}: not_compared names {table}.{unknown[0]}, which the log lacks")
    theirs = theirs.drop(columns=left_out).copy()
    for name in theirs.columns.intersection(["blocks_by_group", "nulls_by_group"]):
        theirs[name] = [str(list(map(int, counts))) for counts in theirs[name]]  # one list per row
    if table in ("coordinator", "passes", "routes"):
        theirs = plain(theirs)
    if table == "steps" and is_of_sglang(theirs):
        theirs = as_text(theirs)
    if table == "requests" and "retractions" in theirs:
        ours, theirs = _refused(ours, theirs)
    if table == "requests" and "loaded_tokens" not in ours:
        ours = ours.assign(loaded_tokens=0)  # without a tier nothing is loaded
    absent = [name for name in theirs.columns if OURS.get(name, name) not in ours]
    if absent:
        raise PagesimError(
            f"log {log.name}: pagesim's {table} lack the column {absent[0]}; "
            f"not_compared must name {table}.{absent[0]} and say why"
        )
    if table == "steps" and log.without_flush:
        ours = _without_flush(ours)
    mine = ours[[OURS.get(name, name) for name in theirs.columns]].set_axis(theirs.columns, axis=1).copy()
    if table == "requests":
        # Under vllm-v1 the samples of a request are named 3.0, 3.1 and so on, and the column is text.
        for each in (mine, theirs):
            each["request_id"] = each["request_id"].astype(str)
        for name in theirs.columns.intersection(["output_tokens", "output_target"]):
            mine[name] = _each_sample(ours, last_first=log.last_sample_first)
            theirs[name] = _spread(theirs[name], ours["n"])
    return mine, theirs


def _refused(ours: pd.DataFrame, theirs: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return both tables of SGLang with one status for prompts that were too long or met a full queue.

    SGLang answers a prompt that is too long with one token, and one that met a full queue with none.
    """
    # pagesim reduces an output that cannot fit as soon as it receives the request.
    # The log has no count of cached tokens for requests that never ran; pagesim counts 0.
    theirs = theirs.assign(
        output_target=theirs["output_tokens"], cached_tokens=theirs["cached_tokens"].fillna(0)
    )
    answered = theirs["status"] != "aborted"
    outputs = {
        name: theirs[name].astype("Int64").astype(str).where(answered, "")
        for name in ("output_tokens", "output_target")
    }
    return ours, theirs.assign(status=theirs["status"].where(answered, "ignored"), **outputs)


def _without_flush(steps: pd.DataFrame) -> pd.DataFrame:
    """Return the steps renumbered without those in which the engine is empty."""
    load = ["num_batched_tokens", "num_running", "num_waiting", "num_swapped"]
    empty = (steps[load] == 0).all(axis=1)
    kept = steps[~empty].reset_index(drop=True)
    kept["step"] -= np.cumsum(empty.to_numpy())[~empty.to_numpy()]
    return kept


def _each_sample(requests: pd.DataFrame, *, last_first: bool) -> list[str]:
    """Return the tokens that each request's samples generate, such as ``5;7``; empty if it was ignored."""
    if "sample_tokens" in requests:
        lengths = requests["sample_tokens"].tolist()
    else:
        pairs = zip(requests["output_tokens"].tolist(), requests["n"].tolist(), strict=True)
        lengths = [[tokens] * n for tokens, n in pairs]
    if last_first:
        lengths = [[*own[-1:], *own[:-1]] for own in lengths]
    ignored = (requests["status"] == "ignored").tolist()
    return ["" if none else ";".join(map(str, own)) for own, none in zip(lengths, ignored, strict=True)]


def _spread(outputs: pd.Series, n: pd.Series) -> list[str]:
    """Return a log's outputs with one length per sample; a log has a single one if all are equally long."""
    texts = [str(output) for output in outputs]
    return [
        ";".join([text] * samples) if text and ";" not in text else text
        for text, samples in zip(texts, n, strict=False)
    ]
