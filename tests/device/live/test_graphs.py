"""Decoding in the padded batches that CUDA graphs are made of; here they run without being captured."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from pagesim.device.live import graphs, run


@pytest.mark.slow_but("sosp, swap")
@pytest.mark.parametrize("case", ["sosp, swap", "sosp, two samples", "v1, chunks"])
def test_idle_rows_change_nothing(case, cases, live, make_trace, monkeypatch):
    sizes = []
    right = graphs.DecodeGraphs.replay

    def replay(self, batch):
        sizes.append(batch.decodes)
        return right(self, batch)

    def equipped(*arguments, **options):
        executor = plain(*arguments, **options)
        executor.graphs = graphs.DecodeGraphs(
            executor.model, executor.pools, longest=executor.longest, most=8
        )
        return executor

    plain = run._equipped
    monkeypatch.setattr(run, "_equipped", equipped)
    monkeypatch.setattr(graphs.DecodeGraphs, "replay", replay)
    options, columns, _ = cases[case]
    check = live(make_trace(**columns), options).summary["live"]["check"]
    assert check["passed"], check
    assert check["max_relative_error"]["logits"] < 1e-5
    assert set(sizes) - set(graphs.BATCHES), "some batch was padded"


def test_a_batch_that_is_too_large_runs_without(cases, live, make_trace, monkeypatch):
    plain = run._equipped
    answers = []
    right = graphs.DecodeGraphs.replay

    def replay(self, batch):
        answers.append(right(self, batch))
        return answers[-1]

    def equipped(*arguments, **options):
        executor = plain(*arguments, **options)
        executor.graphs = graphs.DecodeGraphs(
            executor.model, executor.pools, longest=executor.longest, most=2
        )
        return executor

    monkeypatch.setattr(run, "_equipped", equipped)
    monkeypatch.setattr(graphs.DecodeGraphs, "replay", replay)
    options, columns, _ = cases["sosp, recompute"]
    assert live(make_trace(**columns), options).summary["live"]["check"]["passed"]
    assert None in answers
    assert any(answer is not None for answer in answers)
