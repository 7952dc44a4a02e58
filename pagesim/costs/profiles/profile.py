"""Profile: costs of one model's iterations on one machine, as fitted terms with errors and origins."""

from __future__ import annotations

from math import ceil
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, field_validator, model_validator

from pagesim.costs.engines import EngineTime
from pagesim.costs.held_out import TermError
from pagesim.costs.profiles import schema1
from pagesim.costs.profiles.samples import TERMS, Sample
from pagesim.costs.table import MOST_SECONDS, Strict, Table
from pagesim.errors import PagesimError
from pagesim.models import ModelSpec
from pagesim.setup.files import check_file, put_text
from pagesim.setup.reading import parse_json, read_text

SCHEMA = 2
"""Incremented whenever a field changes its meaning; files of schema 1 can still be read."""

MOST_BYTES = 64 << 20
"""Larger files are not read as profiles."""

Kind = Literal["measured", "imported", "rescaled", "analytic"]
Origin = Literal["measured", "imported", "rescaled", "datasheet", "given"]
Seconds = Annotated[float, Field(ge=0, lt=MOST_SECONDS)]


def _over(*axes: str, rising: str = "") -> AfterValidator:
    """Return a validator of a table's axes."""

    def check(table: Table) -> Table:
        if tuple(table.axes) != axes:
            raise ValueError(f"is over {' and '.join(table.axes)}; it must be over {' and '.join(axes)}")
        if rising and not table.rises(rising):
            raise ValueError(f"its times must not fall with the {rising}")
        return table

    return AfterValidator(check)


OverTokens = Annotated[Table, BeforeValidator(schema1.curve("tokens")), _over("tokens")]
OverSequences = Annotated[Table, BeforeValidator(schema1.curve("sequences")), _over("sequences")]
OverBlocks = Annotated[Table, BeforeValidator(schema1.curve("blocks")), _over("blocks")]
ByBlock = Annotated[dict[int, OverBlocks], Field(min_length=1)]
Decode = Annotated[Table, BeforeValidator(schema1.decode), _over("sequences", "context", rising="context")]
Prefill = Annotated[Table, BeforeValidator(schema1.prefill), _over("tokens", "keys")]

ANY_BLOCK = 0
"""Stands for any block size. Copies and swaps are then over tokens instead of blocks."""


class Launching(Strict):
    """Host time to launch an iteration's kernels one by one.

    The device works at the same time, so the iteration takes whichever is longer. All times are 0 for a
    device without asynchronous launches, such as a CPU.

    Attributes:
        decode_s: seconds for an iteration that only decodes, by CUDA graphs if these were used.
        prompt_s: seconds for an iteration that only computes prompts.
        mixed_s: seconds for an iteration that does both.
        unless_graphed: whether an iteration with a prompt needs no launch time, and has graph-launched
            all-reduces, if the engine has a CUDA graph for its number of tokens.
    """

    decode_s: Seconds = 0.0
    prompt_s: Seconds = 0.0
    mixed_s: Seconds = 0.0
    unless_graphed: bool = False


class Reached(Strict):
    """Attention of layers with a span, which do not attend to all tokens.

    Attributes:
        decode: seconds over sequences and their mean tokens within the span.
        prefill: seconds over tokens and the mean number of keys within the span that each attends to.
    """

    decode: Decode
    prefill: Prefill


class States(Strict):
    """Layers that keep a recurrent state.

    Attributes:
        decode: seconds over decoding sequences.
        prefill: seconds over prompt tokens.
    """

    decode: OverSequences
    prefill: OverTokens


class Terms(Strict):
    """Seconds of the parts of an iteration, over all layers, on each GPU.

    Terms that depend on the block size are stored for each measured one, or for `ANY_BLOCK`.

    Attributes:
        linear: linear layers, norms, activations and embeddings, over tokens.
        head: the LM head and sampling, over sequences that get a token.
        write: writes of keys and values to the cache, over tokens.
        decode: decode attention of full-attention layers, by block size: over sequences and their mean
            context.
        prefill: prompt attention of full-attention layers, by block size: over new tokens and the mean
            number of keys that each attends to, including itself. It describes whole prompts, chunks after
            a history and several prompts alike.
        decode_mixed: what decode attention adds to prompt attention in the same iteration, by block size;
            empty if that equals its time alone.
        copy: copies on write, over blocks, or over tokens for `ANY_BLOCK`.
        swap_out, swap_in: transfers between device and host, over blocks or tokens like ``copy``.
        overhead: all remaining time of an iteration, over sequences that get a token; None if no engine was
            measured, and the run's engine adds its own time (`EngineTime`).
        all_reduce: all-reduces of tensor parallelism, over tokens; None on one GPU.
        all_reduce_eager: all-reduces of iterations with a prompt and without a CUDA graph, over tokens; None
            if they take as long as ``all_reduce``.
        experts: a mixture of experts, over tokens; None if ``linear`` includes them.
        decode_drafts: decode attention with the profile's ``queries`` per sequence, by block size; empty if
            only one query per sequence was measured.
        reached: attention of layers with a span, by the ``KIND:TOKENS`` of the `AttentionSpan`, such as
            ``window:1024``.
        states: recurrent layers; None if there are none.
        launching: lower bound of the time of linear layers, head, write and attention together.
    """

    linear: OverTokens
    head: OverSequences
    write: OverTokens
    decode: Annotated[dict[int, Decode], Field(min_length=1)]
    prefill: Annotated[dict[int, Prefill], Field(min_length=1)]
    decode_mixed: dict[int, Decode] = Field(default_factory=dict)
    decode_drafts: dict[int, Decode] = Field(default_factory=dict)
    copy_: ByBlock = Field(alias="copy")
    swap_out: ByBlock
    swap_in: ByBlock
    overhead: OverSequences | None = None
    all_reduce: OverTokens | None = None
    all_reduce_eager: OverTokens | None = None
    experts: OverTokens | None = None
    reached: dict[str, Reached] = Field(default_factory=dict)
    states: States | None = None
    launching: Launching = Launching()

    def names(self) -> tuple[str, ...]:
        """Return the names of the terms that are present."""
        return tuple(name for name in TERMS if self.whole(name))

    def operators(self) -> tuple[str, ...]:
        """Return the terms present, with those of ``reached`` as ``decode SPAN`` and ``prefill SPAN``."""
        spans = tuple(f"{term} {span}" for span in self.reached for term in ("decode", "prefill"))
        return (*(name for name in self.names() if name != "reached"), *spans)

    def whole(self, term: str) -> Any:
        """Return a term by its name: a table, or one per block size; None if it is absent."""
        return getattr(self, "copy_" if term == "copy" else term)

    def at(self, operator: str, block_size: int) -> Table:
        """Return an operator's term, at a block size if it depends on one.

        Raises:
            KeyError: the term is absent, or not known at that block size.
        """
        term, _, span = operator.partition(" ")
        found = self.whole(term) if not span else getattr(self.reached[span], term)
        if found is None:
            raise KeyError(operator)
        if isinstance(found, dict):
            found = found[block_size if block_size in found else ANY_BLOCK]
        at: Table = found
        return at


class Shape(Strict):
    """The shape of the measured model, so that it is not confused with another."""

    name: str
    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int

    @classmethod
    def of(cls, model: ModelSpec) -> Shape:
        """Return the shape of a model."""
        sizes = {name: getattr(model, name) for name in cls.model_fields}
        return cls(**{**sizes, "name": model.shape_name})


def check_attends_to_all(model: ModelSpec, what: str) -> None:
    """Reject a model with layers that no term of a profile describes.

    The terms cover full attention only, and no recurrent states.

    Raises:
        PagesimError: the model has windows, chunks, an indexer or states.
    """
    if not model.keeps_all:
        raise PagesimError(
            f"{what} knows attention to all tokens only, and the layers of {model.name} are "
            f"{model.layers_in_words}; choose cost roofline or affine"
        )


class Range(Strict):
    """The measured range of a term, beyond which it is extrapolated.

    Attributes:
        least, most: smallest and largest size, in tokens, sequences or blocks.
        most_context: most tokens of context per sequence (``decode``), or query-key pairs (``prefill``).
    """

    least: int
    most: int
    most_context: int = 0


class Profile(Strict):
    """Costs of a model's iterations on a machine.

    Attributes:
        schema_: schema version of the file.
        name: name of the profile.
        kind: ``measured`` by pagesim, ``imported`` from others' measurements, ``rescaled`` from another
            profile, or ``analytic`` without any measurement.
        sentence: description for a listing.
        model: shape of the model.
        tp: GPUs over which the model is divided.
        dtype: type of the weights, in the form of `ModelSpec.weights_in_words`.
        kv_dtype: data type of the KV cache.
        queries: queries per sequence in ``decode_drafts``, its token plus its drafts; 1 without that term.
        gpu: catalogue name of the GPU; None if it has none.
        terms: see `Terms`.
        origins: origin of each term.
        sources: name and version of the source, for terms that have one.
        ranges: measured range of each operator.
        errors: held-out errors of the fitted operators (`Terms.operators`).
        machine: name, driver, versions and clocks, as far as known.
        date: date of the measurements, ISO 8601.
        notes: what a user should know.
        samples: the measurements; empty if they may not be redistributed.
        held_out: indices of the samples that no term was fitted to.
    """

    schema_: int = Field(default=SCHEMA, alias="schema")
    name: str
    kind: Kind
    sentence: str
    model: Shape
    tp: Annotated[int, Field(ge=1)] = 1
    dtype: str = "fp16"
    kv_dtype: str = "fp16"
    queries: Annotated[int, Field(ge=1)] = 1
    gpu: str | None = None
    terms: Terms
    origins: dict[str, Origin]
    sources: dict[str, str] = Field(default_factory=dict)
    ranges: dict[str, Range]
    errors: dict[str, TermError]
    machine: dict[str, Any] = Field(default_factory=dict)
    date: str = ""
    notes: Annotated[tuple[str, ...], Field(strict=False)] = ()
    samples: Annotated[tuple[Sample, ...], Field(strict=False)] = ()
    held_out: Annotated[tuple[int, ...], Field(strict=False)] = ()

    @field_validator("schema_", mode="after")
    @classmethod
    def _converted(cls, schema: int) -> int:
        # The fields of `Terms` convert those of schema 1.
        if schema not in (1, SCHEMA):
            raise ValueError(f"has schema {schema}; this version of pagesim reads 1 and {SCHEMA}")
        return SCHEMA

    @model_validator(mode="after")
    def _check(self) -> Profile:
        own = self.terms.overhead
        if not self.terms.linear(1) + (own(1) if own else 0) > 0:
            raise ValueError("by its terms an iteration would take no time")
        if missing := [term for term in self.terms.names() if term not in self.origins]:
            raise ValueError(f"origins does not say where the term {missing[0]} comes from")
        for sample in self.samples:
            sample.check()
            try:
                self.terms.at(sample.term, sample.block_size)
            except KeyError:
                raise ValueError(f"{sample}: the profile has no such term") from None
        if (self.queries > 1) != bool(self.terms.decode_drafts):
            raise ValueError(f"queries is {self.queries}, and decode_drafts is there if it is above 1")
        if any(not 0 <= index < len(self.samples) for index in self.held_out):
            raise ValueError(f"held_out names a sample that is none of its {len(self.samples)}")
        return self

    @property
    def block_sizes(self) -> tuple[int, ...]:
        """Block sizes for which all dependent terms are known; `ANY_BLOCK` stands for all sizes."""
        terms = self.terms
        mixed = terms.decode_mixed or terms.decode
        known = (mixed, terms.prefill, terms.copy_, terms.swap_out, terms.swap_in)
        return tuple(sorted(size for size in terms.decode if all(size in each for each in known)))

    @property
    def held_out_error(self) -> str:
        """Errors on held-out measurements by operator, in one line."""
        known = {name: each for name, each in self.errors.items() if each.points}
        if not known:
            return "error not stated"
        if any(each.median is None for each in known.values()):
            said = ", ".join(f"{name} {each.mean:.1%}" for name, each in known.items())
            return f"mean errors on held-out points {said}"
        said = ", ".join(f"{name} {each.median:.1%} ({each.worst:.0%})" for name, each in known.items())
        return f"median (worst) errors on held-out points {said}"

    def check_error(self, most: float) -> None:
        """Reject a profile with too large an error.

        Args:
            most: largest allowed median error of an operator on held-out points, as a fraction.

        Raises:
            PagesimError: an operator has a larger error.
        """
        for name, error in self.errors.items():
            if error.points and round(error.typical, 6) > most:
                raise PagesimError(
                    f"profile {self.name} is off by {error.typical:.1%} on held-out points of {name}, and "
                    f"at most {most:.0%} is allowed; calibrate again, or raise it: profile:NAME,max_error="
                    f"{ceil(round(100 * error.typical, 6)) / 100:g}"
                )

    def with_overhead(self, iteration_s: float | None = None, sequence_s: float = 0.0) -> Profile:
        """Return the profile with another engine's overhead, for an engine that was not measured.

        An iteration in which no sequence gets a token has the overhead of one in which one does.

        Args:
            iteration_s: seconds per iteration; by default the profile's overhead at one sequence.
            sequence_s: seconds per sequence that gets a token.

        Raises:
            PagesimError: see `EngineTime`.
        """
        if iteration_s is None:
            iteration_s = self.terms.overhead(1) if self.terms.overhead else 0.0
        engine = EngineTime(iteration_s, sequence_s)
        overhead = Table.of(
            {"sequences": (1, 1024)}, lambda count: engine.iteration_s + engine.sequence_s * count
        )
        terms = self.terms.model_copy(update={"overhead": overhead})
        return self.model_copy(update={"terms": terms, "origins": {**self.origins, "overhead": "given"}})

    def save(self, file: Path) -> None:
        """Write the profile atomically, overwriting no file but another profile.

        Raises:
            PagesimError: the file cannot be written, or exists and is not a profile.
        """
        check_file(file, "profile")
        text = self.model_dump_json(by_alias=True, exclude_none=True, indent=1) + "\n"
        put_text(file, text)


def load_profile(file: Path) -> Profile:
    """Read a profile.

    Raises:
        PagesimError: the file cannot be read, is not a profile, or has another schema.
    """
    try:
        if file.stat().st_size > MOST_BYTES:
            raise PagesimError(f"{file}: has {file.stat().st_size} bytes; no profile is so long")
        text = read_text(file)
    except OSError as error:
        raise PagesimError(f"{file}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise PagesimError(f"{file}: is no profile: it is not text") from None
    try:
        return Profile.model_validate_json(text)
    except ValidationError as error:
        raise PagesimError(f"{file}: is no profile: {_first(error, text)}") from None


def _first(error: ValidationError, text: str) -> str:
    first = error.errors(include_url=False)[0]
    if first["type"] == "json_invalid":
        return "its JSON is broken or cut off; make it again, or copy it whole"
    try:
        schema = parse_json(text).get("schema")
    except (ValueError, AttributeError):
        schema = None
    if isinstance(schema, int) and schema not in (1, SCHEMA):
        return f"its schema is {schema}, and this version of pagesim reads 1 and {SCHEMA}; calibrate again"
    where = ".".join(str(part) for part in first["loc"])
    return f"{where}: {first['msg']}" if where else first["msg"]
