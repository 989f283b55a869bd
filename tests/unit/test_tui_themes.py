"""Theme files: found, validated as a whole, replaced by the user's own."""

# ruff: noqa: D103 - small helpers and checks say by their names what they do

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from rich.color import ColorSystem
from textual.color import Color

from forge_tui.tui import themes

REPO = Path(__file__).resolve().parents[2]


def shipped() -> themes.ThemeSet:
    return themes.load(themes.folders({"XDG_CONFIG_HOME": "/nonexistent"}))


def test_the_shipped_themes_load() -> None:
    """Every file of `themes/` is valid, and the default is among them."""
    found = shipped()
    assert found.errors == []
    assert set(found.themes) == {"forge-dark", "forge-light", "forge-contrast"}
    assert not found.themes["forge-light"].dark


def test_the_fallback_is_the_default_theme() -> None:
    """The colours in the code are those of forge-dark.toml."""
    assert shipped().themes["forge-dark"].colors == themes.FALLBACK.colors


@pytest.mark.parametrize("name", ["forge-dark", "forge-light", "forge-contrast"])
def test_text_is_readable_on_its_background(name: str) -> None:
    """Every foreground has a contrast of at least 4.5 to 1 on every background it stands on; guides of 1.6."""
    colors = shipped().themes[name].colors
    quiet = {"guide": 1.6, "track": 1.1, "muted": 4.0}
    skip = {"background", "surface", "panel", "fill"}
    for key, value in colors.items():
        if key in skip:
            continue
        for ground in ("background", "surface", "panel"):
            if ground != "background" and key in quiet:
                continue
            ratio = contrast(Color.parse(value), Color.parse(colors[ground]))
            assert ratio >= quiet.get(key, 4.5 if ground == "background" else 3.5), (key, ground, ratio)


def contrast(one: Color, two: Color) -> float:
    def luminance(color: Color) -> float:
        parts = [(c / 255 / 12.92) if c / 255 <= 0.03928 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in color.rgb]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    high, low = sorted((luminance(one), luminance(two)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("name", ["forge-dark", "forge-light", "forge-contrast"])
@pytest.mark.parametrize("system", [ColorSystem.EIGHT_BIT, ColorSystem.STANDARD])
def test_text_survives_fewer_colours(name: str, system: ColorSystem) -> None:
    """With 256 or 16 colours no text takes the colour of its background."""
    theme = shipped().themes[name]
    ground = Color.parse(theme.colors["background"]).rich_color.downgrade(system)
    for key, style in theme.styles().items():
        if key in ("background", "surface", "panel", "track", "guide", "cursor_rest", "hit", "tab_focus"):
            continue
        assert style.color is not None
        assert style.color.downgrade(system).number != ground.number, key


def test_all_errors_of_a_file_are_told_at_once(tmp_path: Path) -> None:
    """A broken theme names each fault, so that one edit mends it."""
    data = (REPO / "themes" / "forge-dark.toml").read_text()
    data = data.replace('accent = "#ffaf5f"', 'accent = "nocolour"').replace('slower = "#d7af5f"\n', "")
    data = data.replace("[bars]", "extra = 1\n[bars]").replace('name = "forge-dark"', 'name = "mine"\nfont = "big"')
    (tmp_path / "mine.toml").write_text(data)
    found = themes.load([REPO / "themes", tmp_path])
    assert "mine" not in found.themes
    (message,) = found.errors
    for part in ("mine.toml", "base.accent is no colour: 'nocolour'", "verdicts.slower is missing",
                 "unknown key tree.extra", "unknown key font"):  # fmt: skip
        assert part in message


def test_broken_files_do_not_stop_the_screen(tmp_path: Path) -> None:
    """Files that are no TOML or no text are left out with a message, and the fallback stands in for the default."""
    (tmp_path / "a.toml").write_text("name = [")
    (tmp_path / "b.toml").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "c.toml").write_text("")
    found = themes.load([tmp_path])
    assert len(found.errors) == 4
    assert found.themes == {"forge-dark": themes.FALLBACK}


def test_the_users_own_theme_comes_last(tmp_path: Path) -> None:
    """A file of the same name in the user's folder replaces the shipped theme."""
    folder = tmp_path / "forge-tui" / "themes"
    folder.mkdir(parents=True)
    data = (REPO / "themes" / "forge-dark.toml").read_text().replace('accent = "#ffaf5f"', 'accent = "#00ff00"')
    (folder / "own.toml").write_text(data)
    found = themes.load(themes.folders({"XDG_CONFIG_HOME": str(tmp_path)}))
    assert found.themes["forge-dark"].colors["accent"] == "#00ff00"
    assert found.themes["forge-dark"].path.endswith("own.toml")


def test_the_files_have_every_section() -> None:
    """Each shipped file has just the documented sections and keys."""
    for file in sorted((REPO / "themes").glob("*.toml")):
        data = tomllib.loads(file.read_text())
        assert {key: tuple(data[key]) for key in themes.SECTIONS} == themes.SECTIONS
