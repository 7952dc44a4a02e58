"""How far a model's parameters can be trusted, and caveats about its numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pagesim.models.model_spec import ModelSpec

Trust = Literal["exact", "language model only", "estimated"]


def trust(spec: ModelSpec) -> Trust:
    """Return how far to trust a model's parameter count, and the weight bytes derived from it.

    exact                the number of parameters is exactly what the code of the model's family creates from
                         its config, and no part is left out. Two things do not count as parts: layers that
                         predict further tokens, which engines load only for speculative decoding, and rows
                         with which an engine pads the vocabulary
    language model only  likewise, except for the parts that are left out
    estimated            not known to be exact: the family is unknown here, the config has unread keys that
                         may carry a size, or the sizes or dtypes of some layers are not known
    """
    if spec.approximate or spec.unread or _lacks_recurrence(spec) or spec.weights.unlisted:
        return "estimated"
    return "language model only" if spec.left_out else "exact"


def notes(spec: ModelSpec) -> tuple[str, ...]:
    """Return caveats about this model's numbers for its users, one sentence each."""
    name, found = spec.name, []
    if spec.unverified:
        found.append(f"model {name} is unverified: {spec.source}")
    if spec.approximate:
        found.append(f"model {name} is counted as if it were LLaMA: its weights are an estimate")
    elif _lacks_recurrence(spec):
        found.append(
            f"model {name} has recurrent layers whose weights are not known: its weights are an estimate"
        )
    if spec.unread:
        found.append(
            f"the config of {name} has {', '.join(spec.unread)}, which may change its size and is not read: "
            "its weights are an estimate"
        )
    if spec.left_out:
        found.append(
            f"of {name} the language model only is counted: its {' and its '.join(spec.left_out)} is left "
            "out of the weights"
        )
    if spec.tower:
        found.append(
            f"the weights of {name} include its vision tower of {spec.tower + spec.tower_whole:,} "
            "parameters, which a server with --language-model-only does not load"
        )
    return (*found, *spec.weights.notes(name))


def _lacks_recurrence(spec: ModelSpec) -> bool:
    return spec.has_weights and spec.recurrence is None and spec.state_layers > 0
