"""The workloads that come with pagesim: models fitted to published traces, and how they were made."""

from __future__ import annotations

import argparse
from functools import cache
from pathlib import Path

from pagesim.errors import PagesimError
from pagesim.workloads.files import load
from pagesim.workloads.model import LengthModel, fit

DATA = Path(__file__).resolve().parent / "data"
FITTED_TO = {
    "sharegpt": "sharegpt_sosp23_opt.parquet",
    "alpaca": "alpaca_sample_gpt2bpe.parquet",
    "azure-conv": "raw/AzureLLMInferenceTrace_conv.csv",
}
"""Name of each bundled workload, and the published trace that it is fitted to; the model says from where."""

NAMES = tuple(FITTED_TO)


@cache
def workload(name: str) -> LengthModel:
    """Return a bundled model by name.

    Raises:
        PagesimError: there is no bundled workload of this name.
    """
    if name not in NAMES:
        raise PagesimError(f"there is no workload {name!r}; the bundled ones are {', '.join(NAMES)}")
    return LengthModel.load(DATA / f"{name}.json")


def workloads() -> dict[str, str]:
    """Return the name of each bundled workload, and a sentence on it."""
    return {name: workload(name).provenance.description for name in NAMES}


def make_bundled(traces: Path) -> list[LengthModel]:
    """Fit the bundled models anew from a folder that holds the published traces."""
    return [
        fit(load(traces / file), name, workload(name).provenance, total_below=workload(name).total_below)
        for name, file in FITTED_TO.items()
    ]


def main() -> None:
    """Write the bundled models: ``python -m pagesim.workloads.bundled FOLDER_OF_TRACES``."""
    parser = argparse.ArgumentParser(description="Fit the bundled workloads anew from the published traces.")
    parser.add_argument("traces", type=Path, help="folder with the published traces")
    for model in make_bundled(parser.parse_args().traces):
        (DATA / f"{model.name}.json").write_text(model.to_json(), encoding="utf-8")


if __name__ == "__main__":
    main()
