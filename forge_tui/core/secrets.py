"""Keys do not leave this process: texts that are shown, kept or sent are cleared of them first."""

from __future__ import annotations

import os
import re

MASK = "[key]"
#: shorter values are words rather than keys
_SHORTEST = 8
#: environment variables whose values never appear in what a person reads
_NAME = re.compile(r"key|token|secret|password|credential", re.IGNORECASE)
#: and those whose values are not sent either; strict, because source code may hold any short word
_KEY_NAME = re.compile(r"(?:key|key_?id|token|secret|passw(?:or)?d|credentials?)$", re.IGNORECASE)
_SHORTEST_SENT = 16
#: what issuers' keys look like, also half hidden by stars; ordinary names such as key_padding_mask are none
_TEXT = re.compile(
    r"(?<![A-Za-z0-9_])(?:sk-[A-Za-z0-9_*.-]{6,}|[srp]k_(?:live|test)_[A-Za-z0-9*]{8,}|gsk_[A-Za-z0-9*]{6,}"
    r"|xai-[A-Za-z0-9_*-]{6,}|(?:hf|key|pk|rk|r8)[-_](?=[A-Za-z0-9*]*[0-9*])[A-Za-z0-9*]{16,}|AIza[A-Za-z0-9_*-]{10,}"
    r"|gh[pousr]_[A-Za-z0-9*]{16,}|(?:AKIA|ASIA)[A-Z0-9]{16}|eyJ[\w-]{8,}\.eyJ[\w-]{8,})|\bBearer\s+\S{6,}",
    re.IGNORECASE,
)

_known: set[str] = set()


def remember(value: str) -> None:
    """A key that was read from a file or a keyring: from now on it is masked as those of the environment are."""
    if len(value) >= _SHORTEST:
        _known.add(value)


def is_key(name: str) -> bool:
    """Whether a variable of this name holds a key, rather than a project, a region or an address."""
    return _KEY_NAME.search(name) is not None


def without_values(text: str) -> str:
    """The text without the values of known keys; nothing else in it changes."""
    known = {value for value in _known if len(value) >= _SHORTEST_SENT}
    for value in _longest_first({*known, *_environment(_KEY_NAME, _SHORTEST_SENT)}):
        text = text.replace(value, MASK)
    return text


def masked(text: str) -> str:
    """The text without anything that is, or looks like, a key."""
    for value in _longest_first({*_known, *_environment(_NAME, _SHORTEST)}):
        text = text.replace(value, MASK)
    return _TEXT.sub(MASK, text)


def _environment(names: re.Pattern[str], shortest: int) -> set[str]:
    return {value for name, value in os.environ.items() if len(value) >= shortest and names.search(name)}


def _longest_first(values: set[str]) -> list[str]:
    # one may begin another
    return sorted(values, key=len, reverse=True)
