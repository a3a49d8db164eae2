"""One method of each kind, for tables that compare them."""

from __future__ import annotations

from leporello.gradient.checkpointed import Checkpointed
from leporello.gradient.full import Full
from leporello.gradient.method import Method
from leporello.gradient.random_truncated import RandomTruncated
from leporello.gradient.rtrl import RTRL
from leporello.gradient.truncated import Truncated
from leporello.gradient.uoro import UORO


def kinds(length: int) -> list[Method]:
    """With windows that suit a length."""
    steps = max(1, min(35, length // 2))
    return [
        Full(),
        Truncated(steps),
        Truncated(steps, every=1),
        RandomTruncated(),
        Checkpointed(),
        Checkpointed(levels=2),
        RTRL(),
        UORO(),
    ]
