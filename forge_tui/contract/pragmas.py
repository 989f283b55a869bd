"""Tunables in `#pragma unroll`: neither nvcc nor g++ expands macros there, and authors expect it."""

from __future__ import annotations

import re
from collections.abc import Mapping

from forge_tui.contract.source import Source

_UNROLL = re.compile(r"#\s*pragma\s+(?:GCC\s+)?unroll\b")


def filled(source: Source, chosen: Mapping[str, int]) -> str:
    """The text for the compiler: the names of tunables behind an unroll pragma are their values; lines stay in place.

    `#pragma unroll UNROLL` with `UNROLL` chosen as 4 becomes `#pragma unroll 4`.
    """
    lines = source.text.split("\n")
    for found in source.hash_lines:
        line = lines[found.line - 1]
        pragma = _UNROLL.search(line)
        if pragma and _UNROLL.match(found.text):
            rest = re.sub(r"\b[A-Za-z_]\w*\b", lambda m: str(chosen.get(m[0], m[0])), line[pragma.end() :])
            lines[found.line - 1] = line[: pragma.end()] + rest
    return "\n".join(lines)
