"""Keeps as many mutants of a session as are asked for, drawn at random, and marks all others as skipped."""

from __future__ import annotations

import argparse
import random
import sys

from cosmic_ray.tools.filters.filter_app import FilterApp
from cosmic_ray.work_db import WorkDB
from cosmic_ray.work_item import WorkerOutcome, WorkItem, WorkResult


class Sample(FilterApp):
    """A filter of Cosmic Ray's, as those that it brings along."""

    def add_args(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--mutants", type=int, default=60)
        parser.add_argument("--seed", type=int, default=1)

    def filter(self, work_db: WorkDB, args: argparse.Namespace) -> None:
        # A mutant's number is drawn anew in every session; where it stands is not.
        items = sorted(work_db.work_items, key=_place)
        kept = set(random.Random(args.seed).sample(range(len(items)), min(args.mutants, len(items))))
        for at, item in enumerate(items):
            if at not in kept:
                work_db.set_result(item.job_id, WorkResult(worker_outcome=WorkerOutcome.SKIPPED))


def _place(item: WorkItem) -> tuple[str, str, int]:
    (mutation,) = item.mutations
    return mutation.module_path.as_posix(), mutation.operator_name, mutation.occurrence


if __name__ == "__main__":
    sys.exit(Sample().main())
