"""Hostile commands of servers, under ``pagesim plan --serve`` and ``pagesim run --serve``."""

from __future__ import annotations

import random
from collections.abc import Callable

from hostile_case import Case
from nasty import NASTY_NUMBERS, NASTY_TEXTS

VLLM = "vllm serve facebook/opt-13b"
SGLANG = "sglang serve facebook/opt-13b"
ENGINES = (VLLM, VLLM, SGLANG, "python -m vllm.entrypoints.openai.api_server --model facebook/opt-13b")

COUNTS = {
    VLLM: ("max-num-seqs", "max-num-batched-tokens", "tensor-parallel-size", "num-gpu-blocks-override",
           "block-size", "max-model-len", "max-cudagraph-capture-size"),
    SGLANG: ("max-running-requests", "page-size", "tp-size", "context-length", "max-total-tokens",
             "max-prefill-tokens"),
}  # fmt: skip
OTHERS = (
    "gpu-memory-utilization", "kv-cache-dtype", "quantization", "kv-offloading-size", "scheduling-policy",
    "watermark", "long-prefill-token-threshold", "compilation-config", "hf-overrides", "speculative-config",
    "override-generation-config", "limit-mm-per-prompt", "cudagraph-capture-sizes", "served-model-name",
    "dtype", "port", "seed", "pipeline-parallel-size", "data-parallel-size", "config", "load-format",
)  # fmt: skip
OF_SGLANG = (
    "mem-fraction-static", "kv-cache-dtype", "schedule-policy", "chunked-prefill-size", "attention-backend",
    "quantization", "schedule-conservativeness", "radix-eviction-policy", "speculative-algorithm", "dp-size",
)  # fmt: skip
JSONS = ('{"a":' * 5000, "[" * 100_000, '{"cudagraph_mode": 5}', '{"level": NaN}', "{", "[]", "null",
         "{}" * 50,
         '{"method": "eagle", "num_speculative_tokens": 1e999}', '{"a": 1, "a": 2}', '"x"',
         "\udcff")  # fmt: skip


def _case(name: str, line: str, rng: random.Random, expects: str = "any", *more: str) -> Case:
    line = line.replace("\0", "")
    if rng.random() < 0.7:
        argv = ("plan", "--serve", line, "--gpu", "h100", *more)
    else:
        argv = ("run", "--serve", line, "--gpu", "h100", "--num-requests", "3", "--rate", "2", *more)
    return Case(name, argv, {}, expects)


def _engine(rng: random.Random) -> str:
    return rng.choice((VLLM, SGLANG))


def _no_count(rng: random.Random) -> Case:
    engine = _engine(rng)
    flag = rng.choice(COUNTS[engine])
    value = rng.choice(
        ("0", "-2", "nan", "inf", "1.5", "-0", "''", "x", "1e3", "0x10", "1_0.", "None", "2kk")
    )
    zero = {"long": ("0", "-0"), "max-cudagraph-capture-size": ("0", "-0")}
    expects = "any" if value in zero.get(flag, ()) else "refused"
    return _case("counts below 1", f"{engine} --{flag} {value}", rng, expects)


def _share(rng: random.Random) -> Case:
    engine = _engine(rng)
    flag = "gpu-memory-utilization" if engine == VLLM else "mem-fraction-static"
    value = rng.choice(("2", "-0.5", "nan", "inf", "0", "1e-9", "0.0001", "x", "''", "90%", "1.0000001"))
    return _case("shares beyond bounds", f"{engine} --{flag}={value}", rng, "refused")


def _number(rng: random.Random) -> Case:
    engine = _engine(rng)
    value = rng.choice(
        (*NASTY_NUMBERS, "9k", "9999999T", "1e6k", "-1k", "2.5K", "1" * 30 + "G", "9999999999")
    )
    return _case("nasty numbers", f"{engine} --{rng.choice(COUNTS[engine])} {value}", rng)


def _value(rng: random.Random) -> Case:
    engine = _engine(rng)
    flag = rng.choice(OTHERS if engine == VLLM else OF_SGLANG)
    value = rng.choice((*NASTY_NUMBERS, *NASTY_TEXTS[:-8], *JSONS))
    quoted = "'" + value.replace("'", "'\\''") + "'"
    return _case("nasty values", f"{engine} --{flag} {quoted}", rng)


def _words(rng: random.Random) -> Case:
    line = rng.choice(
        (
            "", " ", "'", '"', "\\", "vllm", "vllm serve", "vllm serve --", "sglang", "sglang serve -",
            "vllm serve 'x", 'vllm serve "x', "vllm serve x \\", "vllm serve $(id)", "vllm serve `id`",
            "vllm serve x | cat", "vllm serve x > /tmp/y", "vllm serve x && ls", "vllm serve x; ls",
            "vllm serve x & sleep 9", "vllm serve ${MODEL}", "A=1", "A=1 B= C", "=5 vllm serve x",
            "sudo vllm serve facebook/opt-13b", "/usr/bin/vllm serve facebook/opt-13b --zzz 5",
            "vllm bench x",
            "vllm serve /dev/zero", "vllm serve /dev/stdin", "vllm serve ../../../..", "vllm serve .",
            "vllm serve " + "x" * 50_000, "vllm serve " + "x/" * 5000, VLLM + " extra words here",
            "docker run vllm/vllm-openai --model x", "python -m", "python", "python3.99 -m vllm", "\ud800",
            VLLM + " \udcff", "vllm\u00a0serve x", VLLM + " \u2014max-model-len 5", VLLM + "\n--port 5",
            VLLM + " # comment", VLLM + " \x1b[31m", VLLM + " --max-model-len", VLLM + " -tp", VLLM + " --=5",
            VLLM + " --max-model-len=", VLLM + " -O9", VLLM + " -O.level=3", VLLM + " ---tp 2", "٣ serve x",
        )
    )  # fmt: skip
    return _case("words that are no command", line, rng)


def _endless(rng: random.Random) -> Case:
    number = rng.choice((300, 5000, 30_000))
    flag = rng.choice(
        ("--served-model-name " + "a " * number, " --port 5" * number, " --zzz" * number, " -" * number,
         " --api-key " + "k" * number * 20, "A=1 " * number, " '" + "\\'" * number,
         " --max-model-len " * number)
    )  # fmt: skip
    engine = _engine(rng)
    return _case("endless", flag + engine if flag.startswith("A=") else f"{engine} {flag}", rng)


def _against(rng: random.Random) -> Case:
    more = rng.choice(
        (("--max-model-len", "77"), ("--policy", "orca-max"), ("--scheduler", "vllm-v0"), ("--model",
                                                                                           "llama-3.1-8b"),
         ("--block-size", "7"), ("--num-blocks", "0"), ("--tensor-parallel-size", "-1"))
    )  # fmt: skip
    return _case(
        "flags that contradict", f"{VLLM} --max-model-len 1k --block-size 16 -tp 2", rng, "refused", *more
    )


def _variables(rng: random.Random) -> Case:
    name = rng.choice(
        ("VLLM_ATTENTION_BACKEND", "HF_HOME", "VLLM_USE_V1", "CUDA_VISIBLE_DEVICES", "SGLANG_X", "É")
    )
    value = rng.choice((*NASTY_TEXTS[:-8], "0", "1", "FLASHINFER", "x" * 9000))
    return _case("variables", f"{name}='{value}' {rng.choice(ENGINES)}", rng)


def _several(rng: random.Random) -> Case:
    engine = _engine(rng)
    flags = OTHERS if engine == VLLM else OF_SGLANG
    line = engine
    for _ in range(rng.choice((2, 4, 8))):
        flag = rng.choice((*flags, *COUNTS[engine]))
        flag = rng.choice((flag, flag.replace("-", "_"), flag.upper(), flag[:-1], f"no-{flag}"))
        value = rng.choice(("8", "0.9", "auto", "fp8", "2k", "", "-1", "x"))
        line += f" --{flag}{rng.choice((' ', '=', '  '))}{value}"
    return _case("several flags", line, rng)


MAKERS: tuple[Callable[[random.Random], Case], ...] = (
    _no_count, _value, _words, _number, _share, _several, _endless, _against, _variables, _value,
)  # fmt: skip
