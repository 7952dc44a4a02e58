"""The words of a server's command: its variables, its flags with their values, and which are refused."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pagesim.errors import PagesimError, brief, escaped
from pagesim.models import model
from pagesim.models.catalogue import is_config, known_as
from pagesim.models.catalogue.unknown import unknown
from pagesim.models.weights import GROUPS
from pagesim.setup.reading import parse_json

Arity = Literal["one", "several", "perhaps", "none"]
"""Values that a flag takes."""

QUANTIZED: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("awq", "awq_marlin"), ("int4",)),
    **dict.fromkeys(("gptq", "gptq_marlin"), ("int2", "int3", "int4", "int8")),
    "compressed-tensors": ("int4", "int8", "fp8", "fp8_block", "mxfp8", "nvfp4", "mxfp4"),
    "fp8": ("fp8", "fp8_block"),
    **dict.fromkeys(("modelopt", "modelopt_mixed"), ("fp8", "fp8_block", "mxfp8", "nvfp4")),
    "modelopt_fp4": ("nvfp4",),
    "mxfp4": ("mxfp4",),
}
"""Methods of quantization of both servers, and the weight dtypes of checkpoints for which they say nothing
new. With ``fp8`` a checkpoint of 16 bits is quantized when it is loaded."""

Reader = Callable[[str, str], dict[str, Any]]
"""What makes options of a flag's name and its value; PagesimError where the value is off."""

Settle = Callable[[Mapping[str, list[str]], dict[str, Any]], tuple[Collection[str], list[str]]]

_ARITIES: dict[str, Arity] = {"*": "several", "?": "perhaps", "!": "none"}
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_NUMBER = re.compile(r"-\d+$|-\d*\.\d+$")
_SHELL = re.compile(r"[$`]|^(?:[&|;<>()]+|\d?>.*)$")


def flags(text: str) -> dict[str, Arity]:
    """Return flags with what they take: ``!`` no value, ``?`` perhaps one, ``*`` several, otherwise one."""
    return {word.rstrip("*?!"): _ARITIES.get(word[-1], "one") for word in text.split()}


def number(option: str, read: Callable[[str], Any]) -> Reader:
    """Return the reader of a number that is an option's value.

    Args:
        option: its name.
        read: makes the number; ValueError or OverflowError where it is none.
    """

    def reads(name: str, text: str) -> dict[str, Any]:
        try:
            return {option: read(text)}
        except (ValueError, OverflowError):
            wanted = "a number" if read is float else "a whole number"
            raise PagesimError(f"--serve: --{name} is {brief(text, 80)}; it must be {wanted}") from None

    return reads


def choice(option: str, known: Mapping[str, str]) -> Reader:
    """Return the reader of one of several words.

    Args:
        option: its name.
        known: its value by the word; '' where the word says what holds without it.
    """

    def reads(name: str, text: str) -> dict[str, Any]:
        if text not in known:
            raise PagesimError(
                f"--serve: --{name} {brief(text, 80)} is not modelled; it may be {', '.join(known)}"
            )
        return {option: known[text]} if known[text] else {}

    return reads


@dataclass(frozen=True, slots=True)
class FlagTable:
    """The flags of a server, in five classes.

    Attributes:
        server: whose they are, for a sentence.
        engine: what it runs.
        command: that starts it, with the model behind.
        taken: those that decide on memory or scheduling, and that pagesim has, too.
        noted: those that change neither here.
        layered: those that change neither where all layers keep every token alike, and are refused elsewhere.
        refused: those that affect scheduling and are not modelled.
        harmless: those that are refused but for these values, which change nothing; each takes one value.
        spellings: of each flag without its dashes, and whether each turns it on.
        aliases: other spellings, with the dash where there is only one.
        older: flags that earlier releases had, and what to do instead.
        relaxed: whether underscores stand for dashes, a part of a value may be named behind a dot, a value
            stand right behind ``-O``, and the model anywhere without its flag.
        prefixes: of the server's variables.
        harmless_variables: those that change nothing, without a prefix.
        readers: by a flag of ``taken`` with a value, what makes options of its name and last value; a flag
            that has none decides nothing by itself.
        model: the flag that names the model.
        length: the flag that says the tokens of the longest request.
        kernels: the flags that choose kernels of experts.
        settle: puts what flags say together into options; returns those of ``taken`` that have no effect, and
            further notes.
        checkpoints: by method of quantization, the weight dtypes of checkpoints for which it says nothing
            new.
    """

    server: str
    engine: str
    command: str
    taken: Mapping[str, Arity]
    noted: Mapping[str, Arity]
    layered: Mapping[str, Arity]
    refused: Mapping[str, Arity]
    harmless: Mapping[str, tuple[str, ...]]
    spellings: Mapping[str, tuple[str, bool]]
    aliases: Mapping[str, str]
    older: Mapping[str, str]
    relaxed: bool
    prefixes: tuple[str, ...]
    harmless_variables: frozenset[str]
    readers: Mapping[str, Reader]
    model: str
    length: str
    kernels: tuple[str, ...]
    settle: Settle
    checkpoints: Mapping[str, tuple[str, ...]]

    def options(
        self, variables: list[str], words: list[str]
    ) -> tuple[dict[str, Any], dict[str, list[str]], tuple[str, ...]]:
        """Return the options that a line decides, its flags with their values, and a note of the others.

        Args:
            variables: that are set in front of the command, by name.
            words: that follow the command.

        Raises:
            PagesimError: the line names no model, or something in it is unknown, not modelled or off.
        """
        for variable in variables:
            own = [variable.removeprefix(each) for each in self.prefixes if variable.startswith(each)]
            if own and own[0] not in self.harmless_variables:
                raise PagesimError(
                    f"--serve: {variable} may affect scheduling and is not modelled; leave it out"
                )
        models: list[str] = []
        given: dict[str, list[str]] = {}
        for name, values in self.read(words):
            if name:
                given[name] = values
            elif self.relaxed:
                models += values
            else:
                raise PagesimError(f"--serve: {brief(values[0], 80)} belongs to no flag; take it out")
        models += given.pop(self.model, [])
        if len(models) != 1:
            said = f"names {' and '.join(models)}" if models else "names no model"
            raise PagesimError(f"--serve {said[:200]}; it must name one model, as in {self.command} MODEL")
        for name, values in given.items():
            self.check(name, values)
        known = _known_model(models[0])
        options: dict[str, Any] = {"model": known}
        for name, values in given.items():
            if self.taken.get(name) == "none":
                options[name.replace("-", "_")] = values != ["false"]
            elif name in self.readers:
                options |= self.readers[name](name, values[-1])
        self._check_kernels(known, given)
        if "quantization" in given:
            options |= self._quantized(known, given["quantization"][-1])
        self._check_length(options)
        self._check_layers(known, given)
        idle, notes = self.settle(given, options)
        without = [*variables, *(f"--{name}" for name in given if name not in self.taken or name in idle)]
        if without:
            notes.insert(0, f"of the {self.server} line without an effect here: {', '.join(without)}")
        return options, given, tuple(notes)

    def arity(self, name: str) -> Arity:
        """Return what a flag takes."""
        for each in (self.taken, self.noted, self.layered, self.refused):
            if name in each:
                return each[name]
        return "one"

    def read(self, words: list[str]) -> Iterator[tuple[str, list[str]]]:
        """Yield each flag by its name with its values, ``false`` for a switch that is off; '' for no flag.

        Raises:
            PagesimError: a word is no flag, or a flag has too few or too many values.
        """
        at = 0
        parts: dict[str, dict[str, Any]] = {}
        while at < len(words):
            word = words[at]
            at += 1
            if not _is_flag(word):
                yield "", [word]
                continue
            flag, sign, value = word.partition("=")
            if self.relaxed and re.fullmatch(r"-O[^=]+", flag):
                flag, sign, value = "-O", "=", flag[2:]
            name, on, part = self._named(flag)
            arity = "one" if part else self.arity(name)
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
            if part and name in self.taken:
                parts.setdefault(name, {})[part] = _part_of(values[0])
                values = [json.dumps(parts[name])]
            yield name, values

    def _named(self, flag: str) -> tuple[str, bool, str]:
        """Return a flag's name, whether it turns a switch on, and the part of a value that it is about."""
        head, _, part = flag.partition(".") if self.relaxed else (flag, "", "")
        if not head.startswith("--"):
            found = self.aliases.get(head)
            if found is None:
                raise PagesimError(f"--serve: {brief(flag, 80)} is no flag of {self.server}")
            return found, True, part
        word = head[2:].replace("_", "-") if self.relaxed else head[2:]
        word = self.aliases.get(word, word)
        if word in self.older:
            raise PagesimError(
                f"--serve: {flag} is a flag of older releases, which {self.server} refuses: "
                f"{self.older[word]}"
            )
        if word not in self.spellings:
            begun = [each for each in self.spellings if word and each.startswith(word)]
            if len({self.spellings[each] for each in begun}) != 1:
                wrong = "is the beginning of several flags" if begun else "is no flag"
                raise PagesimError(f"--serve: {brief(flag, 80)} {wrong} of {self.server}")
            word = begun[0]
        name, on = self.spellings[word]
        return name, on, part

    def check(self, name: str, values: list[str]) -> None:
        """Refuse a flag that affects scheduling and is not modelled."""
        if name in {**self.taken, **self.noted, **self.layered}:
            return
        if name in self.refused and values == ["false"]:
            return
        harmless = self.harmless.get(name)
        if harmless and values and values[-1] in harmless:
            return
        said = f"--{name} {' '.join(values)}".strip()
        remedy = f"it may be {' or '.join(harmless)}" if harmless else "leave it out"
        raise PagesimError(f"--serve: {escaped(said)[:120]} affects scheduling and is not modelled; {remedy}")

    def _check_layers(self, name: str, given: Mapping[str, list[str]]) -> None:
        """Refuse a flag about layers that the model has, and that are modelled without it."""
        if model(name).keeps_all:
            return
        for flag in given:
            if flag in self.layered and given[flag] != ["false"]:
                raise PagesimError(
                    f"--serve: --{flag} would change what the layers of {brief(name, 80)} keep, and is not "
                    "modelled; leave it out"
                )

    def _check_kernels(self, name: str, given: Mapping[str, list[str]]) -> None:
        """Refuse a choice of kernels for a model whose experts are MXFP4: kernels pad such weights."""
        dtype = model(name).weights.of("experts")
        for flag in self.kernels:
            chosen = given.get(flag, ["auto"])[-1]
            if chosen != "auto" and dtype is not None and dtype.name.startswith("mxfp4"):
                raise PagesimError(
                    f"--serve: --{flag} {escaped(chosen)[:80]} would change how far the MXFP4 experts of "
                    f"{brief(name, 80)} are padded, and is not modelled; leave it out"
                )

    def _quantized(self, name: str, method: str) -> dict[str, str]:
        """Return the weight dtype that a method of quantization gives a model, if it is not the model's."""
        spec = model(name)
        own = {dtype.name for group in GROUPS if (dtype := spec.weights.of(group)) and dtype.quantized}
        if method.lower() == "none" or own & set(self.checkpoints.get(method, ())):
            return {}
        if method == "fp8" and not own:
            return {"weight_dtype": "fp8"}
        remedy = "it may be none or fp8, or name a quantized config.json as the model"
        raise PagesimError(
            f"--serve: --quantization {escaped(method)[:80]} affects scheduling and is not modelled for "
            f"{brief(name, 80)}, whose weights are {spec.weights_in_words}; "
            f"{'leave it out' if own else remedy}"
        )

    def _check_length(self, options: Mapping[str, Any]) -> None:
        """Refuse requests that are longer than the model is made for, as the server does."""
        own = model(options["model"]).max_model_len
        asked = options.get("max_model_len")
        if isinstance(asked, int) and asked > own:
            raise PagesimError(
                f"--serve: --{self.length} is {asked}, more than the {own} tokens of "
                f"{options['model']}; {self.engine} does not start so"
            )


def _part_of(text: str) -> Any:
    """Return a part of a value, as JSON where it is some."""
    try:
        return parse_json(text)
    except ValueError:
        return text


def _is_flag(word: str) -> bool:
    return word.startswith("-") and not _NUMBER.match(word) and word != "-"


def words_of(line: str) -> tuple[list[str], list[str]]:
    """Return the variables that stand in front of a command, by name, and its words as a shell splits them.

    Raises:
        PagesimError: a quotation mark is open, or a word means something to a shell only.
    """
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
    variables = []
    while words and _VARIABLE.match(words[0]):
        variables.append(words.pop(0).partition("=")[0])
    return variables, words


def _known_model(word: str) -> str:
    """Return a model's name or path, if there is such a model here."""
    known = known_as(word)
    if known is not None:
        return known
    if not is_config(word):
        raise PagesimError(f"--serve: {unknown(word, 200)}")
    model(word)
    return word
