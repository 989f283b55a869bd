"""A reply taken apart: blocks of code by their fences, and the talk around them."""

from __future__ import annotations

import re

from forge_tui.core.records import Record

# a fence may stand in a list or a quotation, or behind words on its line
_OPEN = re.compile(r"^((?:[ \t]*>)*)([ \t]*)(?:[-*+][ \t]+|\d{1,3}[.)][ \t]+)?(`{3,}|~{3,})[ \t]*+([^`\n]*)$")
_OPEN_BEHIND = re.compile(r"^([^`\n]*[^`\s])[ \t]*(`{3,})[ \t]*(cuda|cu|cpp|c\+\+|cc|cxx|c)[ \t]*$", re.IGNORECASE)
_CLOSE = re.compile(r"^(|.*[^`~\s])[ \t]*(`{3,}|~{3,})[ \t]*$")
_QUOTE = re.compile(r"^(?:[ \t]*>)+ ?")
_COMMENT = re.compile(r"//|/\*|\*/|\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'")
_KERNEL_LIKE = re.compile(r"#[ \t]*include|__global__|forge|FORGE_|//[ \t]*@")
_BARE_KERNEL = re.compile(r"\s*(?:#[ \t]*include\b|//[ \t]*@|extern\s+\"C\")")
_INFO = re.compile(r"[{.]?[\w+#.-]+(?:[\s:,;]*$|[\s:,;{]+[\w.-]+=|\s*\{|:[\w./-]+$)")
_CODE_IN_INFO = re.compile(r"//[ \t]*@|#[ \t]*include\b|extern\b")
#: what a block with a part of a source may be called
SOURCES = frozenset(["", "cuda", "cu", "cuh", "cpp", "c++", "cc", "cxx", "c", "h", "hpp", "cuda-cpp", "cuda_cpp"])


class Part(Record, frozen=True, kw_only=True):
    """A stretch of lines: a block of code without its fences, or talk."""

    text: str
    code: bool
    closed: bool = True
    tag: str = ""
    """The first word behind the fence, in lower case."""
    start: int = 0
    """Number of its first line."""
    end: int = 0
    """Number of the line behind it."""
    lead: str = ""
    """The heading and the line before it."""

    @property
    def c_like(self) -> bool:
        """Whether it may be a part of a source."""
        return self.code and self.tag in SOURCES


def parts(text: str) -> list[Part]:
    """The blocks and the talk between them, in order; a block without its last fence is not `closed`."""
    scan = Scan(text)
    for number, line in enumerate(scan.lines):
        scan.take(number, line)
    scan.end(len(scan.lines), closed=False)
    return scan.found


class Scan:
    """One pass over the lines; `fence` is that of the block that the next one is in."""

    def __init__(self, text: str) -> None:
        self.lines = text.split("\n")
        self.last_comment_end = max((i for i, line in enumerate(self.lines) if "*/" in line), default=-1)
        self.found: list[Part] = []
        self.body: list[str] = []
        self.heading = self.last = ""
        self.start = 0
        self._outside()

    def _outside(self) -> None:
        self.fence, self.tag, self.indent, self.quoted = "", "", "", False
        self.in_comment = self.kernel_like = False

    def take(self, number: int, line: str) -> None:
        """The next line."""
        in_comment = self.in_comment and self.kernel_like and number < self.last_comment_end
        if not self.fence:
            if in_comment:
                self._say(line)
                return
            match = _OPEN.match(line)
            behind = None if match else _OPEN_BEHIND.match(line)
            if match:
                self._open(number, match[3], match[4], match[2], match[1])
            elif behind:
                self._say(behind[1])
                self._open(number, behind[2], behind[3], "", "")
            else:
                self._say(line)
            return
        inner = _QUOTE.sub("", line) if self.quoted else line
        if in_comment:
            # a fence within a comment of the source
            self._add(inner)
            return
        close = _CLOSE.match(inner)
        again = _OPEN.match(line)
        if close and close[2].startswith(self.fence) and _ends_code(close[1]):
            if close[1]:
                self._add(close[1])
            self.end(number + 1, closed=True)
        elif again and again[4].strip() and again[3].startswith(self.fence) and not _names_code(again[4]):
            # talk on the line of the last fence
            self.end(number, closed=True)
            self._say(again[4])
        elif again and again[4].strip() and (again[3].startswith(self.fence) or _tag(again[4]) in SOURCES):
            # a block in the block, or behind one whose last fence was forgotten
            self.end(number, closed=True)
            self._open(number, again[3], again[4], again[2], again[1])
        elif not self.kernel_like and (behind := _OPEN_BEHIND.match(line)):
            self.end(number, closed=True)
            self._open(number, behind[2], behind[3], "", "")
        else:
            self._add(inner)

    def _say(self, line: str) -> None:
        self.body.append(line)
        # a source may stand in talk, too
        self.kernel_like = self.kernel_like or _BARE_KERNEL.match(line) is not None
        self.in_comment = self.kernel_like and _comment_after(line, inside=self.in_comment)
        if line.lstrip().startswith(("#", "**")):
            self.heading = line.strip()[:200]
        if line.strip():
            self.last = line.strip()[-200:]

    def _add(self, line: str) -> None:
        if self.indent and line.startswith(self.indent):
            line = line[len(self.indent):]
        self.kernel_like = self.kernel_like or _KERNEL_LIKE.search(line) is not None
        self.in_comment = _comment_after(line, inside=self.in_comment)
        self.body.append(line)

    def _open(self, number: int, fence: str, info: str, indent: str, quote: str) -> None:
        self.end(number, closed=True)
        # the first blank behind `>` is the quotation's
        self.fence, self.indent, self.quoted, self.start = fence, indent[bool(quote):], bool(quote), number + 1
        self.tag = _tag(info)
        self.kernel_like = self.tag in SOURCES - {""}
        code = _CODE_IN_INFO.search(info)
        if code:
            self._add(info[code.start():])

    def end(self, number: int, *, closed: bool) -> None:
        """The part at hand ends before this line."""
        if self.fence or any(line.strip() for line in self.body):
            lead = f"{self.heading}\n{self.last}" if self.fence else ""
            made = Part(text="\n".join(self.body), code=bool(self.fence), closed=closed or not self.fence,
                        tag=self.tag, start=self.start, end=number, lead=lead)  # fmt: skip
            self.found.append(made)
        if self.fence:
            self.heading = self.last = ""
        self.body, self.start = [], number
        self._outside()


def _tag(info: str) -> str:
    return re.split(r"[\s:,;=}]", info.strip().lstrip("{.").lower(), maxsplit=1)[0]


def _names_code(info: str) -> bool:
    """Whether what stands behind a fence may name a language, with attributes or a title."""
    return _tag(info) in SOURCES or _INFO.match(info) is not None


def _ends_code(before: str) -> bool:
    """Whether a fence may close behind this on its line."""
    return not before or (before.endswith((";", "}")) and "//" not in before)


def _comment_after(line: str, *, inside: bool) -> bool:
    """Whether the end of a line is within a block comment."""
    at = 0
    while True:
        if inside:
            at = line.find("*/", at)
            if at < 0:
                return True
            at, inside = at + 2, False
        match = _COMMENT.search(line, at)
        if match is None or match[0] == "//":
            return False
        inside, at = match[0] == "/*", match.end()
