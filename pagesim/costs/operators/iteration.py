"""What an iteration of a model takes by operator tables: its operators, layer by layer, summed up by term."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from pagesim.costs.base import AttentionSpan
from pagesim.costs.operators.decoding import Decoding
from pagesim.costs.operators.dtypes import BF16, Dtypes
from pagesim.costs.operators.experts import ROUTINGS, Experts, curve
from pagesim.costs.operators.gemm import Gemm, beyond, launched_by_graphs
from pagesim.costs.operators.latent import RANKS, Latent
from pagesim.costs.operators.planes import Plane
from pagesim.costs.operators.products import Product, elementwise, products
from pagesim.costs.operators.prompts import Prompts
from pagesim.costs.operators.reduces import Reduces
from pagesim.costs.operators.states import States
from pagesim.costs.operators.sums import Knots, knots
from pagesim.costs.operators.system_tables import Tables, read_experts
from pagesim.models import ALL_REDUCES_PER_LAYER, ModelSpec
from pagesim.models.layers import (
    ChunkLayer,
    FullLayer,
    IndexerLayer,
    LatentLayer,
    StateLayer,
    WindowLayer,
)
from pagesim.models.recurrent import GatedDeltaNet

SEQUENCES = tuple(sorted({*range(1, 17), *(2**each for each in range(5, 13)), *range(32, 513, 32)}))
"""Numbers of sequences at which the LM head is looked at."""

FEWEST = 8
"""Points of experts, over tokens, that make a curve."""

ELEMENT_BYTES = 2

ELEMENTWISE_SHARE, ELEMENTWISE_LAUNCH_S = 0.8, 3e-6
"""What goes through memory element by element reaches such a share of the bandwidth, after such a launch:
what the tables' own authors take, not a measurement."""


@dataclass(slots=True)
class Operators:
    """Seconds of an iteration's operators on each GPU, all layers, by term; None where nothing was measured.

    Attributes:
        linear: over tokens: products, norms, activations and embeddings.
        head: over sequences that get a token: the LM head.
        experts: over tokens; None in a model without.
        decode: over sequences and context, by span; None stands for layers that look back on all tokens. The
            projections of latent attention are in it, if ``projections``.
        prompts: over prompts and their length, by span, likewise.
        all_reduce, all_reduce_eager: over tokens, launched by a graph and not; None on one GPU.
        states_decode: over sequences; states_prompts: over prompts and their length.
        projections: whether latent attention's are in attention's time.
        origins: by term, the table and the version that it is of, or ``formula`` for what is worked out.
        missing: by term, why there is no table of it, in words.
        notes: what a user should know, a sentence each.
    """

    linear: Knots | None = None
    head: Knots | None = None
    experts: Knots | None = None
    decode: dict[AttentionSpan | None, Plane] = field(default_factory=dict)
    prompts: dict[AttentionSpan | None, Plane] = field(default_factory=dict)
    all_reduce: Knots | None = None
    all_reduce_eager: Knots | None = None
    states_decode: Knots | None = None
    states_prompts: Plane | None = None
    projections: bool = False
    origins: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def operators(
    tables: Tables,
    model: ModelSpec,
    tp: int,
    types: Dtypes,
    *,
    moe_ep: int = 1,
    moe_backend: str | None = None,
) -> Operators:
    """Return what an iteration of a model takes on each GPU, term by term.

    Args:
        tables: of the GPU and engine.
        model: any whose weights are known.
        tp: GPUs over which it is divided.
        types: of weights and cache.
        moe_ep: GPUs over which experts are dealt out, a divisor of ``tp``; the rest divides each of them.
        moe_backend: the kernel of experts, one of `KERNELS`; the first table's that has any when left out.

    Raises:
        PagesimError: the model cannot be divided so, or a table is damaged.
    """
    found = Operators()
    _latent(found, tables, model, tp, types)
    _linear(found, tables, model, tp, types)
    _experts(found, tables, model, tp, moe_ep, types, moe_backend)
    _attention(found, tables, model, tp, types)
    _states(found, tables, model, tp)
    _all_reduces(found, tables, model, tp)
    found.notes += tables.notes
    return found


def _linear(found: Operators, tables: Tables, model: ModelSpec, tp: int, types: Dtypes) -> None:
    wanted = products(model, tp, types, latent=not found.projections)
    head = Product("LM head", model.vocab // tp, model.embedding or model.hidden, BF16, 1)
    if tables.gemm is None:
        found.missing["linear"] = found.missing["head"] = "there is no table of products"
        return
    rows, version = tables.gemm
    known = rows.values("gemm_dtype")
    needed = {BF16, *(each.dtype for each in wanted)}
    gemms = {dtype: Gemm.read(rows, dtype) for dtype in sorted(needed) if dtype in known}
    if BF16 in gemms:
        found.head = knots(_product(gemms, [head]), SEQUENCES)
        found.origins["head"] = f"gemm_perf {version}"
    else:
        found.missing["head"] = "the table of products has none of bfloat16"
    lacking = sorted({each.dtype for each in wanted} - set(gemms))
    if lacking:
        found.missing["linear"] = f"the table of products has none of {', '.join(lacking)}"
        return
    if "fp8_block" in gemms and "fp8" in known:
        gemms["fp8_block"], changed = launched_by_graphs(gemms["fp8_block"], Gemm.read(rows, "fp8"))
        if changed:
            found.notes.append(
                "products of fp8_block were timed as the host launches them: those that take less than twice "
                "a launch count as fp8's"
            )
    product, rest = _product(gemms, wanted), _elementwise(tables, model, tp)
    found.linear = knots(lambda tokens: product(tokens) + rest(tokens))
    found.origins["linear"] = f"gemm_perf {version}"


def _product(gemms: dict[str, Gemm], wanted: list[Product]) -> Callable[[int], float]:
    curves = [(each.layers, *gemms[each.dtype].curve(each.n, each.k)) for each in wanted]
    return lambda tokens: sum(layers * beyond(at, seconds, tokens) for layers, at, seconds in curves)


def _elementwise(tables: Tables, model: ModelSpec, tp: int) -> Callable[[int], float]:
    """Return seconds of norms, activations and embedding: launches, and bytes over a share of bandwidth."""
    bandwidth = tables.store.bandwidth * ELEMENTWISE_SHARE
    halves = elementwise(model, tp)
    # A norm reads the stream and what is added, and writes the sum and its norm; a gate reads two halves.
    elements = halves.norms * 4 * model.hidden + 2 * model.hidden
    elements += sum((3 if model.gated else 2) * width for width in halves.activations)
    launches = halves.norms + len(halves.activations) + 1
    if halves.wide:
        # One kernel sums the squares up, another norms: queries and keys are read twice and written once.
        elements += model.layers * 3 * halves.wide
        launches += model.layers * 2
    return lambda tokens: launches * ELEMENTWISE_LAUNCH_S + tokens * elements * ELEMENT_BYTES / bandwidth


def _experts(
    found: Operators,
    tables: Tables,
    model: ModelSpec,
    tp: int,
    moe_ep: int,
    types: Dtypes,
    kernel: str | None,
) -> None:
    moe = model.moe
    if moe is None:
        return
    if not tables.all_experts:
        found.missing["experts"] = "there is no table of experts"
        return
    shape = (model.hidden, moe.expert_ffn, moe.experts_per_token, moe.experts)
    # Latent attention came with routers that are trained to balance.
    routings = ("power_law_1.01", *ROUTINGS) if model.mla else ROUTINGS
    for table in tables.all_experts:
        measured = Experts(read_experts(table), types.experts, kernel).grid(
            shape, tp // moe_ep, moe_ep, routings
        )
        # A few points are no curve: the next version's may be one.
        if measured is not None and len(measured[1].axes[0]) >= FEWEST:
            break
    else:
        found.missing["experts"] = (
            f"the table of experts has none of {types.experts} with hidden {shape[0]}, inner {shape[1]}, "
            f"{shape[2]} of {shape[3]}, over {tp // moe_ep} and {moe_ep} GPUs"
            f"{f', by {kernel}' if kernel else ''}"
        )
        return
    routing, grid = measured
    found.notes += [table.note] if table.note else []
    layers = (model.mlp_layers or model.layers) - moe.dense_layers
    sizes = sorted({*grid.axes[0].tolist(), *(3 * each // 2 for each in grid.axes[0].tolist() if each > 1)})
    seconds = dict(zip(sizes, (layers * curve(grid, np.array(sizes, np.int64))).tolist(), strict=True))
    found.experts = knots(lambda tokens: seconds[tokens], sizes)
    of = "" if table.how != "peer" else f"{table.backend} "
    found.origins["experts"] = f"moe_perf {of}{table.version}"
    found.notes.append(f"experts were timed with tokens dealt out by {routing}")


def _latent(found: Operators, tables: Tables, model: ModelSpec, tp: int, types: Dtypes) -> None:
    layers = sum(isinstance(layer, LatentLayer) for layer in model.cache_layers)
    mla = model.mla
    if not layers or mla is None:
        return
    if any(isinstance(layer, IndexerLayer) for layer in model.cache_layers):
        found.missing["decode"] = found.missing["prefill"] = "sparse attention was not looked at"
        return
    ranks = (
        *(mla.kv_lora_rank, mla.qk_rope_head_dim, mla.qk_nope_head_dim),
        *(mla.v_head_dim, mla.q_lora_rank),
    )
    said = "there is no module of latent attention with these heads, ranks and types"
    if tables.latent_prompts is None or tables.latent_decoding is None or ranks != RANKS:
        found.missing["decode"] = found.missing["prefill"] = said
        return
    (context, version), (generation, other) = tables.latent_prompts, tables.latent_decoding
    module = Latent(context, generation, types.attention, types.cache)
    heads = model.heads // tp
    prompts, decode = module.prompts(heads), module.decoding(heads)
    if prompts is None or decode is None:
        found.missing["decode"] = found.missing["prefill"] = said
        return
    found.decode[None], found.prompts[None] = decode.scaled(layers), prompts.scaled(layers)
    found.projections = True
    found.origins["decode"] = f"mla_generation_module_perf {other}"
    found.origins["prefill"] = f"mla_context_module_perf {version}"


def _attention(found: Operators, tables: Tables, model: ModelSpec, tp: int, types: Dtypes) -> None:
    kinds: Counter[tuple[AttentionSpan | None, int, int]] = Counter()
    for layer in model.cache_layers:
        if isinstance(layer, FullLayer):
            span = None
            if isinstance(layer, WindowLayer):
                span = AttentionSpan("window", layer.window)
            elif isinstance(layer, ChunkLayer):
                span = AttentionSpan("chunk", layer.chunk)
            kinds[span, max(1, layer.kv_heads // tp), layer.head_dim] += 1
    for term, name, opened, into in (
        ("decode", "generation_attention_perf", tables.decoding, found.decode),
        ("prefill", "context_attention_perf", tables.prompts, found.prompts),
    ):
        if not kinds:
            continue
        if opened is None:
            found.missing[term] = "there is no table of attention"
            continue
        rows, version = opened
        table = Decoding(rows, types.cache) if term == "decode" else Prompts(rows, types.cache)
        for (span, kv_heads, head_dim), layers in kinds.items():
            plane = _reaching(table, model.heads // tp, kv_heads, head_dim, span)
            if plane is None:
                found.missing[term] = (
                    f"the table has no attention of {model.heads // tp} heads over {kv_heads} of width "
                    f"{head_dim}{f' within {span.size}' if span else ''} with a cache of {types.cache}"
                )
                into.clear()
                break
            into[span] = _sum(into[span], plane.scaled(layers)) if span in into else plane.scaled(layers)
        else:
            found.origins[term] = f"{name} {version}"


def _reaching(
    table: Decoding | Prompts, heads: int, kv_heads: int, head_dim: int, span: AttentionSpan | None
) -> Plane | None:
    """Return attention within a span; in decoding its length is what is within the span."""
    if span is None:
        return table.plane(heads, kv_heads, head_dim)
    if isinstance(table, Prompts):
        # Chunks attend to half as much as a window of their size; none was measured.
        return table.plane(heads, kv_heads, head_dim, span.size) if span.kind == "window" else None
    plane = table.plane(heads, kv_heads, head_dim, span.size if span.kind == "window" else 0)
    if plane is None:
        return None
    before = plane.length < span.size
    beyond_it = plane.length > span.size if span.kind == "window" else plane.length >= span.size
    if not before.any() or not beyond_it.any():
        return plane
    # All within the span: what longer contexts take, too, since the window moves with the sequence.
    full = np.exp(np.log(plane.seconds[:, beyond_it][:, :2]).mean(1))
    if span.kind != "window":
        full = np.array([plane.along(row, span.size) for row in range(len(plane.batch))])
    return Plane(
        plane.batch,
        np.append(plane.length[before], span.size),
        np.hstack([plane.seconds[:, before], full[:, None]]),
    )


def _sum(one: Plane, other: Plane) -> Plane:
    batch, length = np.union1d(one.batch, other.batch), np.union1d(one.length, other.length)
    seconds = np.array([[one(b, c) + other(b, c) for c in length.tolist()] for b in batch.tolist()])
    return Plane(batch, length, seconds, one.power, min(one.most, other.most))


def _states(found: Operators, tables: Tables, model: ModelSpec, tp: int) -> None:
    layers = sum(isinstance(layer, StateLayer) for layer in model.cache_layers)
    if not layers:
        return
    net = model.recurrence
    if not isinstance(net, GatedDeltaNet) or tables.states is None:
        found.missing["states"] = "there is no table of these recurrent layers"
        return
    rows, version = tables.states
    states = States(rows)
    heads = (model.hidden, net.key_heads // tp, net.value_heads // tp)
    decode, prompts = states.plane(*heads, "generation"), states.plane(*heads, "context")
    if decode is None or prompts is None:
        found.missing["states"] = f"the table has no gated delta net of {heads[1]} and {heads[2]} heads"
        return
    found.states_decode = knots(lambda sequences: layers * decode(sequences, 1), SEQUENCES)
    found.states_prompts = prompts.scaled(layers)
    found.origins["states"] = f"gdn_perf {version}"


def _all_reduces(found: Operators, tables: Tables, model: ModelSpec, tp: int) -> None:
    if tp == 1:
        return
    if tables.reduces is None:
        found.missing["all_reduce"] = "there is no table of all-reduces"
        return
    rows, version = tables.reduces
    reduces = Reduces(rows, tables.nccl[0] if tables.nccl else None)
    graph, eager = reduces.curve(tp, graph=True), reduces.curve(tp, graph=False)
    if graph is None or eager is None:
        found.missing["all_reduce"] = f"the table has no all-reduce among {tp} GPUs"
        return
    count, hidden = ALL_REDUCES_PER_LAYER * model.layers, model.hidden
    # A norm over all heads sums up the squares of queries and of keys, in 32 bits.
    norms = model.layers if model.wide_qk_norm else 0
    squares = 4
    found.all_reduce = knots(lambda tokens: count * graph(tokens * hidden) + norms * graph(tokens * squares))
    found.all_reduce_eager = knots(
        lambda tokens: count * eager(tokens * hidden) + norms * eager(tokens * squares)
    )
    found.origins["all_reduce"] = f"custom_allreduce_perf {version}"
