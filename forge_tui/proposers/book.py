"""Prompt templates: files that a person can override by others of the same name, rendered in a sandbox.

Looked for in `prompts/` of the workspace, then of `$XDG_CONFIG_HOME/forge-tui`, then in the program. `prompt.facts`
makes what they may use; a name that is not there is an error, not an empty text.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import FunctionLoader, StrictUndefined, TemplateError, TemplateNotFound, TemplateSyntaxError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from forge_tui.core.errors import ConfigError

PACKAGED = Path(__file__).parent / "prompts"
SUFFIX = ".j2"
_HINT = "Mend it, or remove it: the program's own then takes its place."


class PromptBook:
    """The templates in force."""

    def __init__(self, folders: tuple[Path, ...] = (), *, whole_module: bool = False) -> None:
        """`folders` go before the program's own, the first one first.

        `whole_module` shows the file that a callable stands in beside its own source.
        """
        self.whole_module = whole_module
        self._folders = tuple(folder for folder in folders if folder.is_dir())
        # the output is a prompt, not HTML
        self._environment = ImmutableSandboxedEnvironment(
            loader=FunctionLoader(self._load), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
            keep_trailing_newline=True, autoescape=False, cache_size=64,
        )  # fmt: skip

    def render(self, name: str, values: Mapping[str, Any]) -> str:
        """The text of one template.

        Raises:
            ConfigError: it cannot be read, is no template, or does not work with these values.
        """
        # a template is a small program, so any exception may come from a person's own
        try:
            return self._environment.get_template(name + SUFFIX).render(values)
        except ConfigError:
            raise
        except Exception as error:
            raise self._fault(name, error) from error

    def raw(self, name: str) -> str:
        """A file as it is.

        Raises:
            ConfigError: it is not there, or cannot be read.
        """
        path = self._path(name)
        if path is None:
            raise ConfigError(f"There is no prompt file {name}.")
        try:
            return path.read_text(encoding="utf-8").replace("\r\n", "\n")
        except UnicodeDecodeError as error:
            raise ConfigError(f"The prompt file {path} is not UTF-8 text.", _HINT) from error
        except OSError as error:
            raise ConfigError(f"The prompt file {path} cannot be read: {error.strerror}.", _HINT) from error

    def _path(self, name: str) -> Path | None:
        if name in ("", ".", "..") or "/" in name:
            return None
        return next((path for place in (*self._folders, PACKAGED) if (path := place / name).exists()), None)

    def _load(self, name: str) -> tuple[str, str, None] | None:
        path = self._path(name)
        return None if path is None else (self.raw(name), str(path), None)

    def overridden(self) -> list[Path]:
        """Files that stand for the program's own, or that no template of the program's name stands behind."""
        return [path for folder in self._folders for path in sorted(folder.iterdir()) if path.is_file()]

    def _fault(self, name: str, error: Exception) -> ConfigError:
        """One sentence: which file, which line, what is wrong."""
        where, line = self._place(name, error)
        if isinstance(error, TemplateNotFound):
            what = f"it includes {error}, which is not there"
        else:
            text = " ".join(str(error).split()).rstrip(".")
            what = text if isinstance(error, TemplateError) else f"{type(error).__name__}: {text}"
        at = f", line {line}" if line else ""
        return ConfigError(f"The prompt template {where}{at} cannot be used: {what}.",
                           _HINT)  # fmt: skip

    def _place(self, name: str, error: Exception) -> tuple[str, int]:
        if isinstance(error, TemplateSyntaxError) and error.filename:
            return error.filename, error.lineno
        found = (str(self._path(name + SUFFIX) or name + SUFFIX), 0)
        trace = error.__traceback__
        while trace is not None:
            file = trace.tb_frame.f_code.co_filename
            if file.endswith(SUFFIX):
                found = (file, trace.tb_lineno)
            trace = trace.tb_next
        return found


def folders(workspace: Path | None) -> tuple[Path, ...]:
    """Where a person's own templates may lie."""
    base = os.environ.get("XDG_CONFIG_HOME", "")
    home = (Path(base) if base.startswith("/") else Path.home() / ".config") / "forge-tui" / "prompts"
    return (home,) if workspace is None else (workspace / "prompts", home)


@cache
def packaged() -> PromptBook:
    """The program's own templates alone."""
    return PromptBook()
