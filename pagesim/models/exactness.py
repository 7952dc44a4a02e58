"""How far a model's parameters can be trusted: what is called exact, and what else is said of its numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pagesim.models.model_spec import ModelSpec

Trust = Literal["exact", "language model only", "estimated"]


def trust(spec: ModelSpec) -> Trust:
    """Return how far to trust a model's parameters, and the bytes of the weights that follow from them.

    exact                the parameters are those that the code of the model's family makes of its config, to
                         the last one, and no part is left out. Layers that predict further tokens are no
                         part: an engine loads them for speculation alone. Rows by which an engine pads a
                         vocabulary are none either
    language model only  so they are, but for the parts that are left out
    estimated            they are not known to be: the family is not known here, its config has keys that may
                         carry a size and are not read, or what recurrent layers weigh is not known
    """
    if spec.approximate or spec.unread or _lacks_recurrence(spec) or spec.weights.unlisted:
        return "estimated"
    return "language model only" if spec.left_out else "exact"


def notes(spec: ModelSpec) -> tuple[str, ...]:
    """Return what a user of this model should know of its numbers, a sentence each."""
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
