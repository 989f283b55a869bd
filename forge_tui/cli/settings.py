"""What `run` takes, from four places: the command line, FORGE_* variables, the project's file, the person's own.

Files are TOML: keys are the names of the options with `_` for `-`, and a table `[models."NAME"]` for one model.
"""

from __future__ import annotations

import difflib
import math
import os
import tomllib
import types
import typing
import urllib.parse
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from forge_tui.core.errors import ConfigError
from forge_tui.core.paths import Workspace
from forge_tui.core.records import ModelOptions, Record, SendSource
from forge_tui.proposers import keys

DEFAULT, FLAG = "default", "command line"
_KEY_WORDS = ("key", "token", "secret", "password")
_AtLeast0 = msgspec.Meta(ge=0)
_AtLeast1 = msgspec.Meta(ge=1)


class RunSettings(Record, frozen=True, kw_only=True):
    """What can be set, with its default."""

    model: tuple[str, ...] = ()
    api_base: str | None = None
    price: tuple[str, ...] = ()
    templates: bool = True
    usd: Annotated[float, _AtLeast0] | None = None
    minutes: Annotated[float, _AtLeast0] = 60.0
    evaluations: Annotated[int, _AtLeast1] = 60
    targets: Annotated[int, _AtLeast1] = 12
    gpu_rate: Annotated[float, _AtLeast0] = 0.0
    worth: Annotated[float, msgspec.Meta(ge=0.01)] = 5.0
    transfer: bool = True
    threads: Annotated[int, _AtLeast0] = 0
    tools: Annotated[int, _AtLeast0] = 0
    send_source: SendSource = "callable"
    allow_remote: bool = False
    local_only: bool = False
    theme: str | None = None


class ModelSettings(Record, frozen=True, kw_only=True):
    """What can be set for one model; None is what holds for all."""

    api_base: str | None = None
    max_tokens: Annotated[int, _AtLeast1] | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] | None = None
    price: Annotated[tuple[Annotated[float, _AtLeast0], ...], msgspec.Meta(min_length=2, max_length=4)] | None = None


class Chosen(Record, frozen=True, kw_only=True):
    """What holds, and where each value came from."""

    run: RunSettings
    sources: dict[str, str]
    """By key of `run`: `command line`, a variable, a file, or `default`."""
    models: dict[str, ModelSettings] = msgspec.field(default_factory=dict)
    model_sources: dict[str, dict[str, str]] = msgspec.field(default_factory=dict)

    def options(self, models: typing.Iterable[str]) -> dict[str, ModelOptions]:
        """What a session keeps of these models."""
        return {
            name: ModelOptions(api_base=own.api_base, max_tokens=own.max_tokens, temperature=own.temperature)
            for name in models if (own := self.models.get(name)) is not None
            and (own.api_base, own.max_tokens, own.temperature) != (None, None, None)
        }  # fmt: skip

    def prices(self, models: typing.Iterable[str]) -> dict[str, tuple[float, ...]]:
        """Prices from the tables of these models."""
        return {name: own.price for name in models if (own := self.models.get(name)) is not None and own.price}


def variable(key: str) -> str:
    """The environment variable of a key."""
    return "FORGE_TUI_THEME" if key == "theme" else f"FORGE_{key.upper()}"


def files(place: Workspace) -> tuple[Path, Path]:
    """The project's file and the person's own, whether there or not."""
    return place.root / "config.toml", keys.path().with_name("config.toml")


def load(
    place: Workspace, flags: Mapping[str, Any] | None = None, environment: Mapping[str, str] = os.environ
) -> Chosen:
    """Settle every value; `flags` are those that were typed.

    Raises:
        ConfigError: a file or a variable cannot be used as it is.
    """
    project, own = files(place)
    values: dict[str, Any] = {}
    sources = dict.fromkeys(RunSettings.__struct_fields__, DEFAULT)
    tables: dict[str, dict[str, Any]] = {}
    origins: dict[str, dict[str, str]] = {}
    # a later layer takes the place of an earlier one, key by key
    for file in (own, project):
        found, models = _read(file)
        if file == project and "allow_remote" in found:
            raise ConfigError(f"allow_remote in {file} is not used: a project cannot agree for you.",
                              f"Put it into {own}, or say --allow-remote.")  # fmt: skip
        layers = [(values, sources, found)]
        layers += [(tables.setdefault(name, {}), origins.setdefault(name, {}), table)
                   for name, table in models.items()]  # fmt: skip
        for into, whence, table in layers:
            into.update(table)
            whence.update(dict.fromkeys(table, str(file)))
    for key in RunSettings.__struct_fields__:
        if environment.get(variable(key)):
            values[key] = _of_text(key, environment[variable(key)])
            sources[key] = variable(key)
    for key, value in (flags or {}).items():
        values[key] = tuple(value) if isinstance(value, list) else value
        sources[key] = FLAG
    _one_rule(values, sources, [FLAG, variable("local_only"), variable("allow_remote"), str(project), str(own)])
    return Chosen(run=RunSettings(**values), sources=sources, model_sources=origins,
                  models={name: ModelSettings(**table) for name, table in tables.items()})  # fmt: skip


def _one_rule(values: dict[str, Any], sources: dict[str, str], order: list[str]) -> None:
    """Of `allow_remote` and `local_only` the nearer one holds; in the same place they contradict each other."""
    if not (values.get("allow_remote") and values.get("local_only")):
        return
    allow, only = sources["allow_remote"], sources["local_only"]
    if allow == only or {allow, only} == {variable("allow_remote"), variable("local_only")}:
        return
    loser = "allow_remote" if order.index(only) < order.index(allow) else "local_only"
    values[loser] = False
    sources[loser] = sources["local_only" if loser == "allow_remote" else "allow_remote"]


def _read(file: Path) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """The file's keys and its tables of models, checked; both empty where there is no file."""
    if not file.exists():
        return {}, {}
    if not file.is_file():
        raise ConfigError(f"{file} is not a file.")
    try:
        data = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not UTF-8 text.") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file} is not TOML: {error}.") from error
    tables = data.pop("models", {})
    if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
        raise ConfigError(f"models in {file} must be tables.",
                          'Write [models."NAME"] for options of one, model = ["NAME"] for whom to ask.')  # fmt: skip
    found = _checked(data, RunSettings, "", file)
    return found, {name: _checked(table, ModelSettings, f'models."{name}".', file) for name, table in tables.items()}


def _checked(data: Mapping[str, Any], kind: type[RunSettings | ModelSettings], within: str,
             file: Path) -> dict[str, Any]:  # fmt: skip
    hints = typing.get_type_hints(kind, include_extras=True)
    found: dict[str, Any] = {}
    for key, value in data.items():
        if key not in hints:
            known = [*hints, *(() if within else ("models",))]
            close = difflib.get_close_matches(key, known, n=1)
            hint = f"Did you mean {close[0]}?" if close else f"Known are {', '.join(known)}."
            if any(word in key.lower() and not (close and word in close[0]) for word in _KEY_WORDS):
                hint = keys.where_to_put()
            raise ConfigError(f"{file} has a key that is not known: {within}{key}.", hint)
        found[key] = _converted(value, hints[key], f"{within}{key} in {file}", strict=True)
        if key == "api_base" and (fault := address_fault(found[key])):
            raise ConfigError(f"{within}{key} in {file} {fault}.", "Give one such as http://localhost:8000/v1.")
    return found


def _of_text(key: str, text: str) -> Any:
    hint = typing.get_type_hints(RunSettings, include_extras=True)[key]
    value: Any = text.split() if typing.get_origin(hint) is tuple else text.strip()
    value = _converted(value, hint, variable(key), strict=False)
    if key == "api_base" and (fault := address_fault(value)):
        raise ConfigError(f"{variable(key)} {fault}.", "Give one such as http://localhost:8000/v1.")
    return value


def _converted(value: Any, hint: Any, what: str, *, strict: bool) -> Any:
    # what was written may be a key in the wrong place: it is never repeated
    try:
        made = msgspec.convert(value, hint, strict=strict)
    except msgspec.ValidationError:
        raise ConfigError(f"{what} must be {_wanted(hint)}.") from None
    numbers = made if isinstance(made, tuple) else (made,)
    if made is None or any(isinstance(number, float) and not math.isfinite(number) for number in numbers):
        raise ConfigError(f"{what} must be {_wanted(hint)}.")
    return made


def _wanted(hint: Any) -> str:
    """A type in words."""
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        return _wanted(next(part for part in typing.get_args(hint) if part is not type(None)))
    if typing.get_origin(hint) is Literal:
        return " or ".join(typing.get_args(hint))
    meta = None
    if typing.get_origin(hint) is Annotated:
        hint, meta = typing.get_args(hint)
    if typing.get_origin(hint) is tuple:
        return "a list of two to four numbers, dollars per million tokens" if meta else "a list of texts"
    words = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}[hint]
    if meta is None:
        return words
    return f"{words} from {meta.ge} to {meta.le}" if meta.le is not None else f"{words} of at least {meta.ge}"


def use_theme(chosen: Chosen) -> None:
    """Have a screen of this process begin with the theme that was set."""
    if chosen.run.theme:
        os.environ[variable("theme")] = chosen.run.theme


def address_fault(address: str) -> str:
    """What is wrong with a server's address, which is kept in the session; empty where nothing is."""
    try:
        parts = urllib.parse.urlsplit(address)
        known = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        return "is not an address"
    if not known:
        return "is not an address"
    secret = "@" in parts.netloc or parts.query
    return "holds a password or a key, which would be kept with the session" if secret else ""
