"""A trial: one file changed, read, and judged. The same seed, target and turn give the same trial."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mutators import mutate
from targets import Target

from pagesim.errors import PagesimError

LONGEST_S = 10.0
ROOM = 1 << 30
"""Bytes of addresses that a reader may take beyond what the process has."""

LONGEST_SENTENCE = 3000

DATA, REFUSED = "data", "refused"


@dataclass(frozen=True)
class Outcome:
    """What came of a trial.

    Attributes:
        target: what was read.
        kind: ``data``, ``refused``, or the name of what went wrong.
        detail: the sentence, or the traceback.
    """

    target: str
    kind: str
    detail: str

    @property
    def good(self) -> bool:
        return self.kind in (DATA, REFUSED)


class Hang(BaseException):
    """A reader takes too long."""


def carry_out(seed: int, target: Target, turn: int, folder: Path) -> Outcome:
    """Put a target's files into a folder, one of them changed, what it held before removed, and read them."""
    rng = random.Random(f"{seed} {target.name} {turn}")
    for file in sorted(folder.rglob("*"), reverse=True):
        file.rmdir() if file.is_dir() else file.unlink()
    changed = rng.choice(target.mutated or tuple(target.files))
    target.put(folder, {changed: mutate(changed, target.files[changed], rng)})
    return read(target, folder)


def read(target: Target, folder: Path) -> Outcome:
    """Read a target's files, and say what came of it."""
    try:
        with limited(), _silent(), warnings.catch_warnings():
            warnings.simplefilter("error")
            target.read(folder)
    except PagesimError as error:
        return Outcome(target.name, *_judged(str(error)))
    except (Exception, Hang) as error:
        return Outcome(target.name, type(error).__name__, traceback.format_exc())
    except BaseException as error:
        # What a library written in another language panics with is no Exception.
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        return Outcome(target.name, type(error).__name__, traceback.format_exc())
    return Outcome(target.name, DATA, "")


def _judged(sentence: str) -> tuple[str, str]:
    if not sentence.strip():
        return "empty sentence", sentence
    if not sentence.isprintable():
        return "more than a line, or unprintable", repr(sentence)
    if len(sentence) > LONGEST_SENTENCE:
        return "endless sentence", sentence[:300]
    return REFUSED, sentence


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """Give what is within a bounded time of the processor, and a bounded number of addresses."""

    def over(*_: object) -> None:
        raise Hang(f"more than {LONGEST_S:g} s")

    # The processor's time: on a busy machine a second may be long. A reader that sleeps is found outside.
    before = signal.signal(signal.SIGPROF, over)
    most = resource.getrlimit(resource.RLIMIT_AS)
    has = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (has + ROOM, most[1]))
    signal.setitimer(signal.ITIMER_PROF, LONGEST_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_AS, most)
        signal.signal(signal.SIGPROF, before)


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):  # noqa: PTH123
        yield
