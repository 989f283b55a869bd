"""What leaves this machine: nothing is asked of a model elsewhere before a person has agreed to that host.

Consent is by host and workspace, in a file of the workspace; deleting it takes it back.
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

from forge_tui.core.errors import UsageError
from forge_tui.core.landscapes import PREFIX as SIM
from forge_tui.core.paths import Workspace

#: what is written by nobody elsewhere
_HERE = ("templates", "inbox", "sim", "person")
_REPLAY = "replay:"
#: where LiteLLM sends a provider's calls unless told otherwise
_HOSTS = {
    "anthropic": "api.anthropic.com", "openai": "api.openai.com", "gemini": "generativelanguage.googleapis.com",
    "mistral": "api.mistral.ai", "deepseek": "api.deepseek.com", "groq": "api.groq.com", "xai": "api.x.ai",
    "openrouter": "openrouter.ai", "together_ai": "api.together.xyz", "cohere": "api.cohere.com",
    "ollama": "localhost", "ollama_chat": "localhost", "lm_studio": "localhost",
}  # fmt: skip
#: environment variables by which a person or LiteLLM moves a provider's address
_MOVED = ("{}_API_BASE", "{}_BASE_URL")
_SENT = ("the Python source of each callable that is searched, its shapes, dtypes and statistics of its inputs, this "
         "device's name and rates, and the kernels with their errors")  # fmt: skip


def host_of(model: str, api_base: str | None, environment: Mapping[str, str] = os.environ) -> str:
    """The host that a model is asked at; the provider's name in words where its host is not known."""
    provider = model.split("/", 1)[0].lower() if "/" in model else ""
    moved = next((environment[name] for form in _MOVED if environment.get(name := form.format(provider.upper()))), "")
    address = api_base or moved
    if address:
        return urllib.parse.urlsplit(address if "://" in address else f"http://{address}").hostname or address
    return _HOSTS.get(provider, f"the provider of {model}")


def is_here(host: str) -> bool:
    """Whether a host is this machine: every address of it is a loopback or one of our own interfaces."""
    try:
        found = {item[4][0] for item in socket.getaddrinfo(host, None)}
    except (OSError, UnicodeError):
        return False
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


def remote_hosts(models: Sequence[str], api_base: str | None) -> dict[str, str]:
    """The hosts elsewhere by the first model that is asked there."""
    found: dict[str, str] = {}
    for model in models:
        if model in _HERE or model.startswith((_REPLAY, SIM)):
            continue
        host = host_of(model, api_base)
        if host not in found and not is_here(host):
            found[host] = model
    return found


def check(
    models: Sequence[str], api_base: str | None, place: Workspace, *, allow_remote: bool, local_only: bool, ask: bool
) -> None:
    """Have consent for every host elsewhere; with `ask` a person at the terminal is asked, once for a workspace.

    Raises:
        UsageError: there is none, or `local_only` forbids it.
    """
    if allow_remote and local_only:
        raise UsageError("--allow-remote and --local-only contradict each other.", "Leave one of them out.")
    hosts = remote_hosts(models, api_base)
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
        if not ask or not _yes(model, host):
            raise UsageError(f"{model} is asked at {host}, and nobody has agreed to send it this model's source.",
                             "Say --allow-remote, or name a local server with --api-base.")  # fmt: skip
        given[host] = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
        _keep(place, given)


def consented(place: Workspace) -> dict[str, str]:
    """Hosts that a person agreed to in this workspace, with the time; none where the file cannot be read."""
    try:
        found = json.loads(_file(place).read_text(encoding="utf-8"))
        return {str(host): str(at) for host, at in found["hosts"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _keep(place: Workspace, hosts: dict[str, str]) -> None:
    place.prepare()
    path = _file(place)
    new = path.with_suffix(".new")
    new.write_text(json.dumps({"hosts": hosts}, indent=2) + "\n", encoding="utf-8")
    new.replace(path)


def _file(place: Workspace) -> Path:
    return place.root / "consent.json"


def _yes(model: str, host: str) -> bool:
    print(f"{model} is asked at {host}. It is sent {_SENT}.\n"
          "forge-tui prompt shows the exact text later on; --model inbox writes prompts to files and sends nothing.",
          file=sys.stderr)  # fmt: skip
    print(f"Send this to {host}? It is asked once for this workspace. [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
