"""What can be said of a source without compiling it: whether it is whole, where it ends, what it names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

_HIDDEN = re.compile(
    r'//(?:[^\n\\]|\\(?:\n|.|\Z))*|/\*.*?(?:\*/|\Z)|R"([^ ()\\\t\n"]{0,16})\(.*?(?:\)\1"|\Z)'
    r'|"(?:[^"\\\n]|\\.)*"|(?<![0-9A-Za-z_])\'(?:[^\'\\\n]|\\.)*\'', re.DOTALL,
)  # fmt: skip
_HASH = re.compile(r"^[ \t]*#[ \t]*([a-z]*)(?:[^\n\\]|\\\n|\\)*", re.MULTILINE)
_BRACE = re.compile(r"[{}]")
_DIRECTIVE = re.compile(r"//[ \t]*@[ \t]*(?:launch|tune|workspace|tensormap)\b")
_LAUNCH = re.compile(r"^[ \t]*//[ \t]*@[ \t]*launch[ \t]+(\w+)", re.MULTILINE)
_WORD = re.compile(r"[A-Za-z_]\w*")
_FUNCTION = re.compile(r"\b([A-Za-z_]\w*)\s*\((?:[^(){};]|\([^()]*\))*\)\s*+(?:(?:const|noexcept)\s*+)?\{")
#: in either language
KERNEL = re.compile(r"\b__global__\b|\bforge_launch\b")
#: a header as a model imagines it
_INVENTED = re.compile(r"\bdefine[ \t]+FORGE_|\bnamespace[ \t]+forge\b|\bstruct[ \t]+ForgeDims\b")
_CALLED = re.compile(r"\b([A-Za-z_]\w*)\s*(?:<[^<>;(){}]{0,80}>\s*)?\(")
_DECLARED = re.compile(r"\b[A-Za-z_][\w>]*[\s*&]+([A-Za-z_]\w*)\s*(?:=|;|,|\)|\[|\{)")
_TUNED = re.compile(r"^[ \t]*//[ \t]*@[ \t]*tune[ \t]+(\w+)", re.MULTILINE)
_OTHER_NAME = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)|\b(?:struct|class|enum|using)\s+(\w+)\s*[{:=]|"
                         r"\bconstexpr\b[^;{}()]{0,120}?\b(\w+)\s*=", re.MULTILINE)  # fmt: skip
_KEYWORDS = frozenset(["if", "for", "while", "switch", "catch", "__launch_bounds__", "defined", "sizeof", "alignas"])

#: how a line of code at the top level begins or looks; anything else behind a source is talk
_CODE_LINE = re.compile(
    r"\s*(?:$|//|/\*|\*|[{}]|\[\[|#[ \t]*(?:include|define|undef|if|ifdef|ifndef|elif|else|endif|pragma|error)\b"
    r"|(?:extern\s+\"C\"|(?:static|constexpr|const|inline|template|struct|enum|union|namespace|using|typedef|void|bool|int|"
    r"float|double|half|unsigned|long|auto|u?int\d+_t|size_t|__\w+)\b)(?=.*[{}();,<>=]\s*(?://.*)?$|\s*$)"
    r"|[A-Za-z_][\w:]*(?:<[^>]*>)?[\s*&]+[A-Za-z_]\w*\(.*[{;,)]\s*$)"
)  # fmt: skip
#: how a source without a fence begins
_FIRST_LINE = re.compile(
    r"\s*(?://|/\*|#[ \t]*(?:include|define|undef|if|ifdef|ifndef|pragma)\b|extern\s+\"C\"|template\s*<|namespace\b.*\{"
    r"|[A-Z][A-Z0-9_]*\(|(?:static|inline|constexpr|using|struct|__\w+)\b.*[{;(,]\s*$)"
)  # fmt: skip


def hidden(text: str) -> str:
    """The text with blanks in place of comments and strings, at the same offsets."""
    return _HIDDEN.sub(_blank, text)


def _blank(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", match[0])


def comments(text: str) -> Iterator[tuple[int, str]]:
    """Offset and text of every comment."""
    for match in _HIDDEN.finditer(text):
        if match[0].startswith(("//", "/*")):
            yield match.start(), match[0]


def open_comment(text: str) -> bool:
    """Whether the text ends within a comment that was not closed."""
    last = ""
    for _, comment in comments(text):
        last = comment
    return last.startswith("/*") and (len(last) < 4 or not last.endswith("*/"))


def _skeleton(text: str) -> str:
    """The text with blanks for comments, strings, preprocessor lines, and every branch of a condition but the first."""
    plain = hidden(text)
    out: list[str] = []
    at, skipping = 0, 0
    branches: list[bool] = []
    for match in _HASH.finditer(plain):
        piece = plain[at:match.start()]
        out += [re.sub(r"[^\n]", " ", piece) if skipping else piece, _blank(match)]
        at = match.end()
        word = match[1]
        if word.startswith("if"):
            branches.append(False)
        elif word in ("else", "elif", "elifdef", "elifndef") and branches and not branches[-1]:
            branches[-1] = True
            skipping += 1
        elif word == "endif" and branches:
            skipping -= branches.pop()
    rest = plain[at:]
    out.append(re.sub(r"[^\n]", " ", rest) if skipping else rest)
    return "".join(out)


def depth(text: str) -> int:
    """Braces left open; -1 where one is closed that was not opened."""
    return _depth(_skeleton(text))


def _depth(plain: str) -> int:
    level = 0
    for match in _BRACE.finditer(plain):
        level += 1 if match[0] == "{" else -1
        if level < 0:
            return -1
    return level


def whole(text: str) -> bool:
    """Whether it ends where a source can end, and defines what it launches."""
    plain = _skeleton(text)
    last = max(plain.rfind("}"), plain.rfind(";"))
    return (last >= 0 and not plain[last + 1:].strip() and _depth(plain) == 0 and not open_comment(text)
            and not undefined_launches(text))  # fmt: skip


def undefined_launches(text: str) -> set[str]:
    """Kernels that are launched by a directive and named nowhere in the code."""
    names = set(_LAUNCH.findall(text))
    # a macro may define it, so that any mention counts
    return names - set(_WORD.findall(hidden(text))) if names else set()


def launches(text: str) -> bool:
    """Whether there is a `//@launch` line."""
    return _LAUNCH.search(text) is not None


def defined(text: str) -> set[str]:
    """Names of functions, macros, types and constants."""
    plain = hidden(text)
    others = {name for found in _OTHER_NAME.findall(plain) for name in found if name}
    return (set(_FUNCTION.findall(plain)) | others) - _KEYWORDS


def normal(text: str) -> str:
    """What two copies of a source have in common: no blanks, no comments but directives."""
    kept = _HIDDEN.sub(lambda m: _comment_of(m[0]) if m[0].startswith(("//", "/*")) else m[0], text)
    return "".join(kept.split())


def _comment_of(comment: str) -> str:
    return comment if _DIRECTIVE.match(comment) else " "


def directives(text: str) -> list[str]:
    """The directive lines, as they are."""
    return [comment for _, comment in comments(text) if _DIRECTIVE.match(comment)]


def without_tail(text: str) -> str:
    """The text up to where its code ends: what follows a top-level `}` and looks like no code is talk."""
    level = 0
    for match in _BRACE.finditer(_skeleton(text)):
        level += 1 if match[0] == "{" else -1
        if level < 0:
            return text[:match.start()]
        if level == 0:
            end = _end_of_code(text, match.end())
            if end is not None:
                return text[:end]
    return text


def _end_of_code(text: str, at: int) -> int | None:
    """Where talk begins behind this place; None where code goes on to the next brace or the end."""
    line_end = text.find("\n", at)
    while line_end >= 0:
        start = line_end + 1
        line_end = text.find("\n", start)
        line = text[start:] if line_end < 0 else text[start:line_end]
        if not _CODE_LINE.match(line):
            return start
        if "{" in line:
            return None
    return None


def begins_with_code(text: str) -> bool:
    """Whether the first line that is not blank looks like code."""
    first = next((line for line in text.split("\n") if line.strip()), "")
    return _FIRST_LINE.match(first) is not None or _CODE_LINE.match(first) is not None


def bare(text: str) -> str:
    """The source in a text without fences: from its first line of code to its last."""
    lines = text.split("\n")
    start = next((i for i, line in enumerate(lines) if _FIRST_LINE.match(line)), None)
    return "" if start is None else without_tail("\n".join(lines[start:]))


def lacking(main: str) -> set[str]:
    """What is called, launched, or written like a constant, and not defined or declared in the source."""
    plain = hidden(main)
    called = set(_CALLED.findall(plain)) | {word for word in _WORD.findall(plain) if word.isupper()}
    known = defined(main).union(_DECLARED.findall(plain), _TUNED.findall(main))
    names = called.union(_LAUNCH.findall(main)) - known
    # what the generated header has is no block's to define
    return {name for name in names if not name.startswith("FORGE_")}


def joined(main: str, others: Iterable[tuple[bool, str]]) -> tuple[str, int]:
    """The source with the other blocks that define what it lacks, in their order, and how many those are.

    `others` are (whether it stands before the source, text).
    """
    have, lacks, unlaunched = defined(main), lacking(main), undefined_launches(main)
    mine = {" ".join(line.split()) for line in directives(main)}
    before: list[str] = []
    behind: list[str] = []
    for first, text in others:
        names = defined(text)
        # a kernel of its own is another answer, unless this one launches it
        wanted = unlaunched if KERNEL.search(hidden(text)) else lacks
        if names & have or not names & wanted or depth(text) != 0 or _INVENTED.search(text):
            continue
        kept = [line for line in text.strip("\n").split("\n") if " ".join(line.split()) not in mine]
        (before if first else behind).append("\n".join(kept))
        have |= names
    if not before and not behind:
        return main, 0
    return "\n\n".join([*before, main.strip("\n"), *behind]) + "\n", len(before) + len(behind)
