"""A system's tables, opened: rows of each, and of which version they are."""

from __future__ import annotations

from functools import cached_property

from pagesim.costs.operators import attention_rows, decoding, experts, gemm, latent, prompts, reduces, states
from pagesim.costs.operators.store import Found, Store
from pagesim.costs.operators.table_rows import Rows, read_rows
from pagesim.errors import PagesimError

Opened = tuple[Rows, str]
"""Rows, and the version that they are of."""


class Tables:
    """The tables of one system and engine; None stands for one that there is not.

    Args:
        store: where they are.

    Attributes:
        store: as given.
        notes: of tables that are not of the version asked for, a sentence each, as far as they were opened.
        versions: by table, as far as they were opened.

    Raises:
        PagesimError: when one is opened that is damaged.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.notes: list[str] = []
        self.versions: dict[str, str] = {}

    @cached_property
    def gemm(self) -> Opened | None:
        """Matrix products."""
        return self._open(self.store.table(gemm.FAMILY, gemm.NAME), gemm.INTS, gemm.TEXTS)

    @cached_property
    def decoding(self) -> Opened | None:
        """Decode attention."""
        found = self.store.table(attention_rows.FAMILY, decoding.NAME)
        return self._open(found, decoding.INTS, attention_rows.TEXTS, attention_rows.ABSENT)

    @cached_property
    def prompts(self) -> Opened | None:
        """Prompts' attention."""
        found = self.store.table(attention_rows.FAMILY, prompts.NAME)
        return self._open(found, prompts.INTS, attention_rows.TEXTS, attention_rows.ABSENT)

    @cached_property
    def reduces(self) -> Opened | None:
        """The engine's own all-reduces."""
        return self._open(self.store.table(reduces.FAMILY, reduces.NAME), reduces.INTS, reduces.TEXTS)

    @cached_property
    def nccl(self) -> Opened | None:
        """NCCL's collectives."""
        return self._open(self.store.nccl(), reduces.NCCL_INTS, reduces.NCCL_TEXTS)

    @cached_property
    def experts(self) -> Opened | None:
        """Experts."""
        return self._open(self.store.table(experts.FAMILY, experts.NAME), experts.INTS, experts.TEXTS)

    @cached_property
    def all_experts(self) -> list[Found]:
        """Tables of experts, the best first; other engines' are the last.

        Among newer ones that of the current version is the first: others are drops of some shapes, timed with
        kernels that no release may have used.
        """
        found = self.store.candidates(experts.FAMILY, experts.NAME)
        peers = self.store.peers(experts.FAMILY, experts.NAME)
        try:
            current = self.store.current()
        except PagesimError:
            return found + peers
        return sorted(found, key=lambda each: each.how == "newer" and 1 + (each.version != current)) + peers

    @cached_property
    def latent_prompts(self) -> Opened | None:
        """Modules of latent attention in prompts."""
        found = self.store.table(latent.FAMILY, latent.CONTEXT)
        return self._open(found, latent.CONTEXT_INTS, latent.TEXTS)

    @cached_property
    def latent_decoding(self) -> Opened | None:
        """Modules of latent attention in decoding."""
        found = self.store.table(latent.FAMILY, latent.GENERATION)
        return self._open(found, latent.GENERATION_INTS, latent.TEXTS)

    @cached_property
    def states(self) -> Opened | None:
        """Gated delta nets."""
        return self._open(self.store.table(states.FAMILY, states.NAME), states.INTS, states.TEXTS)

    def _open(
        self,
        found: Found | None,
        ints: tuple[str, ...],
        texts: tuple[str, ...],
        absent: tuple[tuple[str, int], ...] = (),
    ) -> Opened | None:
        if found is None:
            return None
        self.versions[found.name] = found.version
        if found.note:
            self.notes.append(found.note)
        return read_rows(found.file, ints, texts, absent), found.version


def read_experts(found: Found) -> Rows:
    """Return the rows of a table of experts; of another engine's those of kernels that several call."""
    rows = read_rows(found.file, experts.INTS, experts.TEXTS)
    return experts.of_kernels(rows, experts.SHARED) if found.how == "peer" else rows
