"""Which of a compiler's messages a person, a prompt or a log may see: those about the build's own files and toolkit.

A source that got a file of the machine compiled would find its lines quoted in the errors. The lint refuses such
sources and the compiler is kept from reading other files; this is the third line.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from forge_tui.processes import isolation

LEFT_OUT = "[a message about a file outside of the build is left out]"

#: how g++, nvcc, the assembler, the linker and ptxas begin a message that names a file and a line
_NAMED = re.compile(
    r"^(?:In file included from |\s+from |ptxas )?\"?"
    r"(?P<path>[^\s:()\",'`\[\]]*[/\\][^:()\",'`]*?|\.{0,2}[\w.+-]+\.\w+)\"?"
    r"(?:, line \d+[:;]|:\d+[:,]|\(\d+\)|: Assembler messages:|:\(\S+\):)"
)
#: what is quoted below a message
_CONTINUED = re.compile(r"^(?:\s|$|\d+ \|)")


def own_words(log: str, folder: str, toolkit: Sequence[str]) -> str:
    """The log without the messages about files elsewhere, and without what is quoted below them."""
    roots = tuple({os.path.realpath(root) for root in (folder, *isolation.SYSTEM, *toolkit)})
    kept: list[str] = []
    foreign = False
    for line in log.split("\n"):
        named = _NAMED.match(line)
        if named:
            foreign = not _own(named["path"], folder, roots)
        elif not _CONTINUED.match(line):
            foreign = False
        if not foreign:
            kept.append(line)
        elif not kept or kept[-1] != LEFT_OUT:
            kept.append(LEFT_OUT)
    return "\n".join(kept)


def _own(path: str, folder: str, roots: Sequence[str]) -> bool:
    whole = os.path.realpath(os.path.join(folder, path))  # noqa: PTH118 - no resolve() that raises at circles
    return any(whole == root or whole.startswith(f"{root}/") for root in roots)
