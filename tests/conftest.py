"""What several tests need: the published traces and the golden logs, where they are at hand."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from functools import lru_cache
from importlib.metadata import EntryPoints, entry_points
from pathlib import Path

import pytest
import simpy
import typer
from hypothesis import HealthCheck, is_hypothesis_test, settings

from pagesim.setup import plugins
from tests.commands import cli, refused, succeeds  # noqa: F401

# The same examples in every run: a few in `make test`, many in `make test-all`, which asks for --hypothesis-
# profile=thorough; with it every Hypothesis test is slow, too. --hypothesis-profile=search looks for others.
EASY = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("quick", derandomize=True, max_examples=20, **EASY)
settings.register_profile("thorough", derandomize=True, max_examples=400, **EASY)
settings.register_profile("search", max_examples=10_000, **EASY)
settings.load_profile("quick")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rooms", action="store_true", help="end with the tests and seconds of every folder")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Make slow what is slow only at times: Hypothesis tests where they are thorough, cases but a few.

    What takes minutes begins first: at the end the other workers would wait for it.
    """
    items.sort(key=lambda item: item.get_closest_marker("takes_minutes") is None)
    for item in items:
        quick = item.get_closest_marker("slow_but")
        if quick is not None and item.callspec.id not in quick.args:
            item.add_marker(pytest.mark.slow)
    if config.getoption("hypothesis_profile", None) == "thorough":
        for item in items:
            if is_hypothesis_test(getattr(item, "obj", None)):
                item.add_marker(pytest.mark.slow)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print a row a room: its tests, and the seconds that they and their fixtures took."""
    if not config.getoption("rooms"):
        return
    tests: Counter[str] = Counter()
    seconds: Counter[str] = Counter()
    for outcome in ("passed", "failed", "error", "skipped", "xfailed", ""):
        for report in terminalreporter.getreports(outcome):
            folder = report.nodeid.split("::")[0].split("/")[1]
            room = "(pages and API)" if folder.endswith(".py") else folder
            tests[room] += report.when == "call" or report.outcome != "passed"
            seconds[room] += getattr(report, "duration", 0.0)  # a file that cannot be read has none
    terminalreporter.section("rooms")
    for room in sorted(tests):
        terminalreporter.write_line(f"| {room} | {tests[room]:,} | {seconds[room]:.0f} |")
    terminalreporter.write_line(f"| all | {tests.total():,} | {seconds.total():.0f} |")


SHARED = Path(__file__).resolve().parents[1].parent / "shared"

QUIET_TIMEOUT_S = 0.68e-6
"""What a bare SimPy timeout takes on the machine for which times are stated, with nothing else running."""


@pytest.fixture(autouse=True)
def nothing_stays_registered() -> Iterator[None]:
    """What a test, or a page of the documentation, registers is gone when it is over."""
    yield
    for option in plugins.HOMES:
        plugins.plugins(option)._registered.clear()


@pytest.fixture(scope="session", autouse=True)
def what_a_process_looks_up_once_is_looked_up_once() -> Iterator[None]:
    """Keep the commands that typer makes and the plug-ins of a path: tests call hundreds of commands.

    A command's own process makes and finds them once, and that takes longer than most commands.
    """

    @lru_cache
    def found(group: str, path: tuple[str, ...]) -> EntryPoints:
        return entry_points(group=group)

    with pytest.MonkeyPatch.context() as patch:
        # Two: all the commands, and the one to which the options of others' schedulers were added last.
        patch.setattr(typer.main, "get_command", lru_cache(2)(typer.main.get_command))
        patch.setattr(plugins, "entry_points", lambda group: found(group, tuple(sys.path)))
        yield


@pytest.fixture
def slowdown() -> Callable[[], float]:
    """Return how many times slower than that this machine is at the moment; 1 if it is as fast or faster."""

    def measure() -> float:
        environment = simpy.Environment()

        def wait() -> Generator[simpy.Event]:
            for _ in range(200_000):
                yield environment.timeout(1)

        environment.process(wait())
        started = time.perf_counter()
        environment.run()
        return max(1.0, (time.perf_counter() - started) / 200_000 / QUIET_TIMEOUT_S)

    return measure


@pytest.fixture(scope="session")
def shared() -> Path:
    """Return the folder of published traces and golden logs that may stand beside a checkout."""
    if not SHARED.is_dir():
        pytest.skip("the folder ../shared with published traces and golden logs is absent")
    return SHARED


@pytest.fixture(scope="session")
def sharegpt(shared: Path) -> Path:
    """Return the PagedAttention paper's own ShareGPT lengths."""
    return shared / "data" / "sharegpt_sosp23_opt.parquet"
