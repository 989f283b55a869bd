"""Text for cells: untrusted text made harmless, widths fitted, numbers formatted."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

from rich.cells import cell_len

_PRINTABLE = re.compile(r"[ -~]*")
_SPACES = re.compile(r"\s+")


@lru_cache(maxsize=4096)
def _shown(char: str, wide: bool) -> str:
    """What stands for one character: itself where it is harmless and of a known width."""
    code = ord(char)
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "\u2421"
    category = unicodedata.category(char)
    if category in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"):
        # controls, bidirectional overrides, zero-width joiners, surrogates: seen, not obeyed
        return "\ufffd"
    if category == "Zs":
        return " "
    if category in ("Mn", "Me"):
        return ""
    width = cell_len(char)
    if width == 1 or (wide and width == 2):
        return char
    return "\u25a1" if width == 2 else ""


def clean(text: str, *, wide: bool = False) -> str:
    """One line of harmless text: control characters and escapes become visible signs.

    Every character left is one cell wide; with `wide`, two-cell ones stay as well.
    """
    if _PRINTABLE.fullmatch(text):
        return text
    return "".join(char if " " <= char <= "~" else _shown(char, wide) for char in text)


def one_line(text: str, *, wide: bool = False) -> str:
    """Harmless text with every run of white space, line ends included, as one blank."""
    return clean(_SPACES.sub(" ", text).strip(), wide=wide)


def source_lines(text: str, tab: int = 4) -> list[str]:
    """The lines of a source, tabs expanded, made harmless; at least one line."""
    lines = text.replace("\r\n", "\n").split("\n")
    if len(lines) > 1 and not lines[-1]:
        lines.pop()
    return [clean(line.expandtabs(tab), wide=True) for line in lines]


def fit(text: str, width: int, ellipsis: str = "…", *, right: bool = False) -> str:
    """Text cut or padded to exactly `width` cells; `text` must have one-cell characters only."""
    if width <= 0:
        return ""
    if len(text) > width:
        return text[: width - 1] + ellipsis if width > 1 else ellipsis
    return text.rjust(width) if right else text.ljust(width)


def shorten_middle(text: str, width: int, ellipsis: str = "…") -> str:
    """Text cut in the middle, since the ends of paths and names tell most."""
    if len(text) <= width or width < 5:
        return text if len(text) <= width else fit(text, width, ellipsis)
    tail = (width - 1) // 2
    return text[: width - 1 - tail] + ellipsis + text[-tail:]


def wrap(text: str, width: int) -> list[str]:
    """Text broken at blanks into lines of at most `width` cells; a long word is cut. Line ends stay."""
    out: list[str] = []
    for paragraph in text.split("\n"):
        line, used = "", 0
        for word in paragraph.expandtabs(4).split(" "):
            size = cell_len(word)
            if line and used + 1 + size > width:
                out.append(line)
                line, used = "", 0
            while size > width > 0:
                head = _take(word, width - used - (1 if line else 0))
                if not head and not line:
                    break
                out.append(f"{line} {head}" if line else head)
                word, line, used = word[len(head) :], "", 0
                size = cell_len(word)
            line = f"{line} {word}" if line else word
            used = cell_len(line)
        out.append(line)
    return out


def _take(text: str, width: int) -> str:
    used = 0
    for index, char in enumerate(text):
        used += cell_len(char)
        if used > width:
            return text[:index]
    return text


def time_us(value: float | None) -> str:
    """Microseconds with a fitting unit and three figures: `12.3 us`, `1.23 ms`."""
    if value is None:
        return "-"
    for limit, scale, unit in ((1e3, 1.0, "us"), (1e6, 1e3, "ms")):
        if abs(value) < limit:
            return f"{_three(value / scale)} {unit}"
    return f"{_three(value / 1e6)} s"


def time_ms(value: float | None) -> str:
    """Milliseconds with a fitting unit."""
    return time_us(None if value is None else value * 1e3)


def _three(value: float) -> str:
    size = abs(value)
    return f"{value:.0f}" if size >= 100 else f"{value:.1f}" if size >= 10 else f"{value:.2f}"


def speedup(value: float | None) -> str:
    """`1.43x`, or a dash."""
    if value is None:
        return "-"
    return f"{value:.0f}x" if value >= 100 else f"{value:.1f}x" if value >= 10 else f"{value:.2f}x"


def interval(value: tuple[float, float] | None) -> str:
    """`[1.38, 1.49]`, or nothing."""
    return "" if value is None else f"[{value[0]:.2f}, {value[1]:.2f}]"


def duration(seconds: float) -> str:
    """`4:07`, `1:04:07`, `2d 03:12`."""
    whole = max(0, int(seconds))
    hours, rest = divmod(whole, 3600)
    if hours >= 24:
        return f"{hours // 24}d {hours % 24:02}:{rest // 60:02}"
    if hours:
        return f"{hours}:{rest // 60:02}:{rest % 60:02}"
    return f"{rest // 60}:{rest % 60:02}"


def money(value: float) -> str:
    """Dollars, with more figures where little was spent."""
    return f"${value:.4f}" if 0 < value < 0.01 else f"${value:.2f}"


def size_bytes(value: float | None) -> str:
    """Bytes in binary units: `3.4G`."""
    if value is None:
        return "-"
    for unit in ("B", "K", "M", "G", "T"):
        if value < 1024 or unit == "T":
            return f"{_three(value)}{unit}" if unit != "B" else f"{value:.0f}B"
        value /= 1024
    raise AssertionError
