"""Pictures of profiles are drawn whatever was measured."""

from __future__ import annotations

from matplotlib.figure import Figure

from pagesim.results import drawing


def test_a_term_that_is_lost_in_the_noise_is_drawn_like_any_other() -> None:
    axes = Figure().add_subplot()
    measured, predicted = [1e-3, 2e-3], [0.0, 0.0]
    axes.plot(measured, predicted, ".")
    drawing.against(axes, measured, predicted)  # matplotlib's warnings are errors here
    low, high = axes.get_ylim()
    assert 0 < low < 1e-3
    assert high > 2e-3
