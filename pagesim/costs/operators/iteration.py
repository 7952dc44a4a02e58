"""Iteration times from operator tables: a model's operators summed by term."""

from __future__ import annotations

from collections import Counter

import numpy as np

from pagesim.costs.attended import Attended, attended, layers_with_experts, span_of, states
from pagesim.costs.base import AttentionSpan
from pagesim.costs.mixed import STATE_FLOPS
from pagesim.costs.operators.attention import Attention, Heads
from pagesim.costs.operators.dtypes import BF16, Dtypes, dtypes
from pagesim.costs.operators.experts import experts
from pagesim.costs.operators.gemm import Products
from pagesim.costs.operators.latent import TIMED, latent
from pagesim.costs.operators.launches import launching
from pagesim.costs.operators.planes import Plane
from pagesim.costs.operators.products import LatentShape, Product, elementwise, products
from pagesim.costs.operators.reduces import reduces
from pagesim.costs.operators.states import delta_net
from pagesim.costs.operators.tables import Chip, Floats, Ints, OperatorTable
from pagesim.costs.profiles.analytic import FLOPS, HBM, KV, analytic_profile
from pagesim.costs.profiles.profile import (
    ANY_BLOCK,
    Range,
    Reached,
    States,
    Terms,
)
from pagesim.costs.table import Table, bilinear, constant
from pagesim.models import ALL_REDUCES_PER_LAYER, ModelSpec
from pagesim.models.layers import FullLayer, IndexerLayer, LatentLayer, StateLayer, kv_heads_per_gpu
from pagesim.models.recurrent import GatedDeltaNet

TOKENS: Ints = np.array(
    sorted(
        {
            *range(1, 18),
            *(16 * each + more for each in range(2, 17) for more in (0, 1) if each <= 8 or each % 2 == 0),
            *(256 * each + more for each in range(2, 18) for more in (0, 1)),
            *(8192, 16384, 32768),
        }
    )
)
"""Sizes at which GEMMs are evaluated: round sizes, and each plus one, at which kernels are slower."""

SEQUENCES: Ints = np.array(sorted({*range(1, 17), *(2**each for each in range(5, 13)), *range(32, 513, 32)}))
"""Numbers of sequences at which the LM head is evaluated."""

ELEMENT_BYTES = 2

ELEMENTWISE_SHARE, ELEMENTWISE_LAUNCH_S = 0.8, 3e-6
"""Fraction of the bandwidth that elementwise kernels achieve, and their launch time: assumptions of the
tables' own authors, not measurements."""

SQUARES = 4
"""16-bit elements per token that a norm over all heads all-reduces: two 32-bit sums of squares."""


class Operators:
    """A profile's terms from operator tables, or from the datasheet where the tables lack them.

    Args:
        chip: the GPU and its measurements.
        model: model whose weights are known.
        tp: GPUs over which the model is divided.
        kv_dtype: data type of the KV cache, one of `KV_DTYPE_BYTES`.
        moe_ep: expert parallel degree, a divisor of ``tp``; ignored if the model has its own division.
        moe_backend: kernel of experts; by default, the first that was timed.

    Attributes:
        used: the table of each term that has one.
        missing: why a term comes from the datasheet, by term.
        ranges: the timed sizes, by term.
        notes: what a user should know, one sentence each.

    Raises:
        PagesimError: the model cannot be divided this way.
    """

    def __init__(
        self,
        chip: Chip,
        model: ModelSpec,
        *,
        tp: int = 1,
        kv_dtype: str = "bf16",
        moe_ep: int = 1,
        moe_backend: str | None = None,
    ) -> None:
        self._chip, self._model, self._tp = chip, model, tp
        self._kv_dtype, self._moe_ep, self._moe_backend = kv_dtype, moe_ep, moe_backend
        self._types: Dtypes = dtypes(model, kv_dtype)
        self._products = Products(chip)
        self._latent_timed: LatentShape | None = None
        self.used: dict[str, OperatorTable] = {}
        self.missing: dict[str, str] = {}
        self.ranges: dict[str, Range] = {}
        self.notes: list[str] = []

    def terms(self) -> Terms:
        """Return the terms of all layers together, on each GPU."""
        chip, model, tp = self._chip, self._model, self._tp
        rest = analytic_profile(chip.gpu, model, tp=tp, kv_dtype=self._kv_dtype, block_sizes=(1,)).terms
        decode, prefill = self._attention()
        linear, of_experts = self._linear(), self._experts()
        if linear is None or (model.moe is not None and of_experts is None):
            # The datasheet's term is GEMMs and experts together: if one is missing, it replaces both.
            self.missing.setdefault("linear", "experts were not timed")
            self.used.pop("linear", None), self.used.pop("experts", None)
            linear, of_experts = rest.linear, None
        by_graph, by_host = self._all_reduces()
        self.notes += self._products.notes
        return Terms(
            linear=linear,
            head=self._head() or rest.head,
            write=constant("tokens", 0.0) if "decode" in self.used else rest.write,
            decode={ANY_BLOCK: decode.get(None, _NO_DECODE)},
            prefill={ANY_BLOCK: prefill.get(None, _NO_PROMPTS)},
            # With blocks of one token, the datasheet's copies and swaps are over tokens.
            copy={ANY_BLOCK: _ends(rest.copy_[1])},
            swap_out={ANY_BLOCK: _ends(rest.swap_out[1])},
            swap_in={ANY_BLOCK: _ends(rest.swap_in[1])},
            all_reduce=by_graph or rest.all_reduce,
            all_reduce_eager=by_host,
            experts=of_experts,
            reached={
                f"{span.kind}:{span.size}": Reached(decode=decode[span], prefill=prefill[span])
                for span in decode
                if span is not None
            },
            states=self._states(),
            launching=launching(model),
        )

    def _linear(self) -> Table | None:
        dtype, timed = self._types.attention, self._latent_timed
        wanted = products(self._model, self._tp, self._types, latent=timed is None)
        seconds = self._products.seconds(wanted, TOKENS)
        if seconds is None:
            self.missing["linear"] = "products were not timed"
            return None
        if timed is not None and (own := LatentShape.of(self._model, self._tp)) != timed:
            layers = sum(isinstance(layer, LatentLayer) for layer in self._model.cache_layers)
            more = self._products.seconds(own.products(dtype, layers), TOKENS)
            less = self._products.seconds(timed.products(dtype, layers), TOKENS)
            if more is not None and less is not None:
                seconds = np.maximum(0.1 * seconds, seconds + more - less)
            self.notes.append(
                "projections of latent attention are those of DeepSeek-V3 exchanged for the model's"
            )
        biggest = max(wanted, key=lambda each: each.layers * each.n * each.k)
        self.used["linear"] = self._products.used[biggest.dtype]
        self.ranges["linear"] = Range(least=1, most=int(TOKENS[-1]))
        return _curve(TOKENS, seconds + self._elementwise(TOKENS))

    def _head(self) -> Table | None:
        model, tp = self._model, self._tp
        head = Product("LM head", model.vocab // tp, model.embedding or model.hidden, BF16, 1)
        seconds = self._products.seconds([head], SEQUENCES)
        if seconds is None:
            self.missing["head"] = "products were not timed"
            return None
        self.used["head"] = self._products.used[BF16]
        self.ranges["head"] = Range(least=1, most=int(SEQUENCES[-1]))
        return _curve(SEQUENCES, seconds, "sequences")

    def _elementwise(self, tokens: Ints) -> Floats:
        """Return the seconds of norms, activations and embedding: launches plus bytes over bandwidth."""
        model = self._model
        halves = elementwise(model, self._tp)
        # A norm reads the stream and its addend, and writes the sum and its norm; a gate reads two halves.
        elements = halves.norms * 4 * model.hidden + 2 * model.hidden
        elements += sum((3 if model.gated else 2) * width for width in halves.activations)
        launches = halves.norms + len(halves.activations) + 1
        if halves.wide:
            # One kernel sums the squares, another normalises: it reads queries and keys twice, writes once.
            elements += model.layers * 3 * halves.wide
            launches += model.layers * 2
        bandwidth = self._chip.gpu.hbm_bytes_per_s * ELEMENTWISE_SHARE
        token_s = elements * ELEMENT_BYTES / bandwidth
        return launches * ELEMENTWISE_LAUNCH_S + tokens.astype(np.float64) * token_s

    def _experts(self) -> Table | None:
        model, moe, tp = self._model, self._model.moe, self._tp
        if moe is None:
            return None
        division, ranks = model.expert_division, 1
        moe_tp, moe_ep = tp // self._moe_ep, self._moe_ep
        if division is not None:
            ranks = division.ranks
            moe_tp, moe_ep = (1, ranks * tp) if division.whole else (ranks * tp, 1)
        found = experts(
            self._chip,
            (model.hidden, moe.expert_ffn, moe.experts_per_token, moe.experts),
            self._types.experts,
            moe_tp=moe_tp,
            moe_ep=moe_ep,
            kernel=self._moe_backend,
            balanced=model.mla is not None,
        )
        if found is None:
            self.missing["experts"] = "experts were not timed"
            return None
        self.notes += found.notes
        if ranks > 1:
            self.notes.append(
                "what data-parallel ranks send each other around experts was not timed and takes no time"
            )
        self.used["experts"] = found.table
        layers = layers_with_experts(model)
        sizes = np.unique(np.concatenate([found.tokens, 3 * found.tokens[1:] // 2]))
        self.ranges["experts"] = Range(least=1, most=max(1, int(sizes[-1]) // ranks))
        # A GPU's experts compute the tokens of all data-parallel ranks, assumed to be equally loaded.
        own = sizes[sizes % ranks == 0] // ranks
        return _curve(own, layers * found.at(own * ranks))

    def _attention(self) -> tuple[dict[AttentionSpan | None, Table], dict[AttentionSpan | None, Table]]:
        """Return decode and prompt attention by span; None stands for layers with full attention."""
        kinds: Counter[Heads] = Counter()
        for layer in self._model.cache_layers:
            if isinstance(layer, FullLayer):
                query, kv = self._model.heads // self._tp, kv_heads_per_gpu(layer.kv_heads, self._tp)
                kinds[Heads(query, kv, layer.head_dim, span_of(layer))] += 1
        table = Attention(self._chip, self._types.cache)
        decoding: dict[AttentionSpan | None, Plane] = {}
        prompting: dict[AttentionSpan | None, Plane] = {}
        for heads, layers in kinds.items():
            for planes, plane in ((decoding, table.decoding(heads)), (prompting, table.prompts(heads))):
                if plane is not None:
                    _add(planes, heads.span, plane.scaled(layers))
        for term, family in (("decode", "decode"), ("prefill", "prompts")):
            if family in table.used:
                self.used[term] = table.used[family]
        self.notes += table.notes
        self._latent(decoding, prompting)
        self._note_ranges(decoding, prompting)
        decode = {span: plane.decode_table() for span, plane in decoding.items()}
        prefill = {span: plane.prefill_table() for span, plane in prompting.items()}
        for span, each in attended(self._model, self._kv_dtype, self._tp).items():
            if (each.bytes or span is not None) and (span not in decode or span not in prefill):
                decode[span], prefill[span] = self._by_datasheet(each)
                for term in ("decode", "prefill"):
                    self.missing[term] = f"attention of {self._model.layers_in_words} was not timed"
        return decode, prefill

    def _latent(
        self, decoding: dict[AttentionSpan | None, Plane], prompting: dict[AttentionSpan | None, Plane]
    ) -> None:
        layers = self._model.cache_layers
        count = sum(isinstance(layer, LatentLayer) for layer in layers)
        if not count or any(isinstance(layer, IndexerLayer) for layer in layers):
            return
        found = latent(self._chip, self._model.heads // self._tp, self._types.attention, self._types.cache)
        if found is None:
            return
        _add(decoding, None, found.decode.scaled(count))
        _add(prompting, None, found.prompts.scaled(count))
        self.used["decode"], self.used["prefill"] = found.tables
        self._latent_timed = TIMED._replace(heads=found.heads)
        self.notes += found.notes

    def _by_datasheet(self, layers: Attended) -> tuple[Table, Table]:
        """Return decode and prompt attention by the datasheet, from bytes and FLOPs per attended token."""
        gpu, tp = self._chip.gpu, self._tp
        reading = layers.bytes / (KV * gpu.hbm_bytes_per_s)
        computing = layers.flops / tp / (FLOPS * gpu.fp16_flops)
        pair_s = layers.prompt_flops / tp / (FLOPS * gpu.fp16_flops)
        decode = bilinear("sequences", "context", each_s=max(reading, computing))
        return decode, bilinear("tokens", "keys", each_s=pair_s)

    def _note_ranges(
        self, decoding: dict[AttentionSpan | None, Plane], prompting: dict[AttentionSpan | None, Plane]
    ) -> None:
        for plane in list(decoding.values())[:1]:
            most, longest = int(plane.batch[-1]), int(plane.length[-1])
            self.ranges["decode"] = Range(least=1, most=most, most_context=longest)
        for plane in list(prompting.values())[:1]:
            longest = int(plane.length[-1])
            pairs = longest * (longest + 1) // 2
            self.ranges["prefill"] = Range(least=1, most=plane.most, most_context=pairs)

    def _states(self) -> States | None:
        layers = sum(isinstance(layer, StateLayer) for layer in self._model.cache_layers)
        if not layers:
            return None
        net, tp = self._model.recurrence, self._tp
        found = None
        if isinstance(net, GatedDeltaNet):
            found = delta_net(self._chip, self._model.hidden, net.key_heads // tp, net.value_heads // tp)
        if found is None:
            self.missing["states"] = "recurrent layers of this kind were not timed"
            gpu, (size, elements) = self._chip.gpu, states(self._model, tp)
            sequence_s = 2 * size / (HBM * gpu.hbm_bytes_per_s)
            token_s = STATE_FLOPS * elements / (FLOPS * gpu.fp16_flops)
            return States(
                decode=_curve(SEQUENCES, sequence_s * SEQUENCES.astype(np.float64), "sequences"),
                prefill=_curve(TOKENS, token_s * TOKENS.astype(np.float64)),
            )
        self.used["states"] = found.table
        self.notes += found.notes
        one = np.array([1])
        decode = found.decode.at(SEQUENCES, one)[:, 0]
        # One prompt of that many tokens, or several of the longest timed length.
        longest = int(found.prompts.length[-1])
        prompts = np.array(
            [
                found.prompts.at(np.array([max(1, each // longest)]), np.array([min(each, longest)]))[0, 0]
                for each in TOKENS.tolist()
            ]
        )
        return States(
            decode=_curve(SEQUENCES, layers * decode, "sequences"), prefill=_curve(TOKENS, layers * prompts)
        )

    def _all_reduces(self) -> tuple[Table | None, Table | None]:
        model, tp = self._model, self._tp
        if tp == 1:
            return None, None
        found = reduces(self._chip, tp)
        if found is None:
            self.missing["all_reduce"] = f"all-reduces among {tp} {self._chip.gpu.name} were not timed"
            return None, None
        self.used["all_reduce"] = self.used["all_reduce_eager"] = found.table
        self.notes += found.notes
        self.ranges["all_reduce"] = Range(least=1, most=int(TOKENS[-1]))
        # A norm over all heads all-reduces the squares of queries and of keys.
        norms = model.layers if model.wide_qk_norm else 0
        count, tokens = ALL_REDUCES_PER_LAYER * model.layers, TOKENS.astype(np.float64)

        def curve(graph: bool) -> Table:
            seconds = count * found.seconds(tokens * model.hidden, graph=graph)
            if norms:
                seconds = seconds + norms * found.seconds(tokens * SQUARES, graph=graph)
            return _curve(TOKENS, seconds)

        return curve(True), curve(False)


_NO_DECODE, _NO_PROMPTS = bilinear("sequences", "context"), bilinear("tokens", "keys")


def _add(planes: dict[AttentionSpan | None, Plane], span: AttentionSpan | None, plane: Plane) -> None:
    planes[span] = planes[span].plus(plane) if span in planes else plane


def _curve(sizes: Ints, seconds: Floats, axis: str = "tokens") -> Table:
    """Return seconds over sizes as a table that never falls."""
    return Table(axes={axis: tuple(sizes.tolist())}, seconds=seconds.tolist()).rising(axis).rounded(5)


def _ends(table: Table) -> Table:
    """Return a linear table reduced to its two end knots."""
    (axis, knots), *_ = table.axes.items()
    return Table.of({axis: (knots[0], knots[-1])}, table).rounded(5)
