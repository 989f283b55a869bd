"""Small text helpers of prompts."""

from __future__ import annotations


def first_words(text: str, limit: int) -> str:
    """So many words of the text."""
    words = text.split()
    return " ".join(words[:limit]) + (" ..." if len(words) > limit else "")


def microseconds(time_us: float | None) -> str:
    """`12.3 us`, `43660 us`, or `unknown`."""
    if time_us is None:
        return "unknown"
    return f"{time_us:.0f} us" if time_us >= 1000 else f"{time_us:.4g} us"
