"""C identifiers for call paths: the names of kernel parameters and header constants."""

from __future__ import annotations

import re

from forge_tui.contract.identifiers import clean

#: endings that the header derives from other names
_DERIVED = re.compile(r"(out\d+|.*_(shape|stride)_\d+|.*_(align|numel))\Z")


def unique_identifier(path: str, taken: set[str]) -> str:
    """A C identifier for a dotted path that no other name of the target has; it is added to `taken`."""
    name = clean(re.sub(r"\W+", "_", path, flags=re.ASCII))
    if _DERIVED.match(name):
        name = f"{name}_"
    candidate, number = name, 2
    while candidate in taken:
        candidate, number = f"{name}_{number}", number + 1
    taken.add(candidate)
    return candidate
