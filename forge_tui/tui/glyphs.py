"""The characters the screen draws with: block glyphs where the locale has UTF-8, plain ASCII elsewhere."""

from __future__ import annotations

import locale
import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from forge_tui.core.profiles import HotspotKind
from forge_tui.core.records import Edge, Verdict


@dataclass(frozen=True, slots=True)
class VerdictMark:
    """How one verdict is shown: a glyph, a letter and a short word, so that none hangs on colour."""

    glyph: str
    letter: str
    word: str
    style: str
    """Name of the theme's colour."""


@dataclass(frozen=True, slots=True)
class Glyphs:
    """One glyph set; every member is one cell wide."""

    ascii: bool
    open: str
    closed: str
    leaf: str
    tee: str
    elbow: str
    pipe: str
    best: str
    path: str
    target: str
    offered: str
    separator: str
    rule: str
    vertical: str
    dot: str
    ellipsis: str
    unknown: str
    live: str
    arrow: str
    blocks: str
    """From empty to full, for sparklines and bars."""
    full: str
    empty: str
    kinds: Mapping[HotspotKind, str] = field(default_factory=dict)
    """What a hotspot is, so that a function and a class of one name are told apart."""
    verdicts: Mapping[Verdict | None, VerdictMark] = field(default_factory=dict)


_WORDS: dict[Verdict | None, tuple[str, str, str]] = {
    Verdict.FASTER: ("F", "faster", "faster"),
    Verdict.SLOWER: ("S", "slower", "slower"),
    Verdict.INCONCLUSIVE: ("I", "unsure", "inconclusive"),
    Verdict.COMPILE_ERROR: ("C", "compile", "failed"),
    Verdict.REFUSED: ("R", "refused", "failed"),
    Verdict.REJECTED: ("W", "wrong", "failed"),
    Verdict.CRASHED: ("K", "crashed", "failed"),
    Verdict.TIMED_OUT: ("T", "timeout", "failed"),
    Verdict.DUPLICATE: ("D", "duplicate", "muted"),
    Verdict.INFRA: ("E", "fault", "infra"),
    None: ("", "running", "running"),
}


def _marks(glyphs: Mapping[Verdict | None, str], running: str) -> dict[Verdict | None, VerdictMark]:
    return {
        verdict: VerdictMark(glyphs[verdict], letter or running, word, style)
        for verdict, (letter, word, style) in _WORDS.items()
    }


UNICODE = Glyphs(
    ascii=False, open="▾", closed="▸", leaf="·", tee="├", elbow="└", pipe="│", best="★", path="•", target="◆",
    offered="◇", separator="│", rule="─", vertical="│", dot="·", ellipsis="…", unknown="�", live="●", arrow="→",
    blocks=" ▁▂▃▄▅▆▇█", full="█", empty="░",
    kinds={"model": "▣", "phase": "◐", "module": "□", "function": "ƒ", "torch": "▫"},
    verdicts=_marks({
        Verdict.FASTER: "▲", Verdict.SLOWER: "▼", Verdict.INCONCLUSIVE: "≈", Verdict.COMPILE_ERROR: "✗",
        Verdict.REFUSED: "⊘", Verdict.REJECTED: "≠", Verdict.CRASHED: "†", Verdict.TIMED_OUT: "◷",
        Verdict.DUPLICATE: "=", Verdict.INFRA: "!", None: "○",
    }, "…"),
)  # fmt: skip

ASCII = Glyphs(
    ascii=True, open="-", closed="+", leaf=" ", tee="|", elbow="`", pipe="|", best="*", path=":", target="@",
    offered="o", separator="|", rule="-", vertical="|", dot=".", ellipsis="~", unknown="?", live="o", arrow=">",
    blocks=" .:-=+*#@", full="#", empty=".",
    kinds={"model": "#", "phase": "%", "module": "M", "function": "f", "torch": "t"},
    verdicts=_marks({
        Verdict.FASTER: "^", Verdict.SLOWER: "v", Verdict.INCONCLUSIVE: "~", Verdict.COMPILE_ERROR: "x",
        Verdict.REFUSED: "/", Verdict.REJECTED: "#", Verdict.CRASHED: "%", Verdict.TIMED_OUT: "@",
        Verdict.DUPLICATE: "=", Verdict.INFRA: "!", None: "o",
    }, "."),
)  # fmt: skip

EDGE_WORDS: dict[Edge, str] = {
    Edge.DRAFT: "draft", Edge.IMPROVE: "improve", Edge.REPAIR: "repair", Edge.TUNE: "tune", Edge.START: "start",
    Edge.REWRITE: "rewrite", Edge.MERGE: "merge", Edge.TRANSFER: "transfer",
}  # fmt: skip


def choose(environ: Mapping[str, str] = os.environ) -> Glyphs:
    """ASCII when `FORGE_TUI_ASCII` asks for it or the locale cannot hold the others, else Unicode."""
    asked = environ.get("FORGE_TUI_ASCII", "")
    if asked:
        return UNICODE if asked.lower() in ("0", "no", "false") else ASCII
    named = environ.get("LC_ALL") or environ.get("LC_CTYPE") or environ.get("LANG") or ""
    if named in ("", "C", "POSIX"):
        # Python turns its UTF-8 mode on for these; terminals that really lack UTF-8 are rare now.
        encoding = locale.getpreferredencoding(False)
        return UNICODE if _is_utf8(encoding) else ASCII
    codeset = named.partition("@")[0].partition(".")[2]
    if not codeset:
        return UNICODE if _is_utf8(locale.getpreferredencoding(False)) else ASCII
    return UNICODE if _is_utf8(codeset) else ASCII


def _is_utf8(name: str) -> bool:
    return name.lower().replace("-", "").replace("_", "") == "utf8"
