"""A kernel source as the compiler reads it: spliced lines, comments apart, tokens with line numbers.

Everything that judges a source (directives, lint, keys) sees it through here, so that no comment, string or line
continuation means one thing to us and another to the compiler. What cannot be read in one way only is refused.
"""

from __future__ import annotations

import bisect
import re
from dataclasses import dataclass
from typing import Literal

from forge_tui.core.errors import ContractError

MAX_BYTES = 256 * 1024

Kind = Literal["name", "number", "string", "char", "punct"]

_SPLICE = re.compile(r"\\\n")
# some compilers join lines where blanks stand behind the backslash, some do not: the blanks are taken away
_LOOSE_SPLICE = re.compile(r"\\[ \t]+(?=\n)")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_TOKEN = re.compile(
    r"""
    (?P<blank>[ \t]+)
  | (?P<newline>\n)
  | (?P<line_comment>//[^\n]*)
  | (?P<block_comment>/\*.*?\*/)
  | (?P<raw>(?:u8|[uUL])?R"(?P<mark>[^ ()\\\t\n"]{0,16})\(.*?\)(?P=mark)")
  | (?P<string>"(?:[^"\\\n]|\\.)*")
  | (?P<char>'(?:[^'\\\n]|\\.)*')
  | (?P<number>\.?[0-9](?:[eEpP][+-]|'[0-9A-Za-z_]|[0-9A-Za-z_.])*)
  | (?P<name>[^\W\d][\w$]*|\$[\w$]*)
  | (?P<punct>%:%:|%:|<<<|>>>|<<=|>>=|\.\.\.|->\*|<=>|\#\#|::|->|\+\+|--|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|.)
    """,
    re.VERBOSE | re.DOTALL,
)
_RAW_PREFIXES = ("R", "u8R", "uR", "UR", "LR")
_SUFFIX = re.compile(r"[\w$]")
_KINDS: dict[str, Kind] = {
    "name": "name", "number": "number", "string": "string", "raw": "string", "char": "char", "punct": "punct",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Token:
    """One preprocessing token. `directive` is the line's number where it belongs to a `#` line, else 0."""

    kind: Kind
    text: str
    line: int
    directive: int = 0


@dataclass(frozen=True, slots=True)
class Comment:
    """A line comment. `alone` says that nothing but blanks stands before it on its line."""

    text: str
    line: int
    alone: bool


@dataclass(frozen=True, slots=True)
class HashLine:
    """One preprocessor line without its comments, from the `#` on."""

    text: str
    line: int


@dataclass(frozen=True, slots=True)
class Source:
    """A source taken apart; `text` is what the compiler is to get."""

    text: str
    tokens: tuple[Token, ...]
    comments: tuple[Comment, ...]
    hash_lines: tuple[HashLine, ...]

    @property
    def code(self) -> tuple[Token, ...]:
        """The tokens that belong to no preprocessor line."""
        return tuple(token for token in self.tokens if not token.directive)


def normalise(text: str) -> str:
    """The text with Unix line ends, a final one, and no blanks behind a continuation's backslash.

    Raises:
        ContractError: the text is too big, or holds characters no source needs.
    """
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise ContractError("The source is not valid UTF-8 text.") from None
    if size > MAX_BYTES:
        raise ContractError(f"The source has {size} bytes; {MAX_BYTES} are allowed.")
    text = text.replace("\r\n", "\n")
    control = _CONTROL.search(text)
    if control:
        line = text.count("\n", 0, control.start()) + 1
        raise ContractError(f"Line {line} holds the control character 0x{ord(control[0]):02x}.")
    text = _LOOSE_SPLICE.sub(r"\\", text)
    return text if text.endswith("\n") else text + "\n"


def read(text: str) -> Source:
    """Take a source apart.

    Raises:
        ContractError: the text cannot be a source, or could be read in two ways.
    """
    text = normalise(text)
    if "??/" in text or "??=" in text:
        raise ContractError("Trigraphs (`??/`, `??=`) are not allowed.")
    spliced, splices = _splice(text)
    return _Reader(text, spliced, splices).run()


def _splice(text: str) -> tuple[str, list[int]]:
    """Join continued lines; also where (offset in the joined text) each joint is."""
    pieces: list[str] = []
    joints: list[int] = []
    at = length = 0
    for match in _SPLICE.finditer(text):
        pieces.append(text[at : match.start()])
        length += match.start() - at
        joints.append(length)
        at = match.end()
    pieces.append(text[at:])
    return "".join(pieces), joints


class _Reader:
    """One pass over the joined text."""

    def __init__(self, text: str, spliced: str, splices: list[int]) -> None:
        self.text = text
        self.spliced = spliced
        self.splices = splices
        self.tokens: list[Token] = []
        self.comments: list[Comment] = []
        self.hash_lines: list[HashLine] = []
        self.newlines = 0
        self.line_start = True  # no token yet on this logical line
        self.bare = True  # and no comment either
        self.directive = 0
        self.hash_text: list[str] = []

    def line(self, offset: int) -> int:
        """Line number in the original text."""
        return self.newlines + 1 + bisect.bisect_right(self.splices, offset)

    def run(self) -> Source:
        at, end = 0, len(self.spliced)
        while at < end:
            match = _TOKEN.match(self.spliced, at)
            assert match is not None  # the last alternative takes any character
            self.take(match)
            at = match.end()
        self.close_directive()
        return Source(self.text, tuple(self.tokens), tuple(self.comments), tuple(self.hash_lines))

    def take(self, match: re.Match[str]) -> None:
        kind = match.lastgroup if match.lastgroup != "mark" else "raw"
        text = match[0]
        line = self.line(match.start())
        if kind == "newline":
            self.close_directive()
            self.newlines += 1
            self.line_start = self.bare = True
        elif kind == "blank":
            self.keep(" ")
        elif kind == "line_comment":
            self.comments.append(Comment(text, line, self.bare))
            self.keep(" ")
        elif kind == "block_comment":
            self.newlines += text.count("\n")
            self.bare = False
            self.keep(" ")
        else:
            assert kind is not None
            self.token(_KINDS[kind], text, line, match)

    def token(self, kind: Kind, text: str, line: int, match: re.Match[str]) -> None:
        if kind == "punct":
            if text in ('"', "'") or self.spliced.startswith("/*", match.start()):
                what = "comment" if text.startswith("/") else "string or character"
                raise ContractError(f"Line {line} opens a {what} that does not end.")
            if text in ("\\", "`", "@"):
                raise ContractError(f"Line {line} has a stray `{text}`.")
        if text in _RAW_PREFIXES and self.spliced.startswith('"', match.end()):
            raise ContractError(f"Line {line} opens a raw string that does not end.")
        if kind in ("string", "char") and _SUFFIX.match(self.spliced, match.end()):
            # a suffix or the prefix of the next literal: which of them depends on macros
            raise ContractError(f"Line {line} has a literal with a name behind it; put a blank between them.")
        if kind == "string" and text[0] != '"':
            # inside a raw string the compiler does not join lines, so its end may differ from the one seen here
            first = bisect.bisect_left(self.splices, match.start())
            if first < len(self.splices) and self.splices[first] <= match.end():
                raise ContractError(f"The raw string on line {line} holds a line continuation.")
            self.newlines += text.count("\n")
        if self.line_start and text in ("#", "%:"):
            self.directive = line
        self.line_start = self.bare = False
        self.keep(text)
        self.tokens.append(Token(kind, text, line, self.directive))

    def keep(self, text: str) -> None:
        if self.directive:
            self.hash_text.append(text)

    def close_directive(self) -> None:
        if self.directive:
            self.hash_lines.append(HashLine("".join(self.hash_text).strip(), self.directive))
            self.hash_text = []
            self.directive = 0
