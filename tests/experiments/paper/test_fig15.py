"""What sharing saves: the paper's Fig. 15, parallel samples and beams."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import pagesim as ps

COSTS = "affine:0.024,1e-4,8.2e-7"

# Percent of memory saved on Alpaca with so many samples or beams.
PARALLEL = {2: 6.09, 4: 8.53, 6: 9.79}
BEAMS = {2: 37.56, 4: 53.13, 6: 55.16}


@pytest.fixture(scope="module")
def alpaca(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> ps.Trace:
    """20 requests a second for 900 s, with the lengths of a sample of Alpaca."""
    lengths = pd.read_parquet(
        shared / "data" / "alpaca_sample_gpt2bpe.parquet", columns=["prompt_tokens", "output_tokens"]
    )
    file = tmp_path_factory.mktemp("alpaca") / "alpaca.parquet"
    lengths.to_parquet(file)
    return ps.make_trace(file, arrivals="sosp", rate=20.0, duration=900)


def saving(trace: ps.Trace, column: str, width: int) -> float:
    """Return the share of memory that sharing saves from 300 to 900 s, in percent."""
    result = ps.simulate(
        trace.with_columns({column: np.full(len(trace), width)}),
        "vllm-sosp",
        steps="none",
        num_blocks=983,
        cpu_blocks=1638,
        cost=COSTS,
        window="300:900",
        until=900.0,
    )
    return 100 * float(result.summary["sharing"]["saving"])


@pytest.mark.slow
@pytest.mark.parametrize("width", PARALLEL)
def test_parallel_samples_save_what_the_paper_says_within_a_point_and_a_half(
    alpaca: ps.Trace, width: int
) -> None:
    ours = saving(alpaca, "n", width)
    print(f"{width} samples: paper {PARALLEL[width]:5.2f} %  ours {ours:5.2f} %")
    assert ours == pytest.approx(PARALLEL[width], abs=1.5)


@pytest.mark.slow
@pytest.mark.parametrize("width", BEAMS)
def test_the_beam_model_fits_what_beams_save_on_alpaca_within_a_point_and_a_half(
    alpaca: ps.Trace, width: int
) -> None:
    ours = saving(alpaca, "beam_width", width)
    print(f"{width} beams: paper {BEAMS[width]:5.2f} %  ours {ours:5.2f} %")
    assert ours == pytest.approx(BEAMS[width], abs=1.5)
