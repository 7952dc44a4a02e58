"""The table of a server's flags: reads a command line into options and refuses unmodelled flags."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from typing import Any

from pagesim.errors import PagesimError, brief, escaped
from pagesim.models import model
from pagesim.models.catalogue import is_config, known_as
from pagesim.models.catalogue.unknown import unknown
from pagesim.models.layers import IndexerLayer
from pagesim.models.weights import GROUPS
from pagesim.setup.serve_flags import Arity, Flag
from pagesim.setup.serve_parts import add_part, object_of, text_of, without_part
from pagesim.setup.serve_words import FlagRefused, Given, Reader, is_flag, number

QUANTIZED: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("awq", "awq_marlin"), ("int4",)),
    **dict.fromkeys(("gptq", "gptq_marlin"), ("int2", "int3", "int4", "int8")),
    "compressed-tensors": ("int4", "int8", "fp8", "fp8_block", "mxfp8", "nvfp4", "mxfp4"),
    "fp8": ("fp8", "fp8_block"),
    **dict.fromkeys(("modelopt", "modelopt_mixed"), ("fp8", "fp8_block", "mxfp8", "nvfp4")),
    "modelopt_fp4": ("nvfp4",),
    "mxfp4": ("mxfp4",),
}
"""Quantization methods of both servers, with the weight dtypes of checkpoints for which naming the method
changes nothing. With ``fp8``, a 16-bit checkpoint is quantized while loading."""


Settle = Callable[[Mapping[str, list[str]], dict[str, Any]], tuple[Collection[str], list[str]]]

_OPPOSITE = {"enable": "disable", "disable": "enable"}


@dataclass(frozen=True)
class FlagTable:
    """The flags of a server, and how a line of them is read.

    Attributes:
        server: name of the server, for messages.
        engine: engine that the server runs.
        command: command that starts the server, followed by the model.
        flags: rows of the server's flags and variables, by name.
        relaxed: whether underscores may replace dashes, ``enable`` and ``disable`` negate each other, part of
            a value may be named after a dot, a value may directly follow ``-O``, and the model may stand
            anywhere without its flag.
        prefixes: name prefixes of the server's variables.
        skips_unknown: whether the server ignores unknown variables.
        size: parser of a whole number with a suffix.
        readers: readers of ``taken`` flags that need their own, by flag; each makes options of the flag's
            name and last value.
        model: flag that names the model.
        length: flag that gives the tokens of the longest request.
        own_length: longest request in tokens that a model accepts, given its name and a line's flags.
        kernels: flags that select kernels for experts.
        settle: converts flags that interact into options; returns the ``taken`` flags without effect, and
            further notes.
        checkpoints: by quantization method, the weight dtypes of checkpoints for which naming it changes
            nothing.
        online: by quantization method, the weight dtype to which it converts a 16-bit checkpoint on loading.
        online_experts: methods that quantize only the experts of such a checkpoint.
    """

    server: str
    engine: str
    command: str
    flags: Mapping[str, Flag]
    relaxed: bool
    prefixes: tuple[str, ...]
    skips_unknown: bool
    size: Callable[[str], int]
    readers: Mapping[str, Reader]
    model: str
    length: str
    own_length: Callable[[str, Mapping[str, list[str]]], int]
    kernels: tuple[str, ...]
    settle: Settle
    checkpoints: Mapping[str, tuple[str, ...]]
    online: Mapping[str, str]
    online_experts: Collection[str] = ()

    @cached_property
    def spellings(self) -> dict[str, tuple[str, bool]]:
        """By spelling, with dashes: the flag's name, and whether the spelling turns it on."""
        found: dict[str, tuple[str, bool]] = {}
        for name, flag in self.flags.items():
            if flag.is_variable or flag.is_part or flag.is_older:
                continue
            for spelling, on in flag.spellings().items():
                found[spelling] = name, on
                verb, dash, what = spelling[2:].partition("-")
                if self.relaxed and flag.is_switch and verb in _OPPOSITE:
                    found[f"--{_OPPOSITE[verb]}{dash}{what}"] = name, not on
        return found

    def options(
        self, variables: list[str], words: list[str]
    ) -> tuple[dict[str, Any], dict[str, list[str]], tuple[str, ...]]:
        """Return the options that a line sets, its flags with their values, and notes, as on unused flags.

        Args:
            variables: variable assignments in front of the command.
            words: words that follow the command.

        Raises:
            PagesimError: the line does not name one model, or something in it is unknown or invalid.
            FlagRefused: a flag or a variable is not modelled.
        """
        options: dict[str, Any] = {}
        without: list[str] = []
        for assignment in variables:
            name, _, value = assignment.partition("=")
            decided = self._of_variable(name, value)
            without += [] if decided else [name]
            options |= decided
        words, older = self.renewed(words)
        given, models = self._given(words)
        if len(models) != 1:
            said = f"names {' and '.join(models)}" if models else "names no model"
            raise PagesimError(f"--serve {said[:200]}; it must name one model, as in {self.command} MODEL")
        for name, values in given.items():
            self._check(self.flags[name], values)
        known = _known_model(models[0])
        options["model"] = known
        for name, values in given.items():
            options |= self._decided(self.flags[name], values)
        self._check_kernels(known, given)
        if "quantization" in given:
            options |= self._quantized(known, given["quantization"][-1])
        assigned = {name: [value] for name, _, value in (each.partition("=") for each in variables)}
        self._check_length(known, given | assigned, options)
        self._check_layers(known, given)
        idle, notes = self.settle(given, options)
        without += [f"--{name}" for name in given if self.flags[name].kind != "taken" or name in idle]
        if without:
            notes.insert(0, f"of the {self.server} line without an effect here: {', '.join(without)}")
        if older:
            notes.append(
                f"{self.server} does not start with flags of older releases; the line is read without "
                f"{', '.join(older)}, or with what took their place"
            )
        return options, given, tuple(notes)

    def _given(self, words: list[str]) -> tuple[dict[str, list[str]], list[str]]:
        """Return the flags of a line with their values, and the models that it names.

        Parts of an object named after a dot count as the whole object given at the end of the line. A part
        with its own row counts as a flag of its own.
        """
        given: dict[str, list[str]] = {}
        models: list[str] = []
        dotted: dict[str, tuple[str, dict[str, Any]]] = {}
        for each in self.read(words):
            if each.path:
                spelled = each.words[0].partition(".")[0]
                add_part(dotted.setdefault(spelled, (each.name, {}))[1], each.path, each.values[-1])
            elif each.name:
                given[each.name] = each.values
            elif self.relaxed:
                models += each.values
            else:
                raise PagesimError(f"--serve: {brief(each.values[0], 80)} belongs to no flag; take it out")
        for name, whole in dotted.values():
            given[name] = [json.dumps(whole)]
        models += given.pop(self.model, [])
        parted: dict[str, list[str]] = {}
        for name, values in given.items():
            whole = object_of(values[-1]) if name in self._objects else {}
            parted |= self._parts(name, whole) if whole else {name: values}
        return parted, models

    @cached_property
    def _objects(self) -> set[str]:
        """Flags whose values have parts with their own rows."""
        return {name.partition(".")[0] for name, flag in self.flags.items() if flag.is_part}

    def _parts(self, name: str, whole: dict[str, Any]) -> dict[str, list[str]]:
        """Return the parts of an object that have rows, and the rest as the value of the flag itself."""
        found: dict[str, list[str]] = {}
        rest = whole
        for each, value in whole.items():
            part = f"{name}.{each}"
            if part in self.flags:
                found[part] = [text_of(value)]
            elif isinstance(value, dict) and any(row.startswith(f"{part}.") for row in self.flags):
                found |= self._parts(part, value)
            else:
                continue
            rest = without_part(rest, (each,))
        head = name.partition(".")[0]
        return {**found, head: [json.dumps(rest)]} if rest or not found else found

    def _of_variable(self, name: str, value: str) -> dict[str, Any]:
        """Return the options that a variable sets; refuse it if it may have effects that are not modelled."""
        for prefix in self.prefixes:
            own = self.flags.get(self.prefixes[0] + name.removeprefix(prefix))
            if not name.startswith(prefix) or (own is None and self.skips_unknown):
                continue
            if own is not None and own.kind == "taken":
                return {own.option: value not in ("0", "false")}
            if own is None or (own.kind == "refused" and value not in own.values):
                why = "" if own is None else f". The variable {own.does[0].lower()}{own.does[1:]}"
                raise FlagRefused(
                    name, f"{name} may affect scheduling and is not modelled; leave it out{why}"
                )
        return {}

    def _decided(self, flag: Flag, values: list[str]) -> dict[str, Any]:
        """Return the options that a flag sets by itself."""
        if flag.kind != "taken":
            return {}
        if flag.flag in self.readers:
            return self.readers[flag.flag](flag.flag, values[-1])
        if flag.reads == "switch":
            return {flag.option: values != ["false"]}
        reads: dict[str, Callable[[str], Any]] = {
            "whole": int,
            "number": float,
            "text": str,
            "size": self.size,
        }
        return number(flag.option, reads[flag.reads])(flag.flag, values[-1]) if flag.reads in reads else {}

    def read(self, words: list[str]) -> Iterator[Given]:
        """Yield the flags of a line, and the words that belong to no flag.

        Raises:
            PagesimError: a flag is unknown, or has too few or too many values.
        """
        at = 0
        while at < len(words):
            begin, word = at, words[at]
            at += 1
            if not is_flag(word):
                yield Given("", [word], [word])
                continue
            flag, sign, value = word.partition("=")
            if self.relaxed and re.fullmatch(r"-O[^=]+", flag):
                flag, sign, value = "-O", "=", flag[2:]
            name, on, path = self._named(flag)
            arity: Arity = "one" if path else self.flags[name].takes
            values = [value] if sign else []
            if arity in ("none", "switch"):
                if sign:
                    raise PagesimError(f"--serve: {flag} takes no value, and has {brief(value, 80)}")
                values = [] if on else ["false"]
            elif not sign:
                most = {"one": 1, "perhaps": 1, "several": len(words)}[arity]
                while at < len(words) and len(values) < most and not is_flag(words[at]):
                    values.append(words[at])
                    at += 1
                if not values and arity != "perhaps":
                    raise PagesimError(f"--serve: {flag} needs a value")
            yield Given(name, values, words[begin:at], path)

    def renewed(self, words: list[str]) -> tuple[list[str], list[str]]:
        """Return the words of a line without flags of older releases, and these flags.

        What took a flag's place replaces it. A flag that cannot be replaced is kept, and refused later.
        """
        kept: list[str] = []
        older: list[str] = []
        for each in self.read(words):
            flag = self.flags.get(each.name)
            if flag is None or not flag.is_older or not (flag.kind == "gone" or flag.replaces(each.values)):
                kept += each.words
                continue
            older.append(f"--{flag.flag}")
            if flag.instead:
                kept += [*flag.instead.split(), *each.values]
        return kept, older

    def replaced(self, words: list[str], name: str, instead: tuple[str, ...]) -> list[str]:
        """Return the words of a line with all occurrences of a flag replaced by other words."""
        kept: list[str] = []
        name, *path = name.split(".")
        for each in self.read(words):
            if each.name != name or (each.path and each.path[: len(path)] != tuple(path)):
                kept += each.words
            elif path and not each.path:
                rest = without_part(object_of(each.values[-1]), path)
                kept += [f"--{name}", json.dumps(rest)] if rest else []
            elif instead:
                kept += instead
                instead = ()
        return kept

    def _named(self, flag: str) -> tuple[str, bool, tuple[str, ...]]:
        """Return a flag's name, whether it turns a switch on, and the names after its dots."""
        head, *path = flag.split(".") if self.relaxed else [flag]
        if head.startswith("--") and self.relaxed:
            head = head.replace("_", "-")
        older = self.flags.get(head[2:])
        if older is not None and older.is_older:
            return older.flag, True, tuple(path)
        if head not in self.spellings:
            begun = [each for each in self.spellings if head.startswith("--") and each.startswith(head)]
            if len({self.spellings[each] for each in begun}) != 1 or head == "--":
                wrong = "is the beginning of several flags" if begun and head != "--" else "is no flag"
                close = [] if begun else get_close_matches(head, self.spellings, 1, 0.8)
                hint = f"; did you mean {close[0]}?" if close else ""
                raise PagesimError(f"--serve: {brief(flag, 80)} {wrong} of {self.server}{hint}")
            head = begun[0]
        return *self.spellings[head], tuple(path)

    def _check(self, flag: Flag, values: list[str]) -> None:
        """Refuse flags that affect scheduling and are not modelled, and flags of earlier releases."""
        said = escaped(f"--{flag.flag} {' '.join(values)}".strip())[:120]
        if flag.is_older:
            raise FlagRefused(
                flag.flag,
                f"--{flag.flag} is a flag of older releases, which {self.server} refuses: {flag.does}",
            )
        if flag.kind != "refused" or (flag.is_switch and values == ["false"]):
            return
        if values and values[-1] in flag.values:
            return
        remedy = f"it may be {' or '.join(flag.values)}" if flag.values else "leave it out"
        raise FlagRefused(
            flag.flag,
            f"{said} affects scheduling and is not modelled; {remedy}. The flag "
            f"{flag.does[0].lower()}{flag.does[1:]}",
        )

    def _check_layers(self, name: str, given: Mapping[str, list[str]]) -> None:
        """Refuse a flag that affects layers of the model, which are modelled only without the flag."""
        spec = model(name)
        if spec.keeps_all and not any(isinstance(layer, IndexerLayer) for layer in spec.cache_layers):
            return
        for flag in given:
            if self.flags[flag].kind == "layers" and given[flag] != ["false"]:
                raise FlagRefused(
                    flag,
                    f"--{flag} would change what the layers of {brief(name, 80)} keep, and is not "
                    "modelled; leave it out",
                )

    def _check_kernels(self, name: str, given: Mapping[str, list[str]]) -> None:
        """Refuse a choice of kernels for MXFP4 experts, whose weights kernels pad differently."""
        dtype = model(name).weights.of("experts")
        for flag in self.kernels:
            chosen = given.get(flag, ["auto"])[-1]
            if chosen != "auto" and dtype is not None and dtype.name.startswith("mxfp4"):
                raise FlagRefused(
                    flag,
                    f"--{flag} {escaped(chosen)[:80]} would change how far the MXFP4 experts of "
                    f"{brief(name, 80)} are padded, and is not modelled; leave it out",
                )

    def _quantized(self, name: str, method: str) -> dict[str, str]:
        """Return the weight dtype that a quantization method gives a model, unless it is the model's own."""
        spec = model(name)
        own = {dtype.name for group in GROUPS if (dtype := spec.weights.of(group)) and dtype.quantized}
        if method.lower() == "none" or own & set(self.checkpoints.get(method, ())):
            return {}
        if method in self.online and not own:
            return {"weight_dtype": self.online[method]}
        if method in self.online_experts and not own and spec.moe is None:
            return {}
        remedy = "it may be none or fp8, or name a quantized config.json as the model"
        raise FlagRefused(
            "quantization",
            f"--quantization {escaped(method)[:80]} affects scheduling and is not modelled for "
            f"{brief(name, 80)}, whose weights are {spec.weights_in_words}; "
            f"{'leave it out' if own else remedy}",
        )

    def _check_length(self, name: str, given: Mapping[str, list[str]], options: dict[str, Any]) -> None:
        """Refuse a maximum length beyond the model's own, as the server does."""
        own = self.own_length(name, given)
        if own != model(name).max_model_len:
            options.setdefault("max_model_len", own)
        asked = options.get("max_model_len")
        if isinstance(asked, int) and asked > own:
            raise FlagRefused(
                self.length,
                f"--{self.length} is {asked}, more than the {own} tokens of "
                f"{options['model']}; {self.engine} does not start so",
            )


def _known_model(word: str) -> str:
    """Return a model's known name or path, or refuse an unknown one."""
    known = known_as(word)
    if known is not None:
        return known
    if not is_config(word):
        raise PagesimError(f"--serve: {unknown(word, 200)}")
    model(word)
    return word
