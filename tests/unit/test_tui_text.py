"""Untrusted text, widths and numbers."""

from __future__ import annotations

import dataclasses
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from forge_tui.core.profiles import HotspotKind
from forge_tui.core.records import Verdict
from forge_tui.tui import glyphs, text
from forge_tui.tui.asciifilter import to_ascii

EVIL = "a\x1b[31mred\x1b]52;c;aGk=\x07\u202eltr\u200d\ufe0f\x9b2J\tb\r\nc"


@given(st.text(max_size=80))
def test_clean_text_is_one_cell_a_character(value: str) -> None:
    """Whatever comes in, every character that is left is printable and one cell wide."""
    out = text.clean(value)
    assert cell_len(out) == len(out)
    assert out.isprintable() or not out
    out.encode("utf-8")


@given(st.text(max_size=60))
def test_sources_never_hold_controls(value: str) -> None:
    """No escape of a source reaches the terminal, and no line is lost."""
    lines = text.source_lines(value)
    joined = "".join(lines)
    assert not any(ord(char) < 32 or 0x7F <= ord(char) < 0xA0 for char in joined)
    stripped = value.replace("\r\n", "\n")
    assert len(lines) == max(1, stripped.count("\n") + (not stripped.endswith("\n")))


def test_escapes_are_shown_not_obeyed() -> None:
    """An escape becomes its picture, a bidirectional override and a joiner become the replacement sign."""
    out = text.clean(EVIL)
    assert "\x1b" not in out
    assert "\x9b" not in out
    assert "\u202e" not in out
    assert out.startswith("a\u241b[31mred\u241b]52")
    assert text.one_line(EVIL).count("\u241b") == 2
    assert text.clean("日本") == "\u25a1\u25a1"
    assert text.clean("日本", wide=True) == "日本"


@given(st.text(alphabet="abc é→", max_size=30), st.integers(0, 40))
def test_fit_is_exact(value: str, width: int) -> None:
    """A fitted text has just the width asked for."""
    assert len(text.fit(value, width)) == width
    assert len(text.fit(value, width, right=True)) == width


@given(st.text(max_size=120), st.integers(2, 30))
def test_wrap_keeps_to_the_width(value: str, width: int) -> None:
    """No wrapped line is wider than the window, and no letter is lost."""
    value = text.clean(value, wide=True)
    lines = text.wrap(value, width)
    assert all(cell_len(line) <= width for line in lines)
    assert "".join("".join(lines).split()) == "".join(value.split())


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "-"), (0.5, "0.50 us"), (12.34, "12.3 us"), (412.0, "412 us"), (1844.0, "1.84 ms"), (2.5e6, "2.50 s")],
)
def test_times(value: float | None, shown: str) -> None:
    """Times take the unit that fits."""
    assert text.time_us(value) == shown


def test_other_numbers() -> None:
    """Speedups, intervals, durations, money and sizes."""
    assert [text.speedup(v) for v in (None, 1.4249, 12.34, 250.0)] == ["-", "1.42x", "12.3x", "250x"]
    assert text.interval((1.381, 1.494)) == "[1.38, 1.49]"
    assert [text.duration(v) for v in (7, 247, 3847, 98000)] == ["0:07", "4:07", "1:04:07", "1d 03:13"]
    assert [text.money(v) for v in (0.0, 0.0042, 4.126)] == ["$0.00", "$0.0042", "$4.13"]
    assert [text.size_bytes(v) for v in (None, 512, 9 * 2**30, 141 * 2**30)] == ["-", "512B", "9.00G", "141G"]


def test_shorten_middle_keeps_both_ends() -> None:
    """A long name keeps its start and its end."""
    out = text.shorten_middle("transformer.blocks.attention.RMSNorm", 20)
    assert len(out) == 20
    assert out.startswith("transform")
    assert out.endswith("RMSNorm")
    assert text.shorten_middle("short", 20) == "short"


@pytest.mark.parametrize("glyph_set", [glyphs.UNICODE, glyphs.ASCII])
def test_every_glyph_is_one_cell(glyph_set: glyphs.Glyphs) -> None:
    """No glyph can shift a column."""
    for field in dataclasses.fields(glyph_set):
        value = getattr(glyph_set, field.name)
        if isinstance(value, str):
            assert all(cell_len(char) == 1 for char in value), field.name
            assert not glyph_set.ascii or value.isascii(), field.name
    assert set(glyph_set.kinds) == set(get_args(HotspotKind))
    for kind in glyph_set.kinds.values():
        assert cell_len(kind) == 1
        assert not glyph_set.ascii or kind.isascii()
    for mark in glyph_set.verdicts.values():
        assert cell_len(mark.glyph) == cell_len(mark.letter) == 1
        assert not glyph_set.ascii or (mark.glyph + mark.letter).isascii()


@pytest.mark.parametrize("glyph_set", [glyphs.UNICODE, glyphs.ASCII])
def test_verdicts_differ_without_colour(glyph_set: glyphs.Glyphs) -> None:
    """Every verdict has a mark, and no two have the same glyph or the same letter."""
    assert set(glyph_set.verdicts) == {*Verdict, None}
    assert len({mark.glyph for mark in glyph_set.verdicts.values()}) == len(glyph_set.verdicts)
    assert len({mark.letter for mark in glyph_set.verdicts.values()}) == len(glyph_set.verdicts)


@pytest.mark.parametrize(
    ("environ", "is_ascii"),
    [
        ({"FORGE_TUI_ASCII": "1", "LANG": "en_US.UTF-8"}, True),
        ({"FORGE_TUI_ASCII": "0", "LC_ALL": "de_DE.ISO-8859-1"}, False),
        ({"LC_ALL": "de_DE.ISO-8859-1", "LANG": "en_US.UTF-8"}, True),
        ({"LANG": "en_US.UTF-8"}, False),
        ({"LC_CTYPE": "C.utf8"}, False),
        ({"LANG": "de_DE.ISO-8859-15@euro"}, True),
    ],
)
def test_the_locale_chooses_the_glyphs(environ: dict[str, str], is_ascii: bool) -> None:
    """A locale without UTF-8 gets ASCII; the user's own word is above it."""
    assert glyphs.choose(environ).ascii is is_ascii


@given(st.text(max_size=40))
def test_ascii_keeps_the_width(value: str) -> None:
    """The last filter changes no width and leaves nothing but ASCII."""
    value = text.clean(value, wide=True)
    out = to_ascii(value)
    assert out.isascii()
    assert len(out) == cell_len(value)


def test_a_lone_surrogate_is_replaced() -> None:
    """What UTF-8 cannot hold would kill the output thread, so it does not get there."""
    assert text.clean("a\ud800b") == "a\ufffdb"
    assert text.source_lines("x\udfff") == ["x\ufffd"]
