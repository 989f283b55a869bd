"""The `//@` lines of a kernel source: tunables, workspace, launches.

Directives are line comments of their own. Expressions stay text here; `exprs` works them out once the target's names
are known.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from forge_tui.contract import exprs, identifiers
from forge_tui.contract.source import Comment, Source, Token, read
from forge_tui.core.errors import ContractError
from forge_tui.core.records import Record

MAX_TUNES = 6
MAX_VALUES = 8
MAX_LAUNCHES = 32
#: tokens looked at around a `__global__`
_MAX_DECLARATION = 200
_INT = re.compile(r"[+-]?(0[xX][0-9a-fA-F]{1,8}|[0-9]{1,10})", re.ASCII)
_OPTION = re.compile(r"\s*([A-Za-z_]\w*)(?:\s*=(?!=)\s*)?", re.ASCII)
_NEXT_OPTION = re.compile(r"[A-Za-z_]\w*\s*=(?!=)", re.ASCII)
_WORDS = "tune, workspace and launch"


class Tune(Record, frozen=True):
    """An integer macro; `values[0]` is the default."""

    name: str
    values: tuple[int, ...]
    line: int

    @property
    def default(self) -> int:
        """The value where nobody chose one."""
        return self.values[0]


class WorkspaceSpec(Record, frozen=True):
    """Bytes of workspace, as an expression; `zero` asks for zeros at every call."""

    bytes: str
    zero: bool
    line: int


class LaunchSpec(Record, frozen=True):
    """One launch with its sizes as expressions, one to three each."""

    kernel: str
    grid: tuple[str, ...]
    block: tuple[str, ...]
    smem: str = "0"
    cluster: tuple[str, ...] | None = None
    cooperative: bool = False
    line: int = 0


class Directives(Record, frozen=True):
    """Everything that a source's directives say."""

    tunes: tuple[Tune, ...] = ()
    workspace: WorkspaceSpec | None = None
    launches: tuple[LaunchSpec, ...] = ()

    @property
    def defaults(self) -> dict[str, int]:
        """Every tunable with its default."""
        return {tune.name: tune.default for tune in self.tunes}

    def chosen(self, tunables: dict[str, int]) -> dict[str, int]:
        """Every tunable with the value chosen for it, defaults where none was.

        Raises:
            ContractError: a value that the source does not declare.
        """
        known = {tune.name: tune for tune in self.tunes}
        for name, value in tunables.items():
            if name not in known:
                raise ContractError(f"The source declares no tunable `{name}`.")
            if value not in known[name].values:
                raise ContractError(f"{name}={value} is not one of the values that the source declares.")
        return self.defaults | tunables


def parse(source: str) -> Directives:
    """Read a source's directives.

    Raises:
        ContractError: a directive that is unknown, malformed, repeated, or names a kernel that is not there.
    """
    return parse_source(read(source))


def parse_source(source: Source) -> Directives:
    """As `parse`, for a source already taken apart."""
    tunes: list[Tune] = []
    workspace: WorkspaceSpec | None = None
    launches: list[LaunchSpec] = []
    for comment in source.comments:
        match = re.match(r"//@\s*(\w*)(.*)", comment.text, re.DOTALL)
        if match is None:
            continue
        where = f"Line {comment.line}"
        word, rest = match[1], match[2]
        if not comment.alone:
            raise ContractError(f"{where}: a `//@{word}` directive must stand on a line of its own.")
        if word == "tune":
            tunes.append(_tune(rest, comment, tunes))
        elif word == "workspace":
            if workspace is not None:
                raise ContractError(f"{where}: a second `//@workspace`; one is allowed.")
            workspace = _workspace(rest, comment)
        elif word == "launch":
            launches.append(_launch(rest, comment))
        elif word == "tensormap":
            raise ContractError(f"{where}: `//@tensormap` is not supported yet.")
        else:
            raise ContractError(f"{where}: `//@{word}` is not a directive; {_WORDS} are.")
    if len(launches) > MAX_LAUNCHES:
        raise ContractError(f"The source has {len(launches)} launches; {MAX_LAUNCHES} are allowed.")
    if launches:
        _check_kernels(source, launches)
    return Directives(tunes=tuple(tunes), workspace=workspace, launches=tuple(launches))


def _tune(rest: str, comment: Comment, before: list[Tune]) -> Tune:
    where = f"Line {comment.line}"
    name, *texts = rest.split() or [""]
    if not identifiers.IDENTIFIER.fullmatch(name):
        raise ContractError(f"{where}: `//@tune` needs a name and its values, such as `//@tune SPLIT 64 16 32`.")
    if identifiers.is_taken(name):
        raise ContractError(f"{where}: a tunable cannot be called `{name}`, which has a meaning of its own.")
    if any(tune.name == name for tune in before):
        raise ContractError(f"{where}: the tunable `{name}` is declared twice.")
    if len(before) >= MAX_TUNES:
        raise ContractError(f"{where}: more than {MAX_TUNES} tunables.")
    if not texts:
        raise ContractError(f"{where}: the tunable `{name}` has no values.")
    if len(texts) > MAX_VALUES:
        raise ContractError(f"{where}: the tunable `{name}` has {len(texts)} values; {MAX_VALUES} are allowed.")
    values = [_integer(text, f"{where}: the tunable `{name}`") for text in texts]
    if len(set(values)) != len(values):
        raise ContractError(f"{where}: the tunable `{name}` lists a value twice.")
    return Tune(name=name, values=tuple(values), line=comment.line)


def _integer(text: str, what: str) -> int:
    if not _INT.fullmatch(text):
        raise ContractError(f"{what} has the value `{text[:40]}`, which is not an integer.")
    value = int(text, 16 if "x" in text.lower() else 10)
    if not -(2**31) < value < 2**31:
        raise ContractError(f"{what} has the value {value}, which does not fit in 32 bits.")
    return value


def _workspace(rest: str, comment: Comment) -> WorkspaceSpec:
    text = rest.strip()
    match = re.fullmatch(r"(.*\S)\s+zero", text, re.DOTALL)
    zero = match is not None
    if match:
        text = match[1]
    if not text:
        raise ContractError(f"Line {comment.line}: `//@workspace` needs a number of bytes.")
    _check_expr(text, comment.line)
    return WorkspaceSpec(bytes=text, zero=zero, line=comment.line)


def _launch(rest: str, comment: Comment) -> LaunchSpec:
    where = f"Line {comment.line}"
    match = re.match(r"\s*([A-Za-z_]\w*)(?=\s|$)", rest, re.ASCII)
    if match is None:
        raise ContractError(f"{where}: `//@launch` needs a kernel's name, then grid= and block=.")
    given: dict[str, tuple[str, ...]] = {}
    for key, value in _options(rest[match.end() :], where):
        if key in given:
            raise ContractError(f"{where}: `{key}` is given twice.")
        if key not in ("grid", "block", "smem", "cluster", "cooperative"):
            raise ContractError(f"{where}: `{key}` is no option of `//@launch`.")
        if (key == "cooperative") != (value == ""):
            raise ContractError(f"{where}: `{key}` " + ("takes no value." if value else "needs a value."))
        given[key] = _parts(value) if key in ("grid", "block", "cluster") else (value,)
        for part in given[key] if value else ():
            _check_expr(part, comment.line)
        if len(given[key]) > 3:
            raise ContractError(f"{where}: `{key}` has {len(given[key])} dimensions; 1 to 3 are allowed.")
    for key in ("grid", "block"):
        if key not in given:
            raise ContractError(f"{where}: the launch of `{match[1]}` has no `{key}=`.")
    return LaunchSpec(
        kernel=match[1], grid=given["grid"], block=given["block"], smem=given.get("smem", ("0",))[0],
        cluster=given.get("cluster"), cooperative="cooperative" in given, line=comment.line,
    )  # fmt: skip


def _options(text: str, where: str) -> Iterator[tuple[str, str]]:
    """`key=value` and bare words; a value ends at a blank outside of parentheses."""
    at = 0
    while text[at:].strip():
        match = _OPTION.match(text, at)
        if match is None:
            raise ContractError(
                f"{where}: unexpected `{text[at:].strip()[:20]}`; put expressions with blanks into parentheses."
            )
        at = start = match.end()
        if "=" in match[0]:
            depth = 0
            while at < len(text) and (depth > 0 or not text[at].isspace()):
                depth += {"(": 1, ")": -1}.get(text[at], 0)
                at += 1
            if depth:
                raise ContractError(f"{where}: the parentheses of `{match[1]}` do not match.")
            if at == start or _NEXT_OPTION.match(text, start):
                raise ContractError(f"{where}: `{match[1]}` needs a value.")
        yield match[1], text[start:at]


def _parts(value: str) -> tuple[str, ...]:
    """The parts of `(a, b)`; any other expression, `(a + 1) / 2` too, is one part."""
    depth = 0
    commas = [0]
    for at, char in enumerate(value):
        depth += {"(": 1, ")": -1}.get(char, 0)
        if depth == 1 and char == ",":
            commas.append(at)
        if depth == 0 and at < len(value) - 1:
            return (value,)
    if not value.startswith("("):
        return (value,)
    ends = [*commas[1:], len(value) - 1]
    return tuple(value[start + 1 : end].strip() for start, end in zip(commas, ends, strict=True))


def _check_expr(text: str, line: int) -> None:
    try:
        exprs.parse(text)
    except ContractError as error:
        raise ContractError(f"Line {line}: {error.what}") from None


def _check_kernels(source: Source, launches: list[LaunchSpec]) -> None:
    kernels = kernel_functions(source)
    for launch in launches:
        found = kernels.get(launch.kernel)
        if found is None:
            raise ContractError(
                f'Line {launch.line}: the source has no `extern "C" __global__` function `{launch.kernel}`.'
            )
        if not found:
            raise ContractError(
                f'Line {launch.line}: the kernel `{launch.kernel}` must be `extern "C"` and take exactly '
                "`(FORGE_PARAMS)`."
            )


def kernel_functions(source: Source) -> dict[str, bool]:
    """The `__global__` functions of a source, and whether each is `extern "C"` with exactly FORGE_PARAMS."""
    code = source.code
    found: dict[str, bool] = {}
    in_c_block: list[bool] = []
    start = 0  # of the declaration at hand
    for at, token in enumerate(code):
        if token.text == "{":
            in_c_block.append(_extern_c(code[max(start, at - 2) : at]) and at - start == 2)
            start = at + 1
        elif token.text == "}":
            if in_c_block:
                in_c_block.pop()
            start = at + 1
        elif token.text == ";":
            start = at + 1
        elif token.text == "__global__":
            name = _function_name(code, at)
            if name:
                linked = _extern_c(code[max(start, at - _MAX_DECLARATION) : at]) or any(in_c_block)
                params = [t.text for t in code[name + 1 : name + 4]] == ["(", "FORGE_PARAMS", ")"]
                found[code[name].text] = found.get(code[name].text, False) or (linked and params)
    return found


def _extern_c(tokens: tuple[Token, ...]) -> bool:
    return any(a.text == "extern" and b.text == '"C"' for a, b in itertools.pairwise(tokens))


def _function_name(code: tuple[Token, ...], at: int) -> int:
    """Index of the declared function's name: the first name before a `(`, specifiers apart."""
    index = at + 1
    end = min(len(code), at + _MAX_DECLARATION)
    while index + 1 < end and code[index].text not in (";", "{", "}", "="):
        if code[index].kind == "name" and code[index + 1].text == "(":
            if not code[index].text.startswith("__") and code[index].text != "alignas":
                return index
            depth, index = 0, index + 1
            while index < end:
                depth += {"(": 1, ")": -1}.get(code[index].text, 0)
                if depth == 0:
                    break
                index += 1
        index += 1
    return 0
