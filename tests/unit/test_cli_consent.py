"""Nothing of a model goes to another machine before somebody agreed."""

from __future__ import annotations

import json
import socket
import threading

import pytest

from forge_tui.cli import consent, main, output
from forge_tui.core.errors import UsageError
from forge_tui.core.paths import Workspace

REMOTE = "anthropic/claude-x"


@pytest.fixture(autouse=True)
def names(monkeypatch: pytest.MonkeyPatch) -> None:
    """A world of three names; no test asks a real resolver."""
    known = {"localhost": "127.0.0.1", "api.anthropic.com": "203.0.113.7", "both.example": "127.0.0.1"}
    real = socket.getaddrinfo

    def look_up(host, *rest, **more):
        if host in known:
            found = real(known[host], None)
            return found + (real("203.0.113.8", None) if host == "both.example" else [])
        if host.replace(".", "").replace(":", "").isalnum() and not any(c.isalpha() for c in host.split(":")[0]):
            return real(host, None)
        raise socket.gaierror(-2, "unknown")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)


def checked(place: Workspace, *models: str, api_base: str | None = None, **more) -> None:
    """The check with nothing allowed unless a test says so."""
    consent.check(models, api_base, place, **({"allow_remote": False, "local_only": False, "ask": False} | more))


@pytest.mark.parametrize(("model", "api_base", "environment", "host"), [
    ("anthropic/claude-x", None, {}, "api.anthropic.com"),
    ("openai/x", "http://127.0.0.1:8000/v1", {}, "127.0.0.1"),
    ("openai/x", None, {"OPENAI_API_BASE": "http://gate.example:9/v1"}, "gate.example"),
    ("anthropic/x", None, {"ANTHROPIC_BASE_URL": "http://[::1]:9"}, "::1"),
    ("ollama/qwen", None, {}, "localhost"),
    ("ollama/qwen", None, {"OLLAMA_API_BASE": "box.example:11434"}, "box.example"),
    # as LiteLLM does it, measured: variables that it does not read, their order, and its defaults
    ("openai/x", None, {"OPENAI_API_BASE": "http://127.0.0.1:9", "OPENAI_BASE_URL": "http://far.example"},
     "far.example"),
    ("anthropic/x", None, {"ANTHROPIC_API_BASE": "http://127.0.0.1:9", "ANTHROPIC_BASE_URL": "http://far.example"},
     "127.0.0.1"),
    ("mistral/x", None, {"MISTRAL_API_BASE": "http://127.0.0.1:9"}, "api.mistral.ai"),
    ("groq/x", None, {"GROQ_BASE_URL": "http://127.0.0.1:9"}, "api.groq.com"),
    ("odd/x", None, {"ODD_API_BASE": "http://127.0.0.1:9"}, "the provider of odd/x"),
    ("lm_studio/x", None, {}, "api.openai.com"), ("hosted_vllm/x", None, {}, "api.openai.com"),
    ("lm_studio/x", None, {"LM_STUDIO_API_BASE": "http://127.0.0.1:9"}, "127.0.0.1"),
    ("gpt-5", None, {}, "api.openai.com"),
    ("odd/x", None, {}, "the provider of odd/x"),
    ("bare-name", None, {}, "the provider of bare-name"),
])  # fmt: skip
def test_the_host_of_a_model(model, api_base, environment, host):
    """The address of the command line, else of the environment, else the provider's own."""
    assert consent.host_of(model, api_base, environment) == host


@pytest.mark.parametrize(("host", "here"), [
    ("localhost", True), ("127.0.0.1", True), ("::1", True), ("203.0.113.7", False), ("api.anthropic.com", False),
    ("both.example", False), ("nowhere.example", False), ("0.0.0.0", True), ("the provider of odd/x", False),
])  # fmt: skip
def test_this_machine_is_told_from_others(host, here):
    """A name with one address elsewhere is elsewhere, and so is one that nobody knows."""
    assert consent.is_here(host) is here


def test_what_stays_here_needs_nobody(tmp_path):
    """Templates, a person, recordings and a local server are never asked about."""
    place = Workspace(tmp_path)
    checked(place, "templates", "inbox", "replay:s-1", "sim", local_only=True)
    checked(place, "openai/x", api_base="http://localhost:8000/v1", local_only=True)
    assert consent.consented(place) == {}


def test_without_a_terminal_a_flag_is_needed(tmp_path):
    """The sentence names model, host and flag; the flag lets it pass and is not kept for later."""
    place = Workspace(tmp_path)
    with pytest.raises(UsageError, match=f"^{REMOTE} is asked at api.anthropic.com, and nobody has agreed") as caught:
        checked(place, "templates", REMOTE)
    assert "--allow-remote" in caught.value.hint
    checked(place, REMOTE, allow_remote=True)
    assert consent.consented(place) == {}
    with pytest.raises(UsageError, match="which is not this machine"):
        checked(place, REMOTE, local_only=True)
    with pytest.raises(UsageError, match="contradict"):
        checked(place, REMOTE, local_only=True, allow_remote=True)


def test_a_person_is_asked_once_for_a_workspace(tmp_path, monkeypatch, capsys):
    """Yes is kept by host; no, and an end of input, is no; local-only still forbids what was agreed to."""
    place = Workspace(tmp_path / "w")
    for answer in ("n\n", "", "what\n"):
        monkeypatch.setattr("sys.stdin", type("In", (), {"readline": lambda _self, answer=answer: answer})())
        with pytest.raises(UsageError):
            checked(place, REMOTE, ask=True)
    assert not place.root.exists()
    monkeypatch.setattr("sys.stdin", type("In", (), {"readline": lambda _self: "Y\n"})())
    checked(place, REMOTE, ask=True)
    said = capsys.readouterr()
    assert said.out == ""
    assert "api.anthropic.com" in said.err
    assert "Python source" in said.err
    assert list(consent.consented(place)) == ["api.anthropic.com"]
    checked(place, REMOTE)
    with pytest.raises(UsageError, match="nobody has agreed"):
        checked(place, REMOTE, "odd/x")
    with pytest.raises(UsageError):
        checked(place, REMOTE, local_only=True)


def test_a_yes_to_less_is_no_yes_to_a_search(tmp_path, monkeypatch, capsys):
    """Where less is sent, that is what is asked and said, and nothing of it is kept; a yes to a search covers it."""
    place = Workspace(tmp_path / "w")
    with pytest.raises(UsageError, match="nobody has agreed to send it one question"):
        checked(place, REMOTE, only="one question")
    monkeypatch.setattr("sys.stdin", type("In", (), {"readline": lambda _self: "y\n"})())
    checked(place, REMOTE, ask=True, only="one question")
    said = capsys.readouterr().err
    assert "It is sent one question." in said
    assert "only this time" in said
    assert "Python source" not in said
    assert consent.consented(place) == {}
    checked(place, REMOTE, ask=True)
    checked(place, REMOTE, only="one question")


def test_a_name_server_that_hangs_is_no_machine_of_ours(monkeypatch):
    """It is left in time."""
    unheard = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: unheard.wait(20))
    monkeypatch.setattr(consent, "_LOOK_UP_S", 0.05)
    assert not consent.is_here("api.anthropic.com")
    unheard.set()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"hosts": 3}', json.dumps({"hosts": ["api.anthropic.com"]})])
def test_a_damaged_file_is_no_consent(tmp_path, text):
    """What cannot be read counts as nothing."""
    (tmp_path / "consent.json").write_text(text)
    with pytest.raises(UsageError):
        checked(Workspace(tmp_path), REMOTE)


def test_consent_is_listed_and_taken_back(tmp_path, monkeypatch, capsys):
    """What was agreed to is shown with its time; withdrawn it is asked for again; a host nobody agreed to is said."""
    monkeypatch.setattr(output, "_written", False)
    monkeypatch.chdir(tmp_path)
    place = Workspace(tmp_path / ".forge")
    monkeypatch.setattr("sys.stdin", type("In", (), {"readline": lambda _self: "y\n"})())
    checked(place, REMOTE, ask=True)
    assert main.main(["consent"]) == 0
    assert capsys.readouterr().out.startswith("api.anthropic.com  since 20")
    assert main.main(["consent", "--withdraw", "api.openai.com"]) == 2
    assert "Agreed to are: api.anthropic.com." in capsys.readouterr().err
    checked(place, REMOTE)
    assert main.main(["consent", "--withdraw", "api.anthropic.com", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["hosts"] == {}
    with pytest.raises(UsageError, match="nobody has agreed"):
        checked(place, REMOTE)
