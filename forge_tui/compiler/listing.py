"""A disassembly in few words: how often which instruction, and the largest innermost loop."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from forge_tui.core.records import Record

MOST_LINES, MOST_NAMES = 60, 16

#: `cuobjdump -sass`
_SASS = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(\S.*?)\s*;")
_SASS_HEAD = re.compile(r"^\s*Function\s*:\s*(\S+)")
_SASS_BRANCH = re.compile(r"\bBRA\b.*?\b0x([0-9a-f]+)\b")
#: `objdump -d --no-show-raw-insn`
_OBJDUMP = re.compile(r"^\s*([0-9a-f]+):\s+([a-z]\S*.*?)\s*$")
_OBJDUMP_HEAD = re.compile(r"^[0-9a-f]+ <([^>]+)>:$")
_OBJDUMP_BRANCH = re.compile(r"^(?:j[a-z]+|b\.[a-z]+|b|cbn?z|tbn?z)\b.*?\b([0-9a-f]+)\s*<")
#: what linkers add
_STARTUP = re.compile(r"_init|_fini|_start|(?:de)?register_tm_clones|__do_global_dtors_aux|frame_dummy|.*@plt.*|"
                      r"\.plt.*")  # fmt: skip
_PREDICATE = re.compile(r"^@!?U?P\w+\s+")


class Instruction(Record, frozen=True):
    """One instruction. `target` is where a jump goes."""

    address: int
    text: str
    target: int | None = None

    @property
    def name(self) -> str:
        """`LDG.E.128`, `vaddps`."""
        return _PREDICATE.sub("", self.text).split(None, 1)[0]


def functions(disassembly: str) -> dict[str, list[Instruction]]:
    """The instructions of each function, in their order."""
    found: dict[str, list[Instruction]] = {}
    here: list[Instruction] = []
    for line in disassembly.splitlines():
        head = _SASS_HEAD.match(line) or _OBJDUMP_HEAD.match(line)
        if head is not None:
            here = found.setdefault(head[1], [])
            continue
        sass = _SASS.match(line)
        match = sass or _OBJDUMP.match(line)
        if match is not None:
            jump = (_SASS_BRANCH if sass else _OBJDUMP_BRANCH).search(match[2])
            here.append(Instruction(int(match[1], 16), match[2], int(jump[1], 16) if jump else None))
    return {name: code for name, code in found.items() if code}


def inner_loop(code: Sequence[Instruction]) -> Sequence[Instruction]:
    """The largest loop that holds no other; empty where there is none. A jump to itself ends a kernel and is none."""
    places = {one.address: place for place, one in enumerate(code)}
    loops = [(places[one.target], place) for place, one in enumerate(code)
             if one.target is not None and one.target < one.address and one.target in places]  # fmt: skip
    inner = [(a, b) for a, b in loops if not any((c, d) != (a, b) and a <= c and d <= b for c, d in loops)]
    if not inner:
        return ()
    first, last = max(inner, key=lambda loop: loop[1] - loop[0])
    return code[first : last + 1]


def brief(disassembly: str, kernels: Sequence[str]) -> str:
    """What matters of these functions and of what was split from them, the longest first; empty for no disassembly.

    Without any of them it is of all that the source has.
    """
    found = {name: code for name, code in functions(disassembly).items() if not _STARTUP.fullmatch(name)}
    wanted = {name: code for name, code in found.items() if name.split(".", 1)[0] in kernels} or found
    ordered = sorted(wanted.items(), key=lambda item: -len(item[1]))
    return "\n".join(_of(name, code) for name, code in ordered)


def _of(name: str, code: Sequence[Instruction]) -> str:
    lines = [f"{name}: {len(code)} instructions: {_counts(code)}."]
    loop = inner_loop(code)
    if not loop:
        return f"{lines[0]} It has no loop."
    lines.append(f"Its largest inner loop has {len(loop)}: {_counts(loop)}.")
    lines += [f"  {one.text}" for one in loop[:MOST_LINES]]
    if len(loop) > MOST_LINES:
        lines.append(f"  ... {len(loop) - MOST_LINES} more")
    return "\n".join(lines)


def _counts(code: Sequence[Instruction]) -> str:
    counted = Counter(one.name for one in code).most_common()
    text = ", ".join(f"{name} {count}" for name, count in counted[:MOST_NAMES])
    return f"{text}, and {len(counted) - MOST_NAMES} other kinds" if len(counted) > MOST_NAMES else text
