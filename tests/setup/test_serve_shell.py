"""A server's command within a line of a shell, beside what bash runs and containers are told to run."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from serve_lines import refusal

from pagesim.setup.serve import read_serve
from pagesim.setup.serve_shell import command_of

SERVER = """#!/bin/sh
exec python3 -c 'import json, os, sys; json.dump([sys.argv[1:], dict(os.environ)], open(sys.argv[1], "w"))' \
"$SAID" "$@"
"""
"""A server that writes its words and variables into the file that SAID names."""


@pytest.mark.parametrize(
    "line",
    [
        "vllm serve opt-13b --max-num-seqs 8 > log 2>&1",
        "vllm serve opt-13b --max-num-seqs 8 >>log 2>err",
        "vllm serve opt-13b > log --max-num-seqs 8",
        "vllm serve opt-13b --max-num-seqs 8 2>&1 | tee log",
        "vllm serve opt-13b --max-num-seqs 8 &>log",
        "nohup vllm serve opt-13b --port 1 > log 2>&1 & wait",
        "exec vllm serve opt-13b --port 1 # and no other",
        "vllm serve opt-13b \\\n  --max-model-len 1024      # half of it\n",
        "# a server\nvllm serve opt-13b --served-model-name a#b\n",
        "A=1 B='x y' vllm serve opt-13b",
        "export A=1\nexport B=2\n\nvllm serve opt-13b \\\n  --port 1",
        "export A=1 && vllm serve opt-13b && echo done",
        "cd / ; env A=1 vllm serve opt-13b ; true",
    ],
)
def test_the_words_and_variables_are_those_of_bash(line: str, tmp_path: Path) -> None:
    server, said = tmp_path / "vllm", tmp_path / "said.json"
    server.write_text(SERVER, encoding="utf-8")
    server.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SAID": str(said)}
    subprocess.run(["bash", "-c", line], cwd=tmp_path, env=environment, check=True, timeout=30)
    (_, *words), environ = json.loads(said.read_text(encoding="utf-8"))
    variables, command = command_of(line)
    assert command == ["vllm", *words]
    assert dict(each.split("=", 1) for each in variables) == {
        name: value for name, value in environ.items() if name in ("A", "B")
    }


@pytest.mark.parametrize(
    "launcher",
    [
        "docker run --gpus all -p 8000:8000 --ipc=host vllm/vllm-openai --model",
        "docker run -it --device=/dev/kfd -v ~/.cache:/root/.cache vllm/vllm-openai-rocm:latest",
        "docker run --rm --gpus all -p 8000:8000 nvcr.io/nvidia/vllm:25.11-py3 vllm serve",
        "docker run --entrypoint='' -e HF_TOKEN=$HF_TOKEN vllm/vllm-openai:nightly vllm serve",
        "uv run --with vllm vllm serve",
        "uv run python -u -m vllm.entrypoints.openai.api_server --model",
        "/opt/env/bin/vllm serve",
    ],
)
def test_a_launcher_starts_the_same_server(launcher: str) -> None:
    assert read_serve(f"{launcher} opt-13b -tp 2").options == read_serve("vllm serve opt-13b -tp 2").options


def test_a_launcher_of_sglang_starts_the_same_server() -> None:
    line = "python3 -m sglang.launch_server --model-path opt-13b --tp 2"
    image = "docker run --gpus '\"device=0,1\"' --shm-size 32g -p 30000:30000 lmsysorg/sglang:latest"
    assert read_serve(f"{image} {line}").options == read_serve(line).options


@pytest.mark.parametrize("given", ["-e ", "--env ", "--env=", "-e"])
def test_variables_of_a_container_count(given: str) -> None:
    said = refusal(f"docker run {given}VLLM_USE_V2_MODEL_RUNNER=0 vllm/vllm-openai:latest opt-13b")
    assert said.startswith("--serve: VLLM_USE_V2_MODEL_RUNNER may affect scheduling")


def test_a_second_server_is_not_overlooked() -> None:
    said = refusal("vllm serve opt-13b --port 1 & vllm serve opt-30b --port 2")
    assert said == "--serve starts more than one server; give one of them"
