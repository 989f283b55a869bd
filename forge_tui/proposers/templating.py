"""Templates of the program and of a person, rendered in Jinja's sandbox; a fault is one sentence with file and line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from jinja2 import (
    FunctionLoader,
    StrictUndefined,
    Template,
    TemplateError,
    TemplateNotFound,
    TemplateSyntaxError,
    meta,
)
from jinja2.sandbox import ImmutableSandboxedEnvironment

from forge_tui.core.errors import ConfigError
from forge_tui.core.files import UnreadableError, read_bytes

PACKAGED = Path(__file__).parent / "prompts"
SUFFIX = ".j2"
HINT = "Mend it, or remove it: the program's own then takes its place."
#: of one file, and of one section before it is cut to its tokens
MOST_BYTES, MOST_TEXT = 1 << 18, 1 << 18

_INCLUDE = re.compile(r"""\binclude\s+["']([^"']+)["']""")


class UnendingError(Exception):
    """A template that is not done in its time. An ordinary exception, so that Jinja says in which line."""


class _LongError(Exception):
    """A template that makes too much text."""


class Templates:
    """The templates of some folders, the first one first, and behind them the program's own."""

    def __init__(self, folders: tuple[Path, ...] = ()) -> None:
        self._folders = (*folders, PACKAGED)
        # the output is a prompt, not HTML
        self._environment = ImmutableSandboxedEnvironment(
            loader=FunctionLoader(self._load), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
            keep_trailing_newline=True, autoescape=False, cache_size=64,
        )  # fmt: skip

    def render(self, name: str, values: Mapping[str, Any]) -> str:
        """The text of one template.

        Raises:
            ConfigError: it cannot be read, is no template, does not work with these values, or makes too much text.
        """
        # a template is a small program, so any exception may come from a person's own
        try:
            return "".join(_bounded(self._environment.get_template(name + SUFFIX), values))
        except ConfigError:
            raise
        except Exception as error:
            raise self._fault(name, error) from error

    def raw(self, name: str) -> str:
        """A file as it is.

        Raises:
            ConfigError: it is not there, or cannot be read.
        """
        path = self.path(name)
        if path is None:
            raise ConfigError(f"There is no prompt file {name}.")
        try:
            return read_bytes(path, MOST_BYTES).decode("utf-8").replace("\r\n", "\n")
        except UnicodeDecodeError as error:
            raise ConfigError(f"The prompt file {path} is not UTF-8 text.", HINT) from error
        except UnreadableError as error:
            raise ConfigError(f"The prompt file {path} {error}.", HINT) from error

    def path(self, name: str) -> Path | None:
        """The file of a name."""
        if name in ("", ".", "..") or "/" in name:
            return None
        paths = (folder / name for folder in self._folders)
        return next((path for path in paths if path.exists() or path.is_symlink()), None)

    def referred(self, names: list[str]) -> tuple[set[str], bool]:
        """What these templates include, and whether one of them works a name out."""
        found: set[str | None] = set()
        for name in names:
            try:
                found.update(meta.find_referenced_templates(self._environment.parse(self.raw(name))))
            except TemplateError as error:
                if isinstance(error, TemplateSyntaxError):
                    error.filename = str(self.path(name))
                raise self._fault(name.removesuffix(SUFFIX), error) from error
        return {name for name in found if name is not None}, None in found

    def _load(self, name: str) -> tuple[str, str, None] | None:
        path = self.path(name)
        return None if path is None else (self.raw(name), str(path), None)

    def _fault(self, name: str, error: Exception) -> ConfigError:
        """One sentence: which file, which line, what is wrong."""
        where, line = self._place(name, error)
        if isinstance(error, TemplateNotFound):
            what = f"it includes {error}, which is not there"
        elif isinstance(error, MemoryError):
            what = "it takes too much memory"
        elif isinstance(error, RecursionError):
            what = "it goes round in a circle"
        else:
            text = " ".join(str(error).split()).rstrip(".")
            plain = isinstance(error, TemplateError | UnendingError | _LongError)
            what = text if plain else f"{type(error).__name__}: {text}"
        at = f", line {line}" if line else ""
        return ConfigError(f"The prompt template {where}{at} cannot be used: {what}.", HINT)

    def _place(self, name: str, error: Exception) -> tuple[str, int]:
        if isinstance(error, TemplateSyntaxError) and error.filename:
            return error.filename, error.lineno
        found = (str(self.path(name + SUFFIX) or name + SUFFIX), 0)
        trace = error.__traceback__
        while trace is not None:
            file = trace.tb_frame.f_code.co_filename
            if file.endswith(SUFFIX):
                found = (file, trace.tb_lineno)
            trace = trace.tb_next
        return self._included(*found)

    def _included(self, file: str, line: int) -> tuple[str, int]:
        """A person's file, where the fault is in a line of the program's own that includes it."""
        path = Path(file)
        if path.parent != PACKAGED or not line:
            return file, line
        match = _INCLUDE.search(self.raw(path.name).splitlines()[line - 1])
        for folder in self._folders[:-1] if match is not None else ():
            for own in sorted(folder.glob(f"*{SUFFIX}")):
                # the rest of a name may be worked out
                if match is not None and own.name.startswith(match[1]):
                    return str(own), 0
        return file, line


def _bounded(template: Template, values: Mapping[str, Any]) -> Iterator[str]:
    """The parts of the text as they are made."""
    parts, size = template.generate(values), 0
    for part in parts:
        size += len(part)
        if size > MOST_TEXT:
            # raised where the template is, so that its line is known
            parts.throw(_LongError(f"it makes more than {MOST_TEXT >> 10} KiB of text"))  # type: ignore[attr-defined]
        yield part
