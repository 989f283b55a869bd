"""Host code in replies: taken out where the rest says by itself how it is launched, so that no repair is paid for."""

from __future__ import annotations

import re
from collections.abc import Iterator

_INCLUDE = re.compile(
    r"^[ \t]*#[ \t]*include[ \t]*[<\"](?:torch/|ATen/|c10/|pybind11/|Python\.h|iostream|cstdio|stdio\.h|vector|cuda\.h)"
    r"[^\n]*\n?", re.MULTILINE,
)  # fmt: skip
_HIDDEN = re.compile(r'//[^\n]*|/\*.*?(?:\*/|\Z)|"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\'', re.DOTALL)
_HOST_CODE = re.compile(r"<<<|\bcuda(?:Malloc|Memcpy|Free|DeviceSynchronize|GetLastError|Stream)\w*|\btorch::|\bat::")
_HOST_HEAD = re.compile(r"\bint\s+main\s*\(|\bPYBIND11_MODULE\b|\bTORCH_LIBRARY\w*\b")
_DEVICE_HEAD = re.compile(r"\b__(?:global|device|constant|shared)__\b")
_KERNEL_HEAD = {"cuda": re.compile(r"\b__global__\b"), "cpp": re.compile(r"\bforge_launch\b")}
_LAUNCH = re.compile(r"^[ \t]*//@launch\b", re.MULTILINE)


def strip(source: str, language: str) -> tuple[str, str]:
    """The source without host code, and what was taken out; as it is where that would leave nothing that runs."""
    if language == "cuda" and not _LAUNCH.search(source):
        # how it is launched is said by the host code alone: the contract's refusal says what to write
        return source, ""
    hidden = _HIDDEN.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), source)
    spans = [span for span in _definitions(hidden) if _is_host(hidden[slice(*span)], language)]
    names: list[str] = []
    for start, end in reversed(spans):
        names.append(_name(hidden[start:end]))
        source = source[:start] + source[end:]
    bare = _INCLUDE.sub("", source) if spans or re.search(r"torch/|ATen/|pybind11/", source) else source
    if bare != source:
        names.append("includes")
    if not names or not _KERNEL_HEAD["cuda" if language == "cuda" else "cpp"].search(bare):
        return source, ""
    return bare, "host code was left out: " + ", ".join(reversed(names))


def _is_host(definition: str, language: str) -> bool:
    head = definition.partition("{")[0]
    if _HOST_HEAD.search(head):
        return True
    if language != "cuda" or _DEVICE_HEAD.search(head):
        return False
    return bool(_HOST_CODE.search(definition))


def _definitions(hidden: str) -> Iterator[tuple[int, int]]:
    """Start and end of every definition with a body at the top level; comments and strings are blanks here."""
    depth, start, body = 0, 0, False
    for match in re.finditer(r"[{};]|^[ \t]*#(?:[^\n\\]|\\.|\\\n)*\n?", hidden, re.MULTILINE):
        mark = match[0]
        if mark == "{":
            depth += 1
            body = True
        elif mark == "}":
            depth -= 1
            if depth < 0:
                return
            if depth == 0 and body:
                yield start, match.end()
                start, body = match.end(), False
        elif depth == 0:
            start = match.end()


def _name(definition: str) -> str:
    names = re.findall(r"(\w+)\s*\(", definition.partition("{")[0])
    return str(names[0]) if names else "a definition"
