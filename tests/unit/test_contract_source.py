"""Reading a source: one meaning for us and the compiler, or a refusal."""

from __future__ import annotations

import time

import pytest

from forge_tui.contract.source import MAX_BYTES, read
from forge_tui.core.errors import ContractError


def texts(source):
    """The tokens' texts."""
    return [token.text for token in read(source).tokens]


def test_tokens_carry_the_line_of_the_original_text():
    """Comments, continuations and raw strings do not shift line numbers."""
    source = 'a /* 1\n2 */ b\n// c \\\n still\nd\\\ne f\nauto r = R"(\n\n)"; g\n'
    lines = {token.text: token.line for token in read(source).tokens}
    assert (lines["a"], lines["b"], lines["de"], lines["f"], lines["g"]) == (1, 2, 5, 6, 9)


def test_a_word_split_over_lines_is_one_word():
    """A backslash at a line's end, blanks behind it too, joins what it splits."""
    assert texts("as\\\nm sta\\  \ntic") == ["asm", "static"]
    assert read("sta\\ \t\ntic").text == "sta\\\ntic\n"


def test_strings_and_comments_hide_their_content():
    """What stands in quotes or comments is no code."""
    assert texts('x = "asm // \\" /*"; /* asm */ y = \'"\'; // asm') == ["x", "=", '"asm // \\" /*"', ";", "y", "=",
                                                                         "'\"'", ";"]  # fmt: skip
    assert texts('R"q(asm )" )q" z') == ['R"q(asm )" )q"', "z"]


def test_digit_separators_do_not_open_a_character():
    """`1'000` is one number, so the quote does not swallow what follows."""
    assert texts("1'000'000 asm 'x'") == ["1'000'000", "asm", "'x'"]


def test_preprocessor_lines_are_kept_whole_and_without_comments():
    """A continued define is one line; its tokens know that they belong to it."""
    source = read("#define A \\\n  asm /* x\n */ (1)\nint b;\n  # include <cmath> // y\n")
    assert [(line.text, line.line) for line in source.hash_lines] == [
        ("#define A asm   (1)", 1), ("# include <cmath>", 5),
    ]  # fmt: skip
    assert [token.text for token in source.code] == ["int", "b", ";"]
    assert [token.directive for token in source.tokens if token.text == "asm"] == [1]


def test_windows_line_ends_are_the_same_source():
    """CRLF reads as LF, and a last line without an end gets one."""
    assert read("a\r\nb").text == read("a\nb\n").text == "a\nb\n"


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("a\0b", "Line 1 holds the control character 0x00."),
        ("a\nb\rc", "Line 2 holds the control character 0x0d."),
        ("a\x1b[2J", "Line 1 holds the control character 0x1b."),
        ("x" * (MAX_BYTES + 1), f"The source has {MAX_BYTES + 1} bytes; {MAX_BYTES} are allowed."),
        ("\udcff", "The source is not valid UTF-8 text."),
        ("a /* b", "Line 1 opens a comment that does not end."),
        ('a\n"b\n', "Line 2 opens a string or character that does not end."),
        ("it's", "Line 1 opens a string or character that does not end."),
        ('R"x(abc)y"', "Line 1 opens a raw string that does not end."),
        ('R"a\\b(x)a\\b"', "Line 1 opens a raw string that does not end."),
        ('R"x(abc)x\\\n" asm; ")x"', "The raw string on line 1 holds a line continuation."),
        ('"a"R"q(x)" )q"', "Line 1 has a literal with a name behind it; put a blank between them."),
        ("u8R\"(a)\"R\"(b)\"", "Line 1 has a literal with a name behind it; put a blank between them."),
        ("'a'_km", "Line 1 has a literal with a name behind it; put a blank between them."),
        ("??=include <x>", "Trigraphs (`??/`, `??=`) are not allowed."),
        ("a @ b", "Line 1 has a stray `@`."),
        ("int \\u0061sm;", "Line 1 has a stray `\\`."),
    ],
)  # fmt: skip
def test_what_could_be_read_in_two_ways_is_refused(source, sentence):
    """Each such text has its sentence."""
    with pytest.raises(ContractError) as caught:
        read(source)
    assert caught.value.what == sentence


@pytest.mark.parametrize(
    "piece",
    ['R"(', "/*", "static ", "__global__ ", "//@tune A 1\n", "\\\n", '"', "#define a b\n"],
)
def test_large_hostile_sources_are_read_in_linear_time(piece):
    """A source of half the size limit takes a moment whatever it repeats."""
    from forge_tui.contract import directives, lint

    source = piece * (MAX_BYTES // 2 // len(piece))
    started = time.process_time()
    for judge in (lambda: lint.check(source, "cuda"), lambda: lint.check(source, "cpp"),
                  lambda: directives.parse(source + "\n//@launch k grid=1 block=1")):  # fmt: skip
        try:
            judge()
        except ContractError:
            continue
    assert time.process_time() - started < 10
