"""Profiles of layers that differ: windows, states and experts, and what a run of steps over them takes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagesim.costs import AttentionSpan, EngineTime, IterationShape, Profiled, profiled
from pagesim.costs.profiles import (
    ANY_BLOCK,
    Profile,
    Reached,
    Shape,
    States,
    Terms,
    load_profile,
)
from pagesim.costs.table import Table
from pagesim.errors import PagesimError
from pagesim.models import ModelSpec
from pagesim.models.layers import FullLayer, StateLayer, WindowLayer
from pagesim.sim.clock import to_ticks

ENGINE = EngineTime(1e-3, 2e-5)
FULL, WINDOW, STATE = FullLayer(8, 128), WindowLayer(8, 128, 1024), StateLayer((3, 8192), (8, 64, 64))


def of_layers(*cached: Any) -> ModelSpec:
    return ModelSpec("made-up", len(cached), 256, 512, 8, 8, 128, 1000, 1 << 20, "made up", cached=cached)


def line(*points: tuple[int, float], axis: str = "tokens") -> Table:
    return Table(axes={axis: tuple(at for at, _ in points)}, seconds=tuple(seconds for _, seconds in points))


TABLE = Table(
    axes={"sequences": (1, 16), "context": (100, 400, 1500)},
    seconds=((1e-4, 2e-4, 9e-4), (3e-4, 9e-4, 5e-3)),
)
PROMPTS = Table(axes={"tokens": (16, 512), "keys": (8.5, 256.5)}, seconds=((1e-5, 4e-5), (4e-4, 3e-3)))
NARROW = Table(axes={"sequences": (1, 16), "context": (64, 512)}, seconds=((5e-5, 1e-4), (1e-4, 6e-4)))
COPY = line((0, 0.0), (1000, 1e-3), axis="blocks")


def profile(model: ModelSpec, **others: Any) -> Profile:
    terms = Terms(
        linear=line((1, 2e-3), (512, 9e-3)),
        head=line((1, 1e-4), axis="sequences"),
        write=line((1, 1e-6), (100, 1e-5)),
        decode={ANY_BLOCK: TABLE},
        prefill={ANY_BLOCK: PROMPTS},
        copy={ANY_BLOCK: COPY},
        swap_out={ANY_BLOCK: COPY},
        swap_in={ANY_BLOCK: COPY},
        **others,
    )
    return Profile(
        name="tables",
        kind="imported",
        sentence="made up",
        model=Shape.of(model),
        terms=terms,
        origins=dict.fromkeys(terms.names(), "imported"),
        ranges={},
        errors={},
    )


REACHED = {"window:1024": Reached(decode=NARROW, prefill=PROMPTS)}
STATES = States(decode=line((1, 1e-4), (100, 3e-3), axis="sequences"), prefill=line((1, 1e-5), (1000, 4e-3)))
EXPERTS = line((1, 5e-4), (64, 6e-3), (512, 9e-3))
MIXED = of_layers(FULL, WINDOW, STATE)


def mixed() -> Profiled:
    return Profiled(profile(MIXED, reached=REACHED, states=STATES, experts=EXPERTS), MIXED, engine=ENGINE)


def steps(sequences: int, context: int, reached: int) -> IterationShape:
    return IterationShape(
        sequences, sequences, context, context, 0, 0, 0, 0, sequences, sequences, reached=(reached,)
    )


def test_an_iteration_is_the_sum_of_all_terms_each_over_what_it_depends_on() -> None:
    shape = IterationShape(
        40, 40, 936, 900, 666, 0, 0, 0, 4, 5, computed_prompts=1, reached=(800,), reached_pairs=(600,)
    )
    cost = mixed()
    terms = profile(MIXED).terms
    seconds = (
        terms.linear(40)
        + terms.head(5)
        + terms.write(40)
        + EXPERTS(40)
        + ENGINE.iteration_s
        + 5 * ENGINE.sequence_s
        + TABLE(4, 225)
        + NARROW(4, 200)
        + PROMPTS(36, 666 / 36)
        + PROMPTS(36, 600 / 36)
        + STATES.decode(4)
        + STATES.prefill(36)
    )
    assert cost.iteration(shape) == pytest.approx(seconds * 1e12, rel=1e-6)
    assert sum(cost.parts(shape).values()) == pytest.approx(cost.iteration(shape), abs=8)
    assert cost.spans == (AttentionSpan("window", 1024),)


def shapes_with_prompts() -> list[IterationShape]:
    """Return iterations of which any two differ in one of the numbers that a price may depend on."""
    one = IterationShape(
        40, 40, 936, 900, 666, 0, 0, 0, 4, 5, computed_prompts=1, reached=(800,), reached_pairs=(600,)
    )
    changes = ("tokens", 41), ("query_key_pairs", 700), ("decode_context", 950), ("sampled", 6)
    others = ("decoding", 5), ("reached", (700,)), ("reached_pairs", (400,)), ("reached_pairs", ())
    return [one, *(one._replace(**{name: value}) for name, value in (*changes, *others))]


@pytest.mark.parametrize("most", [2, 1000])
def test_an_iteration_takes_the_same_whatever_was_asked_before(most: int, monkeypatch) -> None:
    monkeypatch.setattr(profiled, "MOST_PROMPTS", most)
    used, shapes = mixed(), shapes_with_prompts()
    alone = [mixed().iteration(shape) for shape in shapes]
    assert len(set(alone)) == len(shapes)
    for _ in range(2):
        assert [used.iteration(shape) for shape in shapes] == alone


@given(
    sequences=st.integers(1, 40),
    mean=st.integers(1, 2000),
    odd=st.integers(0, 39),
    within=st.integers(1, 1000),
    grow=st.integers(0, 40),
)
def test_a_run_of_steps_is_its_iterations_as_long_as_it_says(sequences, mean, odd, within, grow) -> None:
    cost = mixed()
    context, reached = mean * sequences + odd % sequences, min(within, mean) * sequences
    growth = min(grow, sequences)
    first, increment, holds = cost.decode_reached(sequences, context, [(reached, growth, 700)])
    assert 1 <= holds <= 700
    for j in {0, 1, holds // 2, holds - 1} & set(range(holds)):
        shape = steps(sequences, context + j * sequences, reached + j * growth)
        assert cost.iteration(shape) == first + j * increment


@given(st.integers(1, 40), st.integers(1, 3000), st.integers(0, 39))
def test_where_nothing_is_said_of_reaches_everything_is_within(sequences, mean, odd) -> None:
    cost, context = mixed(), mean * sequences + odd % sequences
    first, increment, holds = cost.decode(sequences, context)
    for j in {0, 1, 7, holds - 1} & set(range(min(holds, 5000))):
        shape = steps(sequences, context + j * sequences, 0)._replace(reached=())
        assert cost.iteration(shape) == first + j * increment


def test_all_reduces_of_prompts_are_launched_one_by_one() -> None:
    model = of_layers(FULL)
    reduces = {"all_reduce": line((1, 1e-4)), "all_reduce_eager": line((1, 7e-4))}
    cost = Profiled(profile(model, **reduces), model)
    decoding = IterationShape(4, 4, 400, 400, 0, 0, 0, 0, 4, 4)
    with_prompt = IterationShape(20, 20, 420, 400, 136, 0, 0, 0, 4, 5)
    assert cost.parts(decoding)["all-reduces"] == to_ticks(1e-4)
    assert cost.parts(with_prompt)["all-reduces"] == to_ticks(7e-4)
    assert cost.decode(4, 400)[0] == cost.iteration(decoding)


@pytest.mark.parametrize("block_size", [1, 16, 528])
def test_what_does_not_depend_on_the_block_size_serves_all_and_moves_tokens(block_size) -> None:
    model = of_layers(FULL)
    cost = Profiled(profile(model), model, block_size=block_size)
    moving = IterationShape(0, 0, 0, 0, 0, 3, 2, 0, 0, 0)
    assert cost.iteration(moving) == to_ticks(5e-6 * block_size)


@pytest.mark.parametrize("layers", [(FULL, WINDOW), (FULL, STATE), (FULL, WindowLayer(8, 128, 128))])
def test_a_model_with_a_layer_that_no_term_is_of_is_refused(layers) -> None:
    model = of_layers(*layers)
    missing = profile(model) if layers[1] != WindowLayer(8, 128, 128) else profile(model, reached=REACHED)
    with pytest.raises(PagesimError, match="only, and the layers of made-up are"):
        Profiled(missing, model)


def test_tables_are_stored_with_a_profile(tmp_path) -> None:
    whole = profile(MIXED, reached=REACHED, states=STATES, experts=EXPERTS)
    whole.save(tmp_path / "p.json")
    assert load_profile(tmp_path / "p.json").model_dump() == whole.model_dump()
