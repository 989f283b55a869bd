"""What is refused before anything is compiled, each with one sentence and its line.

The lint reads tokens, so comments and strings neither hide nor trigger anything. It is the first of three lines of
defence, and the one that explains: the built file is inspected too, and CPU kernels run in a sandbox.
"""

from __future__ import annotations

import itertools
import re

from forge_tui.contract import lint_tables as tables
from forge_tui.contract.identifiers import KEYWORDS, word_set
from forge_tui.contract.source import HashLine, Source, Token, read
from forge_tui.core.errors import ContractError
from forge_tui.core.records import Language

_INCLUDE = re.compile(r"(?:#|%:)\s*include\s*(?:<([^<>\"]+)>|\"([^\"]+)\")\s*")
_HASH_WORD = re.compile(r"(?:#|%:)\s*([A-Za-z_]\w*)?")
_HASH_ALLOWED = word_set("include define undef if ifdef ifndef elif elifdef elifndef else endif pragma error warning")
#: words of the compiler's and the header's own that no macro may change
_COMPILER_WORD = re.compile(r"__\w+|FORGE_\w+")
_FIXED_WORDS = (KEYWORDS - {"restrict"}) | tables.TOOLKIT_NAMESPACES
_PRAGMA_REFUSED = re.compile(
    r"(?:#|%:)\s*pragma\s+(?:GCC\s+)?(dependency|redefine_extname|weak|system_header|init_seg|include_alias"
    r"|push_macro|pop_macro|poison)\b"
)
_SPECIFIERS_WITH_PARENS = word_set(
    "__align__ alignas __attribute__ __attribute decltype noexcept __launch_bounds__ __cluster_dims__ __declspec"
)
_TYPE_WORD = re.compile(r"(?!(?:return|else|do|case|goto|throw)$)[^\W\d]\w*|\*|&|::")
_BEFORE_DECLARATION = frozenset(";{})]>,([:")
_CLOCK_REGISTER = re.compile(r"%(?:clock|globaltimer|pm\d)\w*")
_NO_STATE = "a kernel keeps no state between calls, so declare it `const` or `constexpr`, or put it into the workspace"

#: tokens looked at around a specifier; what is longer is left to the inspection of the built file
_MAX_DECLARATION = 200


def check(source: str, language: Language) -> None:
    """Refuse what no kernel may contain.

    Raises:
        ContractError: with the line and what stands there.
    """
    check_source(read(source), language)


def check_source(source: Source, language: Language) -> None:
    """As `check`, for a source already taken apart."""
    for line in source.hash_lines:
        _check_hash_line(line, language)
    _check_tokens(source.tokens, language)
    _check_state(source.code, language)


def _refuse(line: int, what: str, why: str) -> ContractError:
    return ContractError(f"Line {line}: {what} is not allowed: {why}.")


def _check_hash_line(line: HashLine, language: Language) -> None:
    word = _HASH_WORD.match(line.text)
    name = word[1] if word else None
    if name is None:
        if line.text in ("#", "%:"):
            return
        raise _refuse(line.line, f"`{line.text[:40]}`", "line markers would hide where code comes from")
    if name not in _HASH_ALLOWED:
        raise _refuse(line.line, f"`#{name}`", "only includes, macros, conditions and pragmas are")
    macro = re.match(r"\S*\s*(?:define|undef)\s+(\w+)", line.text)
    if macro and (macro[1] in _FIXED_WORDS or _COMPILER_WORD.match(macro[1])):
        raise _refuse(line.line, f"a macro called `{macro[1]}`", "that word has a meaning of its own")
    _check_pragma(line.text, line.line)
    if name == "include":
        match = _INCLUDE.fullmatch(line.text)
        if match is None:
            raise _refuse(line.line, "an include that is not written out as <name> or \"name\"", "it cannot be checked")
        _check_header(match[1] or match[2], line.line, language)


def _check_pragma(text: str, line: int) -> None:
    pragma = _PRAGMA_REFUSED.match(text)
    if pragma:
        raise _refuse(line, f"`#pragma {pragma[1]}`", "it changes what names mean")


def _check_header(header: str, line: int, language: Language) -> None:
    if header == tables.HEADER:
        return
    if header.startswith(("/", "~", "\\")) or ".." in header or "\\" in header or ":" in header:
        raise _refuse(line, f"the include path `{header}`", "headers are named, not reached by path")
    if language == "cuda":
        known = header in tables.CUDA_HEADERS or header.startswith(tables.CUDA_FOLDERS)
        which = "the toolkit's device headers and forge_target.h are"
    else:
        known, which = header in tables.CPP_HEADERS, "the standard headers for arithmetic, intrinsics and OpenMP are"
    if not known:
        raise _refuse(line, f"the include `{header}`", which)


def _check_tokens(tokens: tuple[Token, ...], language: Language) -> None:
    names = tables.BOTH_NAMES | (tables.CUDA_NAMES if language == "cuda" else tables.CPP_NAMES)
    includes = {
        first.directive
        for first, second in itertools.pairwise(tokens)
        if first.text in ("#", "%:") and first.directive and second.text == "include"
    }
    for at, token in enumerate(tokens):
        if token.directive in includes:
            continue  # checked as a whole line
        if token.kind == "string":
            _check_registers(tokens, at)
            if [t.text for t in tokens[max(0, at - 2) : at]] == ["_Pragma", "("]:
                _check_pragma("#pragma " + token.text.strip('"'), token.line)
            if re.search(r"\.\s*(incbin|include)\b", token.text):
                raise _refuse(token.line, "`.incbin` or `.include` in assembly", "a source reads no other files")
        elif token.kind == "punct":
            _check_punct(token, language)
        elif token.kind == "name":
            _check_name(token, tokens, at, names, language)


def _check_registers(tokens: tuple[Token, ...], at: int) -> None:
    """Refuse assembly that reads a clock, in strings written in parts too."""
    whole = ""
    for token in tokens[at : at + _MAX_DECLARATION]:
        if token.kind != "string":
            break
        whole += token.text.strip('"')
    found = _CLOCK_REGISTER.search(whole)
    if found:
        raise _refuse(tokens[at].line, f"the register `{found[0].lstrip('%')}`", tables.NO_CLOCK)


def _check_punct(token: Token, language: Language) -> None:
    if token.text == "<<<":
        if language == "cuda":
            raise _refuse(token.line, "a launch with `<<<`", "launches are written as `//@launch` directives")
        raise _refuse(token.line, "`<<<`", "the target wants a CPU kernel")
    if token.text in ("##", "%:%:") and language == "cpp":
        raise _refuse(token.line, "token pasting with `##`", "names must be readable as they stand")


def _check_name(
    token: Token, tokens: tuple[Token, ...], at: int, names: dict[str, str], language: Language
) -> None:
    text = token.text
    before = tokens[at - 1].text if at else ""
    after = tokens[at + 1].text if at + 1 < len(tokens) else ""
    if text in names and not _harmless(text, before, after, language):
        raise _refuse(token.line, f"`{text}`", names[text])
    if text.strip("_") in tables.REFUSED_ATTRIBUTES and (after in ("(", ",", ")", "]")) and _in_attribute(tokens, at):
        raise _refuse(token.line, f"the attribute `{text}`", "it moves code or data, or runs code at load")
    for prefix, why in tables.CUDA_PREFIXES if language == "cuda" else tables.CPP_PREFIXES:
        if text.startswith(prefix) and text not in tables.CUDA_PREFIX_EXCEPTIONS and text != prefix + "_":
            raise _refuse(token.line, f"`{text}`", why)


#: words that are common names of variables; refused only as calls of the function, or qualified by `std`
_COMMON_WORDS = word_set(
    "time clock open free kill signal raise random exit thread async exec sleep connect system rename"
)


def _harmless(text: str, before: str, after: str, language: Language) -> bool:
    if text in ("new", "delete"):
        # `= delete` declares a function as absent; `operator new` is still refused
        return text == "delete" and before == "=" and after == ";"
    if text in ("__device__", "__shared__", "__global__"):
        return False
    if before in (".", "->"):
        return True
    if text in _COMMON_WORDS:
        return not (after == "(" or before == "::")
    return language == "cuda" and text in ("free", "exit") and after != "("


def _in_attribute(tokens: tuple[Token, ...], at: int) -> bool:
    """Whether the token stands inside `__attribute__((...))` or `[[...]]`."""
    for back in range(at - 1, max(-1, at - 40), -1):
        text = tokens[back].text
        if text in (";", "{", "}"):
            return False
        if text in ("__attribute__", "__attribute") or (text == "[" and tokens[back - 1].text == "["):
            return True
    return False


def _check_state(code: tuple[Token, ...], language: Language) -> None:
    """Refuse what would outlive a call: static and namespace-scope variables that are not constants."""
    seen = 0  # where the declaration looked at last ends
    for at, token in enumerate(code):
        if at >= seen and token.text in ("static", "__device__", "__constant__") and token.kind == "name":
            words, name, seen = _variable(code, at)
            if not name:
                continue
            if token.text == "__constant__" or _constant(words):
                continue
            if "__shared__" in words or (token.text == "__device__" and language == "cpp"):
                continue
            shown = f"the {'static' if token.text == 'static' else '`__device__`'} variable `{name}`"
            raise _refuse(token.line, shown, _NO_STATE)


def _variable(code: tuple[Token, ...], at: int) -> tuple[list[str], str, int]:
    """The declaration around a word: its words up to the declarator's end, its name, and where that is.

    The name is empty where a function or a type is declared.
    """
    start = at
    while start > max(0, at - _MAX_DECLARATION) and code[start - 1].text not in _BEFORE_DECLARATION:
        start -= 1
    words: list[str] = []
    name = ""
    depth = 0
    index = start
    while index < min(len(code), at + _MAX_DECLARATION):
        token = code[index]
        text = token.text
        if text in ("operator", "struct", "class", "union", "enum") and depth == 0:
            break
        if text in _SPECIFIERS_WITH_PARENS and index + 1 < len(code) and code[index + 1].text == "(":
            index = _closing(code, index + 1)
        elif text == "<":
            depth += 1
        elif text in (">", ">>", ">>>"):
            depth = max(0, depth - len(text))
        elif depth == 0 and index > at and text in ("(", ")", "]", ">", ","):
            break
        elif depth == 0 and index > at and text in (";", "=", "[", "{"):
            return words, name, index
        elif depth == 0:
            words.append(text)
            name = text if token.kind == "name" else name
        index += 1
    return words, "", index


def _closing(code: tuple[Token, ...], at: int) -> int:
    depth = 0
    for index in range(at, len(code)):
        depth += {"(": 1, ")": -1}.get(code[index].text, 0)
        if depth == 0:
            return index
    return len(code) - 1


def _constant(words: list[str]) -> bool:
    """Whether the declared thing itself is constant: `const float* p` is a pointer that may change."""
    if "constexpr" in words:
        return True
    if "const" not in words:
        return False
    stars = [index for index, word in enumerate(words) if word == "*"]
    return not stars or "const" in words[stars[-1] :]


def declares_constant(source: Source, name: str) -> bool:
    """Whether the source declares a variable of this name, and each such declaration makes it a constant."""
    verdicts: list[bool] = []
    code = source.code
    for at, token in enumerate(code[:-1]):
        if token.text != name or code[at + 1].text not in ("=", "[", "{", ";"):
            continue
        words, found, _ = _variable(code, at)
        # `name = 1;`, `a = name[i];` and `return name;` are uses: no type alone stands before the name
        if found and len(words) > 1 and all(_TYPE_WORD.fullmatch(word) for word in words):
            verdicts.append(_constant(words))
    return bool(verdicts) and all(verdicts)


def leaves_toolkit_alone(source: Source) -> bool:
    """Whether no variable of a toolkit namespace can come from this source.

    That takes opening such a namespace, by its name, by a macro, or by a pasted name.
    """
    macros = {
        third.text
        for first, second, third in zip(source.tokens, source.tokens[1:], source.tokens[2:], strict=False)
        if second.text == "define" and second.directive and first.text in ("#", "%:")
    }
    for at, token in enumerate(source.tokens):
        if token.text in ("##", "%:%:"):
            return False
        if token.text != "namespace" or (at and source.tokens[at - 1].text == "using"):
            continue
        if token.directive:
            return False
        for part in source.tokens[at + 1 : at + 20]:
            if part.text in ("{", "=", ";"):
                break
            if part.text in tables.TOOLKIT_NAMESPACES or part.text in macros:
                return False
    return True
