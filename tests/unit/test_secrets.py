"""Keys: where they come from, and that they are written nowhere."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fault_server import REPLY, Play, serving

from forge_tui.cli import consent, crash
from forge_tui.cli.commands.run import check_address
from forge_tui.core import secrets
from forge_tui.core.errors import ConfigError, UsageError
from forge_tui.core.paths import Workspace
from forge_tui.core.ports import Task
from forge_tui.core.records import Edge
from forge_tui.engine.ledger import Ledger
from forge_tui.processes.environment import clean_environment
from forge_tui.proposers import calling, keys, llm, prompt
from forge_tui.search import simulate
from forge_tui.search.driver import Search, SearchConfig
from forge_tui.store import codec
from forge_tui.store.reader import Reader
from forge_tui.store.writer import Store

#: of no form that a pattern would know
IN_ENVIRONMENT, IN_FILE = "canary+environment+41c9", "canary+file+b27e"


@pytest.fixture(autouse=True)
def _fresh(monkeypatch, tmp_path):
    """Folders of its own, no keys, nothing remembered."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(secrets, "_known", set())
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name, raising=False)


def key_file(text: str, mode: int = 0o600) -> Path:
    """The file of keys."""
    path = keys.path()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


def test_a_file_of_keys_is_read():
    """Lines of NAME=key, quoted or exported as a shell would have them, with comments."""
    path = key_file("# mine\n\nOPENAI_API_KEY=abc-def\nexport B_KEY = 'x=y'\n")
    assert keys.read_file(path) == {"OPENAI_API_KEY": "abc-def", "B_KEY": "x=y"}
    assert keys.read_file(path.with_name("none")) == {}
    assert keys.arguments(["OPENAI_API_KEY", "C_KEY"]) == ({"api_key": "abc-def"}, ["C_KEY"])
    assert keys.arguments([]) == ({}, [])


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o660, 0o700, 0o400])
def test_a_file_that_others_may_read_is_refused(mode):
    """The sentence has the mode and the way out, not a key; nothing of it is used."""
    path = key_file(f"OPENAI_API_KEY={IN_FILE}\n", mode)
    with pytest.raises(ConfigError) as caught:
        keys.arguments(["OPENAI_API_KEY"])
    assert f"its mode is {mode:04o}" in str(caught.value)
    assert f"chmod 600 {path}" in str(caught.value)


def test_what_is_no_file_of_keys_is_refused_without_quoting_it(tmp_path):
    """A line that is a bare key is not repeated in the message; a pipe is not waited for."""
    path = key_file(f"{IN_FILE}\n")
    with pytest.raises(ConfigError) as caught:
        keys.read_file(path)
    assert str(caught.value) == f"Line 1 of the file of keys {path} is not NAME=key."
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(ConfigError, match="a plain file that belongs to you"):
        keys.read_file(tmp_path / "pipe")


def test_the_keyring_is_asked_last(monkeypatch):
    """Where the package is there, its key is used; where it is not, the sentence about a missing key says so."""
    monkeypatch.setattr(keys, "has_keyring", lambda: False)
    assert "the package keyring, which is not installed" in keys.where_to_put()
    ring: Any = types.ModuleType("keyring")
    ring.get_password = lambda service, name: IN_FILE if (service, name) == ("forge-tui", "A_KEY") else None
    monkeypatch.setitem(sys.modules, "keyring", ring)
    monkeypatch.setattr(keys, "has_keyring", lambda: True)
    assert keys.arguments(["A_KEY", "B_KEY"]) == ({"api_key": IN_FILE}, ["B_KEY"])
    assert "in the keyring (service forge-tui)" in keys.where_to_put()
    assert secrets.masked(f"with {IN_FILE}.") == "with [key]."

    def locked(service: str, name: str) -> str:
        raise RuntimeError("locked")

    ring.get_password = locked
    assert keys.arguments(["A_KEY"]) == ({}, ["A_KEY"])


def test_texts_that_are_sent_lose_values_alone(monkeypatch):
    """Source code keeps every word that is no known key, whatever it looks like; short values are words."""
    monkeypatch.setenv("SOME_API_KEY", IN_ENVIRONMENT)
    monkeypatch.setenv("OTHER_TOKEN", "int")
    code = f'int key_value = sk_first_word; // "{IN_ENVIRONMENT}"'
    assert secrets.without_values(code) == 'int key_value = sk_first_word; // "[key]"'


def test_names_of_projects_and_regions_are_no_keys(monkeypatch):
    """What stands in the file beside keys is handed on under its own name, and is sent and shown like any word."""
    for name in ("VERTEXAI_PROJECT", "VERTEXAI_LOCATION", "CLOUDFLARE_ACCOUNT_ID"):
        monkeypatch.delenv(name, raising=False)
    key_file(f"VERTEXAI_PROJECT=attention_kernels\nVERTEXAI_LOCATION=europe-west-number-4\nAZURE_API_KEY={IN_FILE}\n"
             "AZURE_API_BASE=https://mine.example/openai\nAZURE_API_VERSION=2026-01-01-preview\n"
             "CLOUDFLARE_ACCOUNT_ID=account-of-somebody\n")
    assert keys.arguments(["VERTEXAI_PROJECT", "VERTEXAI_LOCATION"]) == (
        {"vertex_project": "attention_kernels", "vertex_location": "europe-west-number-4"}, [])
    assert keys.arguments(["AZURE_API_KEY", "AZURE_API_BASE", "AZURE_API_VERSION"]) == (
        {"api_key": IN_FILE, "api_base": "https://mine.example/openai", "api_version": "2026-01-01-preview"}, [])
    assert keys.arguments(["CLOUDFLARE_ACCOUNT_ID"]) == ({}, [])
    assert os.environ["CLOUDFLARE_ACCOUNT_ID"] == "account-of-somebody"
    assert keys.arguments(["OLLAMA_API_BASE"]) == ({}, []), "it has a default"
    code = f"void attention_kernels(); // europe-west-number-4 {IN_FILE}"
    assert secrets.without_values(code) == "void attention_kernels(); // europe-west-number-4 [key]"
    assert keys.addresses({}) == {"AZURE_API_BASE": "https://mine.example/openai"}
    assert keys.addresses({"AZURE_API_BASE": "http://other"}) == {}
    assert consent.host_of("azure/gpt-4o", None, {}) == "mine.example"
    assert consent.host_of("azure/gpt-4o", "http://localhost:1/v1", {}) == "localhost"


@pytest.mark.parametrize("text", [
    "key_padding_mask is missing", "hf_transformers_cache", "risk-averse", "key-value-store-12", "pk_columns_of_table",
    "task-number-one", "hf_t5_small_config_for_tests",
])
def test_ordinary_names_are_shown(text):
    """A name with underscores is no key."""
    assert secrets.masked(text) == text


@pytest.mark.parametrize("key", [
    "sk-proj-Ab3dE6gH", "sk-ant-api03-xyz_AB", "sk-1234****wxyz", "gsk_abcdef0123456789", "xai-0123456789ab",
    "hf_aBcDeFgHiJkLmNoPqR5t", "AIzaSyA-1234567890abc", "key-0123456789abcdef0123", "sk_live_0123456789",
    "ghp_0123456789abcdef0123", "AKIAIOSFODNN7EXAMPLE",
])
def test_what_looks_like_a_key_is_not_shown(key):
    """Whole, or half hidden by a provider."""
    assert secrets.masked(f"Incorrect API key: {key}.").startswith("Incorrect API key: [key]")


def test_a_key_in_a_models_source_reaches_no_prompt_recording_or_database(tmp_path, monkeypatch):
    """Whoever asks for the prompt, and whatever keeps the source."""
    monkeypatch.setenv("SOME_API_KEY", IN_ENVIRONMENT)
    key_file(f"OTHER_API_KEY={IN_FILE}\n")
    keys.learn()
    target = msgspec.structs.replace(simulate.target("t"), source=f'KEYS = "{IN_ENVIRONMENT}", "{IN_FILE}"\n')
    task = Task(target=target, device=simulate.DEVICE, edge=Edge.DRAFT, parent=None, failed=None, best=None,
                lineage=(), nodes=(), seed=1)  # fmt: skip
    asked = prompt.render(task).text
    assert 'KEYS = "[key]", "[key]"' in asked
    kept = codec.dump(target)
    assert IN_ENVIRONMENT not in asked + kept
    assert IN_FILE not in asked + kept


@pytest.mark.filterwarnings("ignore:Accessing the")
async def test_the_address_of_the_run_is_nearer_than_the_files(monkeypatch):
    """The file of keys may name a server; --api-base wins."""
    for name in ("AZURE_API_KEY", "AZURE_API_BASE", "AZURE_API_VERSION"):
        monkeypatch.delenv(name, raising=False)
    key_file(f"AZURE_API_KEY={IN_FILE}\nAZURE_API_BASE=https://mine.example\nAZURE_API_VERSION=2026-01-01\n")
    for base, asked in ((None, "https://mine.example"), ("http://localhost:9/v1", "http://localhost:9/v1")):
        request = await calling.Caller("azure/gpt-4o", api_base=base).request([], "")
        assert request.arguments["api_base"] == asked
        assert request.arguments["api_key"] == IN_FILE


@pytest.mark.parametrize("address", ["http://me:word@host/v1", "https://host/v1?key=abc", "host:80", "ftp://x/", "http://["])
def test_addresses_with_keys_are_refused(address):
    """An address is kept in the database."""
    with pytest.raises(UsageError) as caught:
        check_address(address)
    assert "word" not in str(caught.value).replace("password", "")
    check_address("http://localhost:8000/v1")
    check_address(None)


@pytest.mark.filterwarnings("ignore:Accessing the")
async def test_canary_keys_are_written_nowhere(tmp_path, monkeypatch):
    """Keys of environment and file reach the provider, and neither database, log, prompt, export nor worker."""
    monkeypatch.setenv("OPENAI_API_KEY", IN_ENVIRONMENT)
    key_file(f"ANTHROPIC_API_KEY={IN_FILE}\n")
    workspace = Workspace(tmp_path / ".forge")
    target = msgspec.structs.replace(simulate.target("t"), source=f'KEYS = "{IN_ENVIRONMENT}", "{IN_FILE}"\n')
    both = f"{IN_ENVIRONMENT} {IN_FILE}"
    async with serving() as server:
        with contextlib.closing(Store.open(workspace)) as store:
            import store_fixture as fixture

            session = store.create_session(fixture.options(workspace)).id
            search = Search(SearchConfig(proposers=("m",)), [target])
            ledger = Ledger(store, session, search, max_usd=None, spent_usd=0, rent_usd=lambda: 0.0,
                            log=lambda level, text: None)  # fmt: skip
            for model, header, key in (("openai/m", "Authorization", f"Bearer {IN_ENVIRONMENT}"),
                                       ("anthropic/m", "x-api-key", IN_FILE)):  # fmt: skip
                # twice: the key of the file is known from the first request on
                for kind in ("401", "500", "400", "429", "ok", "ok"):
                    text = f"{both} {{key}}"
                    server.script = lambda number, body, kind=kind, text=text: Play(
                        kind, message=text, text=f"{REPLY}{both}\n"
                    )
                    # Anthropic's without a base of its own would be asked for at the provider
                    proposer = llm.LlmProposer(model, api_base=server.base_for(model), sleep=lambda s: asyncio.sleep(0))
                    proposer.keep_books(ledger)
                    task = Task(target=target, device=simulate.DEVICE, edge=Edge.DRAFT, parent=None, failed=None,
                                best=None, lineage=(), nodes=(), seed=1)  # fmt: skip
                    proposal = await proposer.propose(task)
                    ledger.take(search.start_step("t"), proposal, None)
                    store.event(session, "proposal_failed", {"reason": proposal.failure})
                    assert server.requests[-1]["headers"].get(header) == key
                    sent = str(server.requests[-1]["body"])
                    assert IN_ENVIRONMENT not in sent
                    assert IN_FILE not in sent
                    await proposer.close()
            with contextlib.closing(Reader.open(workspace)) as reader:
                rows = [entry.call for entry in reader.llm_calls(session)]
            assert any("[key]" in row.reply for row in rows)
            assert any("[key]" in row.error for row in rows)
            crash.write_crash_log(RuntimeError(f"with {both}"), ["run", IN_ENVIRONMENT])
            written = [path for path in tmp_path.rglob("*") if path.is_file() and path != keys.path()]
            assert any(path.name.startswith("crash-") for path in written)
            assert any(path == workspace.database for path in written)
            for path in written:
                for canary in (IN_ENVIRONMENT, IN_FILE):
                    assert canary.encode() not in path.read_bytes(), path
    assert not {IN_ENVIRONMENT, IN_FILE} & set(clean_environment().values())
    assert IN_FILE not in os.environ.values()


def test_the_engines_log_has_no_keys(monkeypatch):
    """Tracebacks, messages of libraries and warnings are cleared before they reach standard error."""
    monkeypatch.setenv("OPENAI_API_KEY", IN_ENVIRONMENT)
    code = (
        "import logging, os, warnings\n"
        "from forge_tui.engine import logs\n"
        "logs.keep_keys_out()\n"
        "key = os.environ['OPENAI_API_KEY']\n"
        "logging.getLogger('x').error('said %s', key)\n"
        "warnings.warn('warned ' + key)\n"
        "raise RuntimeError('raised ' + key)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    for wanted in ("ERROR x: said [key]", "warned [key]", "RuntimeError: raised [key]", "Traceback"):
        assert wanted in done.stderr
    assert IN_ENVIRONMENT not in done.stderr
