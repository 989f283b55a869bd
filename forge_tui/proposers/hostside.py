"""Host code in replies: taken out where the rest says by itself how it is launched, so that no repair is paid for."""

from __future__ import annotations

import re
from collections.abc import Iterator

from forge_tui.proposers import codetext

_INCLUDE = re.compile(
    r"^[ \t]*#[ \t]*include[ \t]*[<\"](?:torch/|ATen/|c10/|pybind11/|Python\.h|iostream|cstdio|cstdlib|stdio\.h|"
    r"stdlib\.h|vector|cuda\.h)[^\n]*\n?", re.MULTILINE,
)  # fmt: skip
_HOST_CODE = re.compile(r"<<<|\bcuda(?:Malloc|Memcpy|Free|DeviceSynchronize|GetLastError|Stream)\w*|\btorch::|\bat::")
_HOST_HEAD = re.compile(r"\bint\s+main\s*\(|\bPYBIND11_MODULE\b|\bTORCH_LIBRARY\w*\b")
_DEVICE_HEAD = re.compile(r"\b__(?:global|device|constant|shared)__\b")
_KERNEL_HEAD = {"cuda": re.compile(r"\b__global__\b"), "cpp": re.compile(r"\bforge_launch\b")}
#: `extern "C" {` with its string blank, and named or nameless namespaces
_GROUP_HEAD = re.compile(r"(?:extern|(?:inline\s+)?namespace(?:\s+[\w:]+)?)\s*\{\Z")


def strip(source: str, language: str) -> tuple[str, str]:
    """The source without host code, and what was taken out; as it is where that would leave nothing that runs.

    Directives that stand above or in host code are the kernel's, and stay.
    """
    if language == "cuda" and not codetext.launches(source):
        # how it is launched is said by the host code alone: the contract's refusal says what to write
        return source, ""
    hidden = codetext.hidden(source)
    spans = [span for span in _definitions(hidden) if _is_host(hidden[slice(*span)], language)]
    names: list[str] = []
    bare = source
    for start, end in reversed(spans):
        names.append(_name(hidden[start:end]))
        bare = bare[:start] + _kept(source[start:end], hidden[start:end], bare[:start] + bare[end:]) + bare[end:]
    if spans or re.search(r"torch/|ATen/|pybind11/", bare):
        included = bare
        bare = _INCLUDE.sub("", bare)
        names += ["includes"] * (bare != included)
    if not names or not _KERNEL_HEAD["cuda" if language == "cuda" else "cpp"].search(codetext.hidden(bare)):
        return source, ""
    return bare, "host code was left out: " + ", ".join(reversed(names))


def _kept(taken: str, hidden: str, rest: str) -> str:
    """What stays of a definition: the lines above its code, and the directives in it, but none that the rest has."""
    above = taken[:len(hidden) - len(hidden.lstrip())]
    there = {" ".join(line.split()) for line in codetext.directives(rest)}
    lines = above.rstrip(" \t").split("\n")
    kept = [line for line in lines if " ".join(line.split()) not in there]
    there.update(" ".join(line.split()) for line in kept)
    inside = codetext.directives(taken[len(above):])
    kept[-1:-1] = [line for line in dict.fromkeys(inside) if " ".join(line.split()) not in there]
    return "\n".join(kept) if any(line.strip() for line in kept) else ""


def _is_host(definition: str, language: str) -> bool:
    head = definition.partition("{")[0]
    if _HOST_HEAD.search(head):
        return True
    if language != "cuda" or _DEVICE_HEAD.search(definition):
        return False
    return bool(_HOST_CODE.search(definition))


def _definitions(hidden: str) -> Iterator[tuple[int, int]]:
    """Start and end of every definition with a body outside of others; comments and strings are blanks here.

    What a namespace or `extern "C" { }` groups counts as outside.
    """
    depth, start, body = 0, 0, False
    for match in re.finditer(r"[{};]|^[ \t]*#(?:[^\n\\]|\\.|\\\n)*\n?", hidden, re.MULTILINE):
        mark = match[0]
        if mark == "{":
            if depth == 0 and _GROUP_HEAD.search(hidden[start:match.end()].lstrip()):
                start = match.end()
                continue
            depth += 1
            body = True
        elif mark == "}":
            if depth == 0:
                # the end of a group
                start = match.end()
                continue
            depth -= 1
            if depth == 0 and body:
                end = match.end()
                # that of a class
                closing = re.compile(r"\s*;").match(hidden, end)
                end = closing.end() if closing else end
                yield start, end
                start, body = end, False
        elif depth == 0:
            start = match.end()


def _name(definition: str) -> str:
    names = re.findall(r"(\w+)\s*\(", definition.partition("{")[0])
    return str(names[0]) if names else "a definition"
