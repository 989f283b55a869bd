"""What leaves this machine: nothing is asked of a model elsewhere before a person has agreed to that host.

Consent is by host and workspace, in a file of the workspace; `forge-tui consent --withdraw HOST` takes it back.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import json
import os
import socket
import sys
import urllib.parse
from collections.abc import Mapping, Sequence
from pathlib import Path

from forge_tui.cli import model_names
from forge_tui.cli.waiting import in_thread
from forge_tui.core.errors import StoreError, UsageError
from forge_tui.core.landscapes import PREFIX as SIM
from forge_tui.core.paths import Workspace
from forge_tui.core.records import ModelOptions
from forge_tui.proposers import providers

#: what is written by nobody elsewhere
_HERE = ("templates", "inbox", "sim", "person")
_REPLAY = "replay:"
#: most seconds to ask which machine a name is
_LOOK_UP_S = 10.0
_SENT = ("the Python source of each callable that is searched (with --send-source module, of its file), its shapes, "
         "dtypes and statistics of its inputs, this device's name and rates, the kernels and their errors")  # fmt: skip


def host_of(model: str, api_base: str | None, environment: Mapping[str, str] = os.environ) -> str:
    """The host that a model is asked at; the provider's name in words where its host is not known."""
    provider = model.partition("/")[0] if "/" in model else model_names.provider(model)
    address = providers.address(provider, api_base, environment)
    if not address:
        return f"the provider of {model}"
    return urllib.parse.urlsplit(address if "://" in address else f"http://{address}").hostname or address


def is_here(host: str) -> bool:
    """Whether a host is this machine: every address of it is a loopback or one of our own interfaces."""
    try:
        items = in_thread(lambda: socket.getaddrinfo(host, None), _LOOK_UP_S)
    except (OSError, UnicodeError, TimeoutError):
        return False
    found = {item[4][0] for item in items}
    return bool(found) and all(_ours(str(address)) for address in found)


def _ours(address: str) -> bool:
    try:
        known = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if known.is_loopback or known.is_unspecified:
        return True
    # only an address of this machine can be bound
    family = socket.AF_INET if known.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True


def remote_hosts(
    models: Sequence[str], api_base: str | None, own: Mapping[str, ModelOptions] | None = None
) -> dict[str, str]:
    """The first model that is asked there by host elsewhere; `own` are addresses of single models."""
    found: dict[str, str] = {}
    for model in models:
        if model in _HERE or model.startswith((_REPLAY, SIM)):
            continue
        address = own[model].api_base if own and model in own else None
        host = host_of(model, address or api_base)
        if host not in found and not is_here(host):
            found[host] = model
    return found


def check(
    models: Sequence[str], api_base: str | None, place: Workspace, *, allow_remote: bool, local_only: bool, ask: bool,
    own: Mapping[str, ModelOptions] | None = None, only: str = "",
) -> None:  # fmt: skip
    """Have consent for every host elsewhere; with `ask` a person at the terminal is asked, once for a workspace.

    `only` says what is sent where that is less than a search sends: a yes to that holds for this time.

    Raises:
        UsageError: there is none, or `local_only` forbids it.
    """
    if allow_remote and local_only:
        raise UsageError("--allow-remote and --local-only contradict each other.", "Leave one of them out.")
    hosts = remote_hosts(models, api_base, own)
    if not hosts:
        return
    host, model = next(iter(hosts.items()))
    if local_only:
        raise UsageError(f"{model} is asked at {host}, which is not this machine.",
                         "Leave out --local-only, or name a local server with --api-base.")  # fmt: skip
    given = consented(place)
    for host, model in hosts.items():
        if host in given or allow_remote:
            continue
        if not ask or not _yes(model, host, only):
            what = only or "this model's source"
            raise UsageError(f"{model} is asked at {host}, and nobody has agreed to send it {what}.",
                             "Say --allow-remote, or name a local server with --api-base.")  # fmt: skip
        if only:
            continue
        given[host] = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
        _keep(place, given)


def consented(place: Workspace) -> dict[str, str]:
    """Hosts that a person agreed to in this workspace, with the time; none where the file cannot be read."""
    try:
        found = json.loads(_file(place).read_text(encoding="utf-8"))
        return {str(host): str(at) for host, at in found["hosts"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def withdraw(place: Workspace, hosts: Sequence[str]) -> dict[str, str]:
    """Take back what was agreed to for these hosts; returns what is left.

    Raises:
        UsageError: nobody agreed to one of them; then all stays as it is.
        StoreError: the file cannot be written.
    """
    given = consented(place)
    for host in hosts:
        if host not in given:
            named = f"Agreed to are: {', '.join(given)}." if given else "Nothing was agreed to in this workspace."
            raise UsageError(f"Nobody agreed to {host} in {place.root}.", named)
    left = {host: at for host, at in given.items() if host not in hosts}
    try:
        _keep(place, left)
    except OSError as error:
        raise StoreError(f"{_file(place)} cannot be written: {error.strerror}.", "The consent is still there.") \
            from error  # fmt: skip
    return left


def _keep(place: Workspace, hosts: dict[str, str]) -> None:
    place.prepare()
    path = _file(place)
    new = path.with_suffix(".new")
    new.write_text(json.dumps({"hosts": hosts}, indent=2) + "\n", encoding="utf-8")
    new.replace(path)


def _file(place: Workspace) -> Path:
    return place.root / "consent.json"


def _yes(model: str, host: str, only: str) -> bool:
    print(f"{model} is asked at {host}. It is sent {only or _SENT}.", file=sys.stderr)
    if not only:
        print("forge-tui prompt shows the exact text later on; --model inbox writes prompts to files and sends "
              "nothing.", file=sys.stderr)  # fmt: skip
    asked = "only this time" if only else "once for this workspace"
    print(f"Send this to {host}? It is asked {asked}. [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
