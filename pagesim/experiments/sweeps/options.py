"""The keywords of `sweep` and `capacity`: the options of a scenario, for type checkers."""

from __future__ import annotations

from pagesim.api import SystemOptions


class ScenarioOptions(SystemOptions, total=False):
    """Keywords beside ``trace``: the fields of `Scenario`, which says what each means and its default."""

    policy: str
    arrivals: str | None
    rate: float | None
    cv: float | None
    duration: float | None
    num_requests: int | None
    n: int | None
    beam_width: int | None
    shared_prefix: str | None
    rounds: str
    tokenizer: str | None
    on_bad_row: str
