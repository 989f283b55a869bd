"""Small text helpers of prompts."""

from __future__ import annotations


def cap(text: str, limit: int) -> str:
    """The text, cut in the middle where it is too long."""
    if len(text) <= limit:
        return text
    note = "\n... cut ...\n" if "\n" in text else " ... "
    keep = limit - len(note)
    head = keep * 2 // 3
    return text[:head] + note + text[len(text) - (keep - head):]


def first_words(text: str, limit: int) -> str:
    """So many words of the text."""
    words = text.split()
    return " ".join(words[:limit]) + (" ..." if len(words) > limit else "")


def microseconds(time_us: float | None) -> str:
    """`12.3 us`, or `unknown`."""
    return "unknown" if time_us is None else f"{time_us:.4g} us"
