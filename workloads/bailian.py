"""Qwen-Bailian's traces: requests of a chat service, with the chat before each and ids of 16-token blocks.

Source: github.com/alibaba-edu/qwen-bailian-usagetraces-anon, README.md.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pagesim.workloads.rows import Rows
from pagesim.workloads.sessions import roots
from pagesim.workloads.tables import QWEN_BAILIAN
from pagesim.workloads.trace import IntColumn
from pagesim.workloads.values import is_missing

FIRST = -1
"""Stands for the parent of the first chat of a conversation."""

MAX_CHAT = 2**53


def read_bailian(rows: Rows) -> dict[str, Any]:
    """Read times in seconds, lengths, ids of blocks, and a session for each conversation.

    A session is named by its first chat, or by a chat that precedes the file. ``type`` and ``turn`` are not
    used: turns are in order of their times.
    """
    return QWEN_BAILIAN.read(rows, session_id=_conversations(rows))


def _conversations(rows: Rows) -> IntColumn:
    given = rows.column("parent_chat_id")
    filled = [FIRST if is_missing(v) else v for v in given]
    rows.columns = {**rows.columns, "parent_chat_id": filled}
    chats = rows.whole_numbers("chat_id", 0, MAX_CHAT)
    parents = rows.whole_numbers("parent_chat_id", FIRST, MAX_CHAT)
    before = dict(zip(chats.tolist(), np.where(parents == FIRST, chats, parents).tolist(), strict=True))
    first, circular = roots(before)
    rows.reject(
        np.isin(chats, sorted(circular)) | (parents == chats),
        lambda row: (
            f"parent_chat_id is {parents[row]}, and from there parents lead back to chat_id {chats[row]}; "
            f"it must be the chat before, or {FIRST} for none"
        ),
    )
    return np.array([first[chat] for chat in chats.tolist()], np.int64)
