"""``vllm serve …`` as it stands in a shell: the options that it decides, and what has no effect here."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from pagesim.costs.specs import model
from pagesim.costs.specs.catalogue import is_config, known_as
from pagesim.costs.specs.layers import KV_SCALE_BYTES
from pagesim.costs.specs.weights import GROUPS
from pagesim.errors import PagesimError, brief, escaped
from pagesim.setup.serve_flags import (
    ALIASES,
    FLAGS,
    HARMLESS,
    HARMLESS_VARIABLES,
    LAYERED,
    NOTED,
    QUANTIZATIONS,
    REFUSED,
    TAKEN,
)

RELEASE = "0.33.0"
"""Whose flags a line is read with."""

FIXED = {"policy": "vllm-v1", "vllm_version": RELEASE}
"""What every line says."""

FOREIGN = ("scheduler", "reservation", "placement", "page_size")
"""Options that put something else in the place of vLLM's parts."""

_SERVER = "vllm.entrypoints.openai.api_server"
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_NUMBER = re.compile(r"-\d+$|-\d*\.\d+$")
_SHELL = re.compile(r"[$`]|^(?:[&|;<>()]+|\d?>.*)$")
_READABLE = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT])")
_SUFFIXES = "kmgt"


@dataclass(frozen=True, slots=True)
class Served:
    """What a line says.

    Attributes:
        options: of a system, by name.
        notes: what of the line has no effect here.
    """

    options: Mapping[str, Any]
    notes: tuple[str, ...] = ()

    def over(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options that were given otherwise with the line's put over them.

        Raises:
            PagesimError: they contradict the line, or there is no GPU among them.
        """
        if given.get("gpu") is None:
            raise PagesimError("--serve needs the GPU that is served on; name it with --gpu")
        for name in FOREIGN:
            if given.get(name) not in (None, FIXED["policy"]):
                raise PagesimError(f"--serve is about vLLM as it is; leave {name} {given[name]} out")
        for name, value in self.options.items():
            other = given.get(name, value)
            if other is not None and other != value:
                raise PagesimError(
                    f"--serve says {name} {value}, and beside it {name} is {other}; leave one of them out"
                )
        return {**given, **self.options}


def read_serve(line: str) -> Served:
    """Return what a ``vllm serve`` line of release 0.33.0 says.

    Args:
        line: ``vllm serve MODEL …``, or ``python -m vllm.entrypoints.openai.api_server …``; assignments of
            variables may stand in front.

    Raises:
        PagesimError: it is no such line, a flag is unknown or not modelled, or a value is off; the sentence
            names it.
    """
    words = _words(line)
    variables = []
    while words and _VARIABLE.match(words[0]):
        variables.append(words.pop(0).partition("=")[0])
    for name in variables:
        if name.startswith("VLLM_") and name.removeprefix("VLLM_") not in HARMLESS_VARIABLES:
            raise PagesimError(
                f"--serve: {name} may change what is decided, and is not modelled; leave it out"
            )
    models, flags = [], {}
    for name, values in _read(_arguments(words)):
        if name:
            flags[name] = values
        else:
            models += values
    if "model" in flags:
        models += flags.pop("model")
    if len(models) != 1:
        said = f"names {' and '.join(models)}" if models else "names no model"
        raise PagesimError(f"--serve {said[:200]}; it must name one model, as in vllm serve MODEL")
    for name in flags:
        _check(name, flags[name])
    options = {"model": _model(models[0]), **_options(flags)}
    if "quantization" in flags:
        options |= _quantization(options["model"], flags["quantization"][-1])
    _check_length(options)
    _check_layers(options["model"], flags)
    without = [*variables, *(f"--{name}" for name in flags if name not in TAKEN)]
    notes = (f"of the vllm serve line without an effect here: {', '.join(without)}",) if without else ()
    return Served({**FIXED, **options}, notes)


def readable(text: str) -> int:
    """Return a whole number as vLLM reads it: 32k is 32,000 and 32K is 32,768.

    Raises:
        ValueError: it is none.
    """
    found = _READABLE.fullmatch(text.strip())
    if found is None:
        return int(text)
    number, suffix = found.groups()
    power = _SUFFIXES.index(suffix.lower()) + 1
    return int(number) * 1024**power if suffix.isupper() else int(float(number) * 1000**power)


def _words(line: str) -> list[str]:
    """Return a line's words as a shell would."""
    try:
        words = shlex.split(line.replace("\\\n", " "))
    except ValueError as error:
        raise PagesimError(f"--serve cannot be parsed: {str(error).lower()}") from None
    for word in words:
        if _SHELL.search(word):
            raise PagesimError(
                f"--serve holds {brief(word, 80)}, which means something to a shell only; write the command "
                "out"
            )
    return words


def _arguments(words: list[str]) -> list[str]:
    """Return what follows the command."""
    command = PurePosixPath(words[0]).name if words else ""
    if command == "vllm" and words[1:2] == ["serve"]:
        return words[2:]
    if re.fullmatch(r"python[\d.]*", command) and words[1:3] == ["-m", _SERVER]:
        return words[3:]
    raise PagesimError(
        f"--serve is {brief(' '.join(words), 80)}; it must begin with vllm serve, or python -m {_SERVER}"
    )


def _read(words: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield each flag by its name with its values, ``false`` for a switch that is off; '' for no flag."""
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if not _is_flag(word):
            yield "", [word]
            continue
        flag, sign, value = word.partition("=")
        if re.fullmatch(r"-O[^=]+", flag):  # its value may stand right behind it
            flag, sign, value = "-O", "=", flag[2:]
        name, on, dotted = _named(flag)
        arity = "one" if dotted else FLAGS[name]
        values = [value] if sign else []
        if arity == "none":
            if sign:
                raise PagesimError(f"--serve: {flag} takes no value, and has {brief(value, 80)}")
            values = [] if on else ["false"]
        elif not sign:
            most = {"one": 1, "perhaps": 1, "several": len(words)}[arity]
            while at < len(words) and len(values) < most and not _is_flag(words[at]):
                values.append(words[at])
                at += 1
            if not values and arity != "perhaps":
                raise PagesimError(f"--serve: {flag} needs a value")
        yield name, values


def _is_flag(word: str) -> bool:
    return word.startswith("-") and not _NUMBER.match(word) and word != "-"


def _spelled(name: str, on: bool = True) -> Iterator[tuple[str, bool]]:
    """Yield the spellings of a flag, and whether each turns it on."""
    yield name, on
    if FLAGS[name] == "none":
        yield f"no-{name}", not on
        for one, other in (("enable-", "disable-"), ("disable-", "enable-")):
            if name.startswith(one):
                yield other + name.removeprefix(one), not on


_SPELLINGS: dict[str, tuple[str, bool]] = {
    spelling: (name, on) for name in FLAGS for spelling, on in _spelled(name)
}


def _named(flag: str) -> tuple[str, bool, bool]:
    """Return a flag's name, whether it turns a switch on, and whether it is about a part of a value.

    Raises:
        PagesimError: it is no flag, or the beginning of several.
    """
    head, dot, _ = flag.partition(".")
    if not head.startswith("--"):
        found = ALIASES.get(head)
        if found is None:
            raise PagesimError(f"--serve: {brief(flag, 80)} is no flag of vllm serve {RELEASE}")
        return found, True, bool(dot)
    word = head[2:].replace("_", "-")
    word = ALIASES.get(word, word)
    if word not in _SPELLINGS:
        begun = [spelling for spelling in _SPELLINGS if word and spelling.startswith(word)]
        if len(begun) != 1:
            wrong = "is the beginning of several flags" if begun else "is no flag"
            raise PagesimError(f"--serve: {brief(flag, 80)} {wrong} of vllm serve {RELEASE}")
        word = begun[0]
    name, on = _SPELLINGS[word]
    return name, on, bool(dot)


def _check(name: str, values: list[str]) -> None:
    """Refuse a flag that would change what is decided and is not modelled."""
    if name in TAKEN or name in NOTED or (name in REFUSED and values == ["false"]):
        return
    if name in HARMLESS and values and values[-1] in HARMLESS[name]:
        return
    said = f"--{name} {' '.join(values)}".strip()
    remedy = f"it may be {' or '.join(HARMLESS[name])}" if name in HARMLESS else "leave it out"
    raise PagesimError(
        f"--serve: {escaped(said)[:120]} would change what is decided, and is not modelled; {remedy}"
    )


def _number_of(read: Callable[[str], Any], name: str, text: str) -> Any:
    try:
        return read(text)
    except (ValueError, OverflowError):
        wanted = "a number" if read is float else "a whole number"
        raise PagesimError(f"--serve: --{name} is {brief(text, 80)}; it must be {wanted}") from None


def _retention(text: str) -> int:
    """Return a retention interval: what vLLM calls None is -1 here."""
    if text in ("", "None"):
        return -1
    interval = int(text)
    if interval < 0:
        raise ValueError(f"{interval} is negative")
    return interval


_KINDS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "max-model-len": ("max_model_len", readable),
    "tensor-parallel-size": ("tensor_parallel_size", int),
    "gpu-memory-utilization": ("gpu_memory_utilization", float),
    "block-size": ("block_size", int),
    "num-gpu-blocks-override": ("num_blocks", int),
    "max-num-batched-tokens": ("max_num_batched_tokens", readable),
    "max-num-seqs": ("max_num_seqs", int),
    "long-prefill-token-threshold": ("long_prefill_token_threshold", int),
    "watermark": ("watermark", float),
    "scheduling-policy": ("scheduling_policy", str),
    "prefix-cache-retention-interval": ("prefix_cache_retention_interval", _retention),
}
_ELEMENTS = {
    "float16": "fp16",
    "bfloat16": "bf16",
    **dict.fromkeys(("fp8", "fp8_e4m3", "fp8_e5m2"), "fp8"),
    **{name: name for name in KV_SCALE_BYTES},
}


def _options(flags: Mapping[str, list[str]]) -> dict[str, Any]:
    """Return the options that flags stand for."""
    options: dict[str, Any] = {}
    for name, values in flags.items():
        if name not in TAKEN or name == "quantization":  # what that does depends on the model
            continue
        if TAKEN[name] == "none":
            options[name.replace("-", "_")] = values != ["false"]
        elif name == "kv-cache-dtype":
            options |= _element(values[-1])
        elif name == "max-model-len" and values[-1].strip().lower() in ("auto", "-1"):
            raise PagesimError("--serve: --max-model-len auto is not modelled; give the tokens")
        else:
            option, read = _KINDS[name]
            options[option] = _number_of(read, name, values[-1])
    return options


def _element(text: str) -> dict[str, str]:
    if text == "auto":  # the model's own, of two bytes
        return {}
    if text not in _ELEMENTS:
        known = ", ".join(("auto", *_ELEMENTS))
        raise PagesimError(f"--serve: --kv-cache-dtype {brief(text, 80)} is not modelled; it may be {known}")
    return {"kv_cache_dtype": _ELEMENTS[text]}


def _quantization(name: str, method: str) -> dict[str, str]:
    """Return the weight dtype that a method of quantization gives a model, if it is not the model's own."""
    spec = model(name)
    own = {dtype.name for group in GROUPS if (dtype := spec.weights.of(group)) and dtype.quantized}
    if method.lower() == "none" or own & set(QUANTIZATIONS.get(method, ())):
        return {}
    if method == "fp8" and not own:
        return {"weight_dtype": "fp8"}
    remedy = "leave it out" if own else "it may be none or fp8, or name a quantized config.json as the model"
    raise PagesimError(
        f"--serve: --quantization {escaped(method)[:80]} would change what is decided, and is not modelled "
        f"for {brief(name, 80)}, whose weights are {spec.weights_in_words}; {remedy}"
    )


def _model(word: str) -> str:
    """Return a model's name or path, if there is such a model here."""
    known = known_as(word)
    if known is not None:
        return known
    if re.fullmatch(r"[^/\\]+/[^/\\]+", word) and not is_config(word):
        raise PagesimError(
            f"--serve: pagesim does not know the model {brief(word, 200)}, and downloads nothing; put the "
            "path of its config.json in its place"
        )
    model(word)
    return word


def _check_layers(name: str, flags: Mapping[str, list[str]]) -> None:
    """Refuse a flag about layers that the model has, and that are modelled without it."""
    if model(name).keeps_all:
        return
    for flag in flags:
        if flag in LAYERED and flags[flag] != ["false"]:
            raise PagesimError(
                f"--serve: --{flag} would change what the layers of {brief(name, 80)} keep, and is not "
                "modelled; leave it out"
            )


def _check_length(options: Mapping[str, Any]) -> None:
    """Refuse requests that are longer than the model is made for, as the server does."""
    own = model(options["model"]).max_model_len
    if options.get("max_model_len", own) > own:
        raise PagesimError(
            f"--serve: --max-model-len is {options['max_model_len']}, more than the {own} tokens of "
            f"{options['model']}; vLLM does not start so"
        )
