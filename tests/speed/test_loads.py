"""The loads of docs/explanation/performance.md: each has a command, and its time has rooms."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

LOADS = Path(__file__).with_name("loads.py")


def said(*arguments: object) -> str:
    command = [sys.executable, str(LOADS), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout


def test_each_load_has_a_command_of_its_own() -> None:
    commands = said("--commands").splitlines()
    assert len(commands) == len({line.partition(": ")[2] for line in commands}) > 10


def test_loads_whose_traces_are_not_at_hand_are_left_out() -> None:
    with pytest.raises(subprocess.CalledProcessError) as refusal:
        said("--only", "mooncake")
    assert "need --conversations" in refusal.value.stderr


def test_a_profile_gives_each_room_its_share() -> None:
    rooms, *functions = said("--only", "ShareGPT, vllm-sosp", "--requests", 300, "--profile", 3).splitlines()
    shares = {name: int(share) for name, share in re.findall(r"(\w+) (\d+)%", rooms)}
    assert {"scheduling", "kvcache", "sim", "accounting"} <= set(shares)
    assert 90 <= sum(shares.values()) <= 105
    assert len(functions) == 3


@pytest.mark.slow
def test_a_load_is_measured() -> None:
    name, timeouts, memory = (
        said("--only", "Gemma 3 27B, prefix", "--requests", 100).strip("| \n").split(" | ")
    )
    assert name == "Gemma 3 27B, prefix caching"
    assert 1 < float(timeouts) < 100_000
    assert float(memory) > 20


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("valgrind"), reason="valgrind is not installed")
def test_the_instructions_of_a_load_are_the_same_each_time() -> None:
    asked = ("--only", "ShareGPT, vllm-sosp", "--requests", 300, "--instructions")
    counted = [[float(cell) for cell in said(*asked).strip("| \n").split(" | ")[1:]] for _ in range(2)]
    assert counted[0] == pytest.approx(counted[1], rel=0.005)
    thousands, in_timeouts = counted[0]
    assert 20 < thousands < 2000
    assert 2 < in_timeouts < 200
