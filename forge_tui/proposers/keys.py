"""Keys of providers: from the environment, a file that only its owner can read, or the system's keyring.

They are handed to the library call by call and never put into the environment, so that no worker inherits them.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import re
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from forge_tui.core import secrets
from forge_tui.core.errors import ConfigError

SERVICE = "forge-tui"
_LINE = re.compile(r"(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=\s*(.*)")
#: what LiteLLM calls what it needs beside a key, where that can be handed to it
_ARGUMENTS = {
    "AWS_ACCESS_KEY_ID": "aws_access_key_id", "AWS_SECRET_ACCESS_KEY": "aws_secret_access_key",
    "AWS_REGION_NAME": "aws_region_name", "AWS_PROFILE": "aws_profile_name", "AZURE_API_BASE": "api_base",
    "AZURE_API_VERSION": "api_version", "OLLAMA_API_BASE": "api_base", "VERTEXAI_PROJECT": "vertex_project",
    "VERTEXAI_LOCATION": "vertex_location",
}  # fmt: skip
#: what LiteLLM lists as missing although it has a default
_OPTIONAL = frozenset({"OLLAMA_API_BASE"})


def path() -> Path:
    """`$XDG_CONFIG_HOME/forge-tui/keys`, by default `~/.config/forge-tui/keys`."""
    chosen = os.environ.get("XDG_CONFIG_HOME", "")
    root = Path(chosen) if chosen.startswith("/") else Path("~/.config").expanduser()
    return root / "forge-tui" / "keys"


def read_file(file: Path) -> dict[str, str]:
    """Lines `NAME=key`; empty where there is no file.

    Raises:
        ConfigError: others may read it, it is not a plain file of this user's, or a line cannot be read.
    """
    try:
        fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise ConfigError(f"The file of keys {file} cannot be read: {error.strerror}.") from error
    with os.fdopen(fd, encoding="utf-8", errors="replace") as opened:
        # what was opened is what is looked at: the name may be another file's by then
        state = os.fstat(fd)
        if not stat.S_ISREG(state.st_mode) or state.st_uid != os.geteuid():
            raise ConfigError(f"The file of keys {file} is not used: it must be a plain file that belongs to you.")
        if stat.S_IMODE(state.st_mode) != 0o600:
            raise ConfigError(
                f"The file of keys {file} is not used: its mode is {stat.S_IMODE(state.st_mode):04o}, so others may "
                "read or change it.",
                f"Say chmod 600 {file}.",
            )
        lines = opened.read().splitlines()
    found: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _LINE.fullmatch(line.strip())
        if match is None:
            # the line itself may be a key
            raise ConfigError(f"Line {number} of the file of keys {file} is not NAME=key.")
        value = match[2].strip().strip("'\"")
        if secrets.is_key(match[1]):
            secrets.remember(value)
        found[match[1]] = value
    return found


def learn() -> None:
    """Know the keys of the file, so that they are neither shown nor kept; a file that may not be used has none."""
    with contextlib.suppress(ConfigError):
        read_file(path())


def addresses(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The addresses of servers that `arguments` would hand on: of the file, where the environment has none."""
    try:
        file = read_file(path())
    except ConfigError:
        return {}
    return {name: value for name, value in file.items()
            if _ARGUMENTS.get(name) == "api_base" and not environment.get(name)}  # fmt: skip


def arguments(missing: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """What to hand LiteLLM for variables that the environment lacks, and those that are nowhere.

    May block on a keyring, so it is called in a thread.

    Raises:
        ConfigError: the file of keys may not be used.
    """
    try:
        # read where no key is missing, too: what is in it must not be sent or written either
        file = read_file(path())
    except ConfigError:
        if missing:
            raise
        file = {}
    found: dict[str, str] = {}
    nowhere: list[str] = []
    for name in missing:
        value = file.get(name) or _from_keyring(name)
        if value:
            if secrets.is_key(name):
                secrets.remember(value)
                found[_ARGUMENTS.get(name, "api_key")] = value
            elif name in _ARGUMENTS:
                found[_ARGUMENTS[name]] = value
            else:
                # no key, and LiteLLM looks for it nowhere else
                os.environ.setdefault(name, value)
        elif name not in _OPTIONAL:
            nowhere.append(name)
    return found, nowhere


def where_to_put() -> str:
    """For the sentence about a key that is missing."""
    ring = "in the keyring (service forge-tui)" if has_keyring() else \
        "with the package keyring, which is not installed, in the system's keyring"  # fmt: skip
    return f"Set it in the environment, in {path()} (mode 0600, lines NAME=key), or {ring}."


def has_keyring() -> bool:
    """Whether the package `keyring` is installed."""
    return importlib.util.find_spec("keyring") is not None


def _from_keyring(name: str) -> str:
    if not has_keyring():
        return ""
    try:
        ring: Any = importlib.import_module("keyring")
        return str(ring.get_password(SERVICE, name) or "")
    # backends raise what they like: no session bus, a locked ring
    except Exception:  # noqa: BLE001
        return ""
