"""The workloads that come with pagesim: models fitted to published traces, and how they were made."""

from __future__ import annotations

import argparse
from functools import cache
from pathlib import Path

from pagesim.errors import PagesimError
from pagesim.workloads.files import load
from pagesim.workloads.model import LengthModel, Provenance, fit

DATA = Path(__file__).resolve().parent / "data"
NAMES = ("sharegpt", "alpaca", "azure-conv")


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
    sharegpt = fit(
        load(traces / "sharegpt_sosp23_opt.parquet"),
        "sharegpt",
        Provenance(
            "ShareGPT: first turns of conversations with a chat model, as in the PagedAttention paper",
            "lengths in the PagedAttention paper's artifact, sosp-ae-39/sosp-ae-astra (OPT tokenizer)",
            "none stated",
            "prompt + output < 2048 tokens, as the paper's generator",
        ),
        total_below=2048,
    )
    alpaca = fit(
        load(traces / "alpaca_sample_gpt2bpe.parquet"),
        "alpaca",
        Provenance(
            "Alpaca: short instructions and answers, as in the PagedAttention paper",
            "a random sample of Stanford Alpaca, GPT-2 BPE and a special token on both sides",
            "CC-BY-NC-4.0",
        ),
    )
    azure = fit(
        load(traces / "raw" / "AzureLLMInferenceTrace_conv.csv"),
        "azure-conv",
        Provenance(
            "Azure conversations: an hour of a chat service in production, November 2023, with its arrivals",
            "AzureLLMInferenceTrace_conv.csv (Azure/AzurePublicDataset)",
            "CC-BY-4.0",
        ),
    )
    return [sharegpt, alpaca, azure]


def main() -> None:
    """Write the bundled models: ``python -m pagesim.workloads.bundled FOLDER_OF_TRACES``."""
    parser = argparse.ArgumentParser(description="Fit the bundled workloads anew from the published traces.")
    parser.add_argument("traces", type=Path, help="folder with the published traces")
    for model in make_bundled(parser.parse_args().traces):
        (DATA / f"{model.name}.json").write_text(model.to_json(), encoding="utf-8")


if __name__ == "__main__":
    main()
