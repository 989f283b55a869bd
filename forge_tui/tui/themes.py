"""Theme files: TOML, validated as a whole, shipped ones first and the user's own after them."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rich.style import Style
from textual.color import Color, ColorParseError
from textual.theme import Theme

DEFAULT_THEME = "forge-dark"

SECTIONS: dict[str, tuple[str, ...]] = {
    "base": ("background", "surface", "panel", "foreground", "muted", "primary", "secondary", "accent", "success",
             "warning", "error"),
    "verdicts": ("faster", "slower", "inconclusive", "failed", "infra", "running"),
    "tree": ("guide", "best", "edge", "target"),
    "bars": ("fill", "track", "high"),
    "syntax": ("keyword", "type", "function", "string", "number", "comment", "preprocessor", "directive", "builtin",
               "operator"),
}  # fmt: skip
"""Every section of a theme file with its colours; all are required."""

_BOLD = frozenset({"faster", "best", "directive", "primary"})


@dataclass(frozen=True, slots=True)
class ForgeTheme:
    """One theme: what Textual needs of it, and the styles of our own widgets by name."""

    name: str
    dark: bool
    colors: dict[str, str]
    path: str = ""

    def textual(self) -> Theme:
        """The theme as Textual registers it."""
        c = self.colors
        return Theme(
            name=self.name, dark=self.dark, primary=c["primary"], secondary=c["secondary"], accent=c["accent"],
            foreground=c["foreground"], background=c["background"], surface=c["surface"], panel=c["panel"],
            success=c["success"], warning=c["warning"], error=c["error"],
            variables={
                "scrollbar": c["guide"], "scrollbar-hover": c["muted"], "scrollbar-active": c["accent"],
                "scrollbar-background": c["background"], "scrollbar-background-hover": c["background"],
                "scrollbar-background-active": c["background"], "scrollbar-corner-color": c["background"],
                "muted": c["muted"], "guide": c["guide"],
            },
        )  # fmt: skip

    def styles(self) -> dict[str, Style]:
        """Foreground styles by colour name, plus `text` and `strong`."""
        made = {name: Style(color=value, bold=name in _BOLD or None) for name, value in self.colors.items()}
        made["text"] = Style(color=self.colors["foreground"])
        made["strong"] = Style(color=self.colors["foreground"], bold=True)
        made["cursor_rest"] = Style(bgcolor=self.colors["panel"], bold=True)
        made["tab_focus"] = Style(color=self.colors["foreground"], reverse=True, bold=True)
        made["hit"] = Style(color=self.colors["background"], bgcolor=self.colors["accent"])
        return made


@dataclass(slots=True)
class ThemeSet:
    """What was found: themes by name, and what was wrong with the files that are not among them."""

    themes: dict[str, ForgeTheme] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)


def folders(environ: Mapping[str, str] = os.environ) -> list[Path]:
    """Where theme files are looked for; a later folder's theme replaces an earlier one of its name."""
    package = Path(__file__).resolve().parent.parent
    shipped = package / "themes"
    if not shipped.is_dir():
        shipped = package.parent / "themes"
    config = Path(environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return [shipped, config / "forge-tui" / "themes"]


def load(paths: list[Path]) -> ThemeSet:
    """Read every `*.toml` of the folders. A bad file becomes one message with all its errors."""
    found = ThemeSet()
    for folder in paths:
        try:
            files = sorted(folder.glob("*.toml"))
        except OSError:
            continue
        for file in files:
            theme, errors = read(file)
            if theme is not None:
                found.themes[theme.name] = theme
            else:
                found.errors.append(f"{file.name}: " + "; ".join(errors))
    if DEFAULT_THEME not in found.themes:
        found.errors.append(f"No usable {DEFAULT_THEME}.toml was found; built-in colours are used.")
        found.themes[DEFAULT_THEME] = FALLBACK
    return found


def read(file: Path) -> tuple[ForgeTheme | None, list[str]]:
    """One theme file, or every error in it."""
    try:
        data = tomllib.loads(file.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        return None, [f"not TOML: {error}"]
    except (OSError, UnicodeDecodeError) as error:
        return None, [f"not readable: {error}"]
    return parse(data, file)


def parse(data: Mapping[str, object], file: Path) -> tuple[ForgeTheme | None, list[str]]:
    """Validate a theme's data; all errors at once."""
    errors: list[str] = []
    name = data.get("name", file.stem)
    if not isinstance(name, str) or not name:
        errors.append("name must be a text")
        name = file.stem
    dark = data.get("dark", True)
    if not isinstance(dark, bool):
        errors.append("dark must be true or false")
        dark = True
    errors.extend(f"unknown key {key}" for key in data if key not in SECTIONS and key not in ("name", "dark"))
    colors: dict[str, str] = {}
    for section, keys in SECTIONS.items():
        table = data.get(section)
        if not isinstance(table, dict):
            errors.append(f"section [{section}] is missing")
            continue
        errors.extend(f"unknown key {section}.{key}" for key in table if key not in keys)
        for key in keys:
            value = table.get(key)
            if value is None:
                errors.append(f"{section}.{key} is missing")
            elif not isinstance(value, str) or not _is_color(value):
                errors.append(f"{section}.{key} is no colour: {value!r}")
            else:
                colors[key] = Color.parse(value).hex6.lower()
    if errors:
        return None, errors
    return ForgeTheme(name=name, dark=dark, colors=colors, path=str(file)), []


def _is_color(value: str) -> bool:
    try:
        color = Color.parse(value)
    except ColorParseError:
        return False
    return color.ansi is None and color.a == 1


FALLBACK = ForgeTheme(
    name=DEFAULT_THEME,
    dark=True,
    colors={
        "background": "#101113", "surface": "#191a1d", "panel": "#2a2c31", "foreground": "#d7dae0",
        "muted": "#8a919e", "primary": "#87afff", "secondary": "#87afaf", "accent": "#ffaf5f", "success": "#87d787",
        "warning": "#ffd75f", "error": "#ff8787", "faster": "#87d787", "slower": "#d7af5f",
        "inconclusive": "#87afd7", "failed": "#ff8787", "infra": "#d787d7", "running": "#d7d7d7",
        "guide": "#4e5563", "best": "#ffd75f", "edge": "#87afaf", "target": "#ffaf5f", "fill": "#87afff",
        "track": "#3a3c42", "high": "#ffaf5f", "keyword": "#87afff", "type": "#87d7d7", "function": "#ffd787",
        "string": "#afd787", "number": "#d7afff", "comment": "#8a919e", "preprocessor": "#d787af",
        "directive": "#ffaf5f", "builtin": "#87d7af", "operator": "#d7dae0",
    },
)  # fmt: skip
"""Used when not even the shipped file can be read, so that the screen always starts."""
