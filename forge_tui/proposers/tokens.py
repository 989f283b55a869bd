"""How many tokens a text is, at most, without a tokenizer: every provider has another one, and some have none to load.

The count is above those of the tokenizers that a test has at hand for every text that prompts are made of. Random
letters, which no prompt holds, could pass it.
"""

from __future__ import annotations

import re

#: letters that one token surely holds in the words of code and English
_WORD = 5
_PIECE = re.compile(
    r"[A-Za-z]+(?![0-9A-Za-z])|[0-9]+(?![0-9A-Za-z])|[0-9A-Za-z]+|\n[ \t]*|[ \t]{2,}|[ \t]|[!-~]|[^\x00-\x7f]"
)
_CUT = "\n... cut ...\n"


def count(text: str) -> int:
    """An upper bound of the tokens of a text."""
    total = 0
    for piece in _PIECE.findall(text):
        first = piece[0]
        if first == " " and len(piece) == 1:
            # belongs to the word behind it
            continue
        if piece.isascii() and piece.isalpha():
            total += 1 + (len(piece) - 1) // _WORD
        elif piece.isascii() and piece.isdigit():
            total += (len(piece) + 1) // 2
        elif first.isascii() and first.isalnum():
            # letters and digits mixed: hexadecimal numbers, short names
            total += (2 * len(piece) + 2) // 3
        elif first.isascii():
            total += 1
        else:
            total += len(first.encode("utf-8", "replace"))
    return total


def cap(text: str, limit: int) -> str:
    """The text in at most so many tokens, cut in the middle, between lines where it has some."""
    if count(text) <= limit:
        return text
    note = _CUT if "\n" in text else " ... "
    room = max(0, limit - count(note))
    pieces = text.splitlines(keepends=True) if "\n" in text else [text]
    if len(pieces) == 1 or max(map(count, pieces)) > room // 4:
        pieces = re.findall(r"\s*\S{1,40}", text)
    head = _fitting(pieces, room * 2 // 3)
    tail = _fitting(pieces[len(head):][::-1], room - sum(map(count, head)))[::-1]
    return "".join(head).rstrip() + note + "".join(tail).lstrip("\n")


def _fitting(pieces: list[str], room: int) -> list[str]:
    taken: list[str] = []
    for piece in pieces:
        room -= count(piece)
        if room < 0:
            break
        taken.append(piece)
    return taken
