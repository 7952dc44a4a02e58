"""What readers of sessions share: the session that a chat belongs to, and the time between two turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pagesim.workloads.trace import MAX_THINK_S, FloatColumn


def roots(parents: Mapping[int, int]) -> tuple[dict[int, int], set[int]]:
    """Return the first chat of each chat's conversation, and the chats that are their own ancestors.

    Args:
        parents: of each chat the one before it, itself where it is the first; one that is no chat of the
            mapping is the first of its conversation.
    """
    found: dict[int, int] = {}
    circular: set[int] = set()
    for chat in parents:
        path: dict[int, None] = {}
        while chat not in found and chat not in path and parents.get(chat, chat) != chat:
            path[chat] = None
            chat = parents[chat]
        if chat in path or chat in circular:
            circular |= path.keys()
        root = found.get(chat, chat)
        found.update(dict.fromkeys(path, root))
        found[chat] = root
    return found, circular


def thinking_between(session: Sequence[Any], start_s: FloatColumn, end_s: FloatColumn) -> FloatColumn:
    """Return the seconds from the end of a session's last turn until each turn began, ``[N]``.

    At least 0 and at most ``MAX_THINK_S``; 0 for first turns and for requests without a session.

    Args:
        session: of each request, in order of time within a session, ``[N]``; None for none.
        start_s: when each was sent, ``[N]``.
        end_s: when each was over, ``[N]``.
    """
    over: dict[Any, float] = {}
    times = np.zeros(len(start_s))
    for row, (name, start, end) in enumerate(zip(session, start_s.tolist(), end_s.tolist(), strict=True)):
        if name is not None:
            times[row] = min(max(start - over.get(name, start), 0.0), MAX_THINK_S)
            over[name] = end
    return times
