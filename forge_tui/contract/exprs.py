"""Integer expressions of directives: parsed and worked out here, never handed to `eval`.

Meaning and precedence are C's on 64-bit integers (division truncates), so that a compiler gets the same numbers from
the same text: `+ - * / %`, `<< >>`, comparisons, `! && ||`, `a ? b : c`, `ceil_div`, `min`, `max`. A value at or above
2**62 is refused, so nothing ever overflows. Only the branch taken is worked out.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from forge_tui.core.errors import ContractError

#: short and shallow enough for Python's own recursion limit
MAX_LENGTH = 600
MAX_DEPTH = 24
LIMIT = 2**62

_TOKEN = re.compile(
    r"\s*(?:(?P<number>0[xX][0-9a-fA-F]+|[0-9]+)(?![0-9A-Za-z_.])|(?P<name>[A-Za-z_][A-Za-z0-9_]*)"
    r"|(?P<op><<|>>|<=|>=|==|!=|&&|\|\||[-+*/%<>!?:(),]))",
    re.ASCII,
)
_LEVELS: dict[str, int] = {
    "||": 1, "&&": 2, "==": 3, "!=": 3, "<": 4, ">": 4, "<=": 4, ">=": 4, "<<": 5, ">>": 5, "+": 6, "-": 6,
    "*": 7, "/": 7, "%": 7,
}  # fmt: skip


def evaluate(text: str, names: Mapping[str, int]) -> int:
    """The value of an expression.

    Raises:
        ContractError: it is no expression, names something unknown, divides by zero, or grows past 2**62.
    """
    return parse(text).value(names)


def parse(text: str) -> Expr:
    """Read an expression once, to be worked out for several settings.

    Raises:
        ContractError: it is no expression.
    """
    return _Parser(text).parse()


def free_names(text: str) -> set[str]:
    """The names that an expression uses, functions not counted.

    Raises:
        ContractError: it is no expression.
    """
    return _Parser(text).names_of()


@dataclass(frozen=True, slots=True)
class Expr:
    """A read expression. `names` is every name it uses, in branches not taken too."""

    text: str
    names: frozenset[str]
    _run: Callable[[Mapping[str, int]], int]

    def value(self, names: Mapping[str, int]) -> int:
        """The value under `names`.

        Raises:
            ContractError: an unknown name, a division by zero, or a number out of bounds.
        """
        for name in sorted(self.names):
            if name not in names:
                raise ContractError(f"`{name}` in `{self.text}` is not a name of this target.")
        return self._run(names)


_Run = Callable[[Mapping[str, int]], int]


class _Parser:
    """Precedence climbing over the tokens; builds closures that carry out the arithmetic with its bounds."""

    def __init__(self, text: str) -> None:
        if len(text) > MAX_LENGTH:
            raise ContractError(f"An expression has {len(text)} characters; {MAX_LENGTH} are allowed.")
        self.text = text.strip()
        self.tokens = _tokens(self.text)
        self.at = 0
        self.depth = 0
        self.names: set[str] = set()

    def parse(self) -> Expr:
        run = self.conditional()
        if self.peek():
            raise self.wrong(f"unexpected `{self.peek()}`")
        return Expr(self.text, frozenset(self.names), run)

    def names_of(self) -> set[str]:
        return set(self.parse().names)

    def wrong(self, why: str) -> ContractError:
        return ContractError(f"`{self.text}` is not an integer expression: {why}.")

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def next(self) -> str:
        token = self.peek()
        self.at += 1
        return token

    def expect(self, token: str) -> None:
        found = self.next()
        if found != token:
            raise self.wrong(f"expected `{token}`" + (f" before `{found}`" if found else " at the end"))

    def deeper(self) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.wrong(f"it is nested more than {MAX_DEPTH} deep")

    def conditional(self) -> _Run:
        self.deeper()
        condition = self.binary(1)
        if self.peek() == "?":
            self.next()
            yes = self.conditional()
            self.expect(":")
            no = self.conditional()
            test = condition
            condition = lambda names: yes(names) if test(names) else no(names)  # noqa: E731 - closures are the tree
        self.depth -= 1
        return condition

    def binary(self, lowest: int) -> _Run:
        left = self.unary()
        while (level := _LEVELS.get(self.peek(), 0)) >= lowest:
            op = self.next()
            left = self.joined(op, left, self.binary(level + 1))
        return left

    def joined(self, op: str, left: _Run, right: _Run) -> _Run:
        if op == "&&":
            return lambda names: int(bool(left(names)) and bool(right(names)))
        if op == "||":
            return lambda names: int(bool(left(names)) or bool(right(names)))
        work = _BINARY[op]
        text = self.text

        def run(names: Mapping[str, int]) -> int:
            return _bounded(work(left(names), right(names), text), text)

        return run

    def unary(self) -> _Run:
        token = self.next()
        if token in ("-", "+", "!"):
            self.deeper()
            inner = self.unary()
            self.depth -= 1
            if token == "!":  # noqa: S105 - an operator
                return lambda names: int(not inner(names))
            return inner if token == "+" else lambda names: -inner(names)  # noqa: S105
        if token == "(":  # noqa: S105
            inner = self.conditional()
            self.expect(")")
            return inner
        if token[:1].isdigit():
            number = _bounded(int(token, 16 if token[:2] in ("0x", "0X") else 10), self.text)
            if len(token) > 1 and token[0] == "0" and token.isdigit():
                raise self.wrong(f"`{token}` would be octal")
            return lambda _names: number
        if token and (token[0].isalpha() or token[0] == "_"):
            return self.call(token) if self.peek() == "(" else self.name(token)
        raise self.wrong(f"unexpected `{token}`" if token else "it ends too early")

    def name(self, name: str) -> _Run:
        self.names.add(name)
        text = self.text
        return lambda names: _bounded(names[name], text)

    def call(self, name: str) -> _Run:
        if name not in ("ceil_div", "min", "max"):
            raise self.wrong(f"`{name}` is not a function (ceil_div, min and max are)")
        self.expect("(")
        args = [self.conditional()]
        while self.peek() == ",":
            self.next()
            args.append(self.conditional())
        self.expect(")")
        text = self.text
        if name == "ceil_div":
            if len(args) != 2:
                raise self.wrong("ceil_div takes two arguments")
            a, b = args
            return lambda names: _ceil_div(a(names), b(names), text)
        if len(args) < 2:
            raise self.wrong(f"{name} takes two arguments or more")
        pick: Callable[[list[int]], int] = min if name == "min" else max
        return lambda names: pick([arg(names) for arg in args])


def _tokens(text: str) -> list[str]:
    found: list[str] = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            shown = text[at:].strip()[:20]
            if not shown:
                break
            raise ContractError(f"`{text}` is not an integer expression: unexpected `{shown}`.")
        if match["number"] and len(match["number"]) > 24:
            raise ContractError(f"A number in `{text}` is too large.")
        found.append(match["number"] or match["name"] or match["op"])
        at = match.end()
    return found


def _bounded(value: int, text: str) -> int:
    if -LIMIT < value < LIMIT:
        return int(value)
    raise ContractError(f"`{text}` grows past 2**62.")


def _divide(a: int, b: int, text: str) -> int:
    if b == 0:
        raise ContractError(f"`{text}` divides by zero.")
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def _shift(a: int, b: int, text: str, *, left: bool) -> int:
    if a < 0 or not 0 <= b < 62:
        raise ContractError(f"`{text}` shifts a negative number or by a count outside 0 to 61.")
    return a << b if left else a >> b


def _ceil_div(a: int, b: int, text: str) -> int:
    if a < 0 or b <= 0:
        raise ContractError(f"`{text}`: ceil_div takes a number of at least 0 and one above 0, not {a} and {b}.")
    return _bounded(-(-a // b), text)


def _plain(work: Callable[[int, int], int]) -> Callable[[int, int, str], int]:
    return lambda a, b, _text: int(work(a, b))


_BINARY: dict[str, Callable[[int, int, str], int]] = {
    "+": _plain(operator.add), "-": _plain(operator.sub), "*": _plain(operator.mul), "/": _divide,
    "%": lambda a, b, text: a - b * _divide(a, b, text),
    "<<": lambda a, b, text: _shift(a, b, text, left=True), ">>": lambda a, b, text: _shift(a, b, text, left=False),
    "<": _plain(operator.lt), ">": _plain(operator.gt), "<=": _plain(operator.le), ">=": _plain(operator.ge),
    "==": _plain(operator.eq), "!=": _plain(operator.ne),
}  # fmt: skip
