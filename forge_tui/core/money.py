"""Dollars as people read them."""

from __future__ import annotations


def dollars(usd: float) -> str:
    """`$1.23`, with four digits below ten cents."""
    return f"${usd:.2f}" if usd >= 0.1 or usd == 0 else f"${usd:.4f}"
