"""Prompt templates: files that a person can override by others of the same name.

Looked for in `prompts/` of the workspace, then of `$XDG_CONFIG_HOME/forge-tui`, then in the program. `prompt.facts`
makes what they may use; a name that is not there is an error, not an empty text.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from forge_tui.core.errors import ConfigError
from forge_tui.proposers import keys
from forge_tui.proposers.renderer import Renderer
from forge_tui.proposers.templating import PACKAGED, SUFFIX, Templates

__all__ = ["PACKAGED", "SUFFIX", "PromptBook", "folders", "packaged"]

#: what editors and version control leave
_LEFT = ("~", "#", ".bak", ".orig", ".rej", ".swp", ".tmp")


class PromptBook:
    """The templates in force: those of a person that were there when it was made, and the program's own."""

    def __init__(self, folders: tuple[Path, ...] = (), *, whole_module: bool = False) -> None:
        """`folders` go before the program's own, the first one first.

        `whole_module` shows the file that a callable stands in beside its own source.

        Raises:
            ConfigError: one of the folders cannot be read.
        """
        self.whole_module = whole_module
        found = {folder: files for folder in folders if (files := _files(folder))}
        self._own = [path for files in found.values() for path in files]
        self._templates = Templates(tuple(found))
        # a person's own may be endless
        self._renderer = Renderer(tuple(found)) if found else None

    def render(self, name: str, values: Mapping[str, Any]) -> str:
        """The text of one template.

        Raises:
            ConfigError: it cannot be read, is no template, does not work with these values, or takes too much.
        """
        if self._renderer is None:
            return self._templates.render(name, values)
        return self._renderer.render(name, values, self._templates.path(name + SUFFIX))

    def raw(self, name: str) -> str:
        """A file as it is.

        Raises:
            ConfigError: it is not there, or cannot be read.
        """
        return self._templates.raw(name)

    def overridden(self) -> list[Path]:
        """Files of a person, whether they stand for the program's own or are included."""
        return self._own

    def check_names(self) -> None:
        """Find files that nothing uses, which are misnamed.

        Raises:
            ConfigError: there is one, or a template cannot be read.
        """
        names = {path.name for path in PACKAGED.iterdir()}
        strange = [path for path in self._own if path.name not in names]
        if not strange or self._renderer is None:
            return
        own = [path for path in self._own if path.suffix == SUFFIX and not path.is_dir()]
        referred, worked_out = self._renderer.referred([path.name for path in own], own[0]) if own else (set(), False)
        for path in strange:
            meant = _meant(path, names)
            if path.name in referred or (worked_out and not meant and path.suffix == SUFFIX):
                continue
            if meant or path.suffix == SUFFIX:
                hint = f"Did you mean {meant}?" if meant else f"The program's are {', '.join(sorted(names))}."
                raise ConfigError(f"The prompt file {path} stands for none of the program's.", hint)


def _files(folder: Path) -> list[Path]:
    """What a person put there, but for what editors leave, and folders that are named like no template."""
    try:
        if not folder.exists() and not folder.is_symlink():
            return []
        found = sorted(folder.iterdir())
        return [path for path in found if not path.name.startswith((".", "#")) and not path.name.endswith(_LEFT)
                and (not path.is_dir() or path.suffix == SUFFIX)]  # fmt: skip
    except OSError as error:
        raise ConfigError(f"The folder of prompt templates {folder} cannot be read: {error.strerror}.",
                          "Make it a folder that you can read, or remove it.") from error  # fmt: skip


def _meant(path: Path, names: set[str]) -> str:
    """The file of the program that a name is nearly one of; empty where there is none."""
    known = {name.lower(): name for name in names}
    for tried in (path.name, f"{path.stem}{SUFFIX}", f"{path.name}{SUFFIX}", path.stem):
        if close := difflib.get_close_matches(tried.lower(), known, n=1, cutoff=0.8):
            return known[close[0]]
    return ""


def folders(workspace: Path | None) -> tuple[Path, ...]:
    """Where a person's own templates may lie."""
    home = keys.path().with_name("prompts")
    return (home,) if workspace is None else (workspace / "prompts", home)


@cache
def packaged() -> PromptBook:
    """The program's own templates alone."""
    return PromptBook()
