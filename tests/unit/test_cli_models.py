"""`models`: the table of models, and lists asked of servers after consent."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fault_server import FaultServer, Play, always, in_background

from forge_tui.cli import main, output, settings, waiting
from forge_tui.core.paths import Workspace

KEY = "sk-test-0123456789abcdef"
Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """An empty workspace of the current folder, no settings, and one key."""
    monkeypatch.setattr(output, "_written", False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    for name in [*os.environ]:
        if name.startswith("FORGE_") or name.endswith(("_API_KEY", "_AUTH_TOKEN", "_API_BASE", "_BASE_URL")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    found = Workspace(tmp_path / ".forge")
    for file in settings.files(found):
        file.parent.mkdir(parents=True)
    return found


@pytest.fixture(scope="module")
def running() -> Iterator[FaultServer]:
    """One server for all."""
    with in_background() as made:
        yield made


@pytest.fixture
def server(running: FaultServer) -> FaultServer:
    """As it was made."""
    running.script, running.models = always(Play()), [{"id": "gpt-4o"}, {"id": "org/new", "max_model_len": 9000}]
    running.requests.clear()
    running.asked.clear()
    return running


def asked(*arguments: str, capsys: Captured, code: int = 0) -> dict[str, Any]:
    """The document of `--json`."""
    output._written = False
    assert main.main(["models", *arguments, "--json"]) == code
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_models_are_found_by_words(capsys: Captured) -> None:
    """The table has price, sizes, marks and key; nobody is asked."""
    assert main.main(["models", "4O mini", "--provider", "openai", "--all"]) == 0
    found = capsys.readouterr()
    head, _, *rows = found.out.splitlines()
    assert head.split() == ["model", "$", "in", "out", "cached", "context", "output", "does", "key", "retires"]
    (row,) = [row.split() for row in rows if row.startswith("openai/gpt-4o-mini ")]
    assert row[1:8] == ["0.15", "0.60", "0.075", "128k", "16k", "tc-", "yes"]
    assert "$ per million tokens. does: t tools, c caching, r reasoning" in found.err
    assert main.main(["models", "no-such-model-anywhere"]) == 0
    assert capsys.readouterr().err == "No model has that in its name.\n"


def test_the_document_has_every_source(capsys: Captured) -> None:
    """All of them, whatever the table would show."""
    found = asked("claude", "--provider", "anthropic", capsys=capsys)["models"]
    assert len(found) > 10
    assert {model["key"] for model in found} == {"no"}
    assert all(set(model["capabilities"]["sources"]) >= {"temperature", "caching"} for model in found)
    assert len(asked(capsys=capsys)["models"]) > 2000


@pytest.mark.parametrize(("arguments", "said"), [
    (["--provider", "anthropc"], "LiteLLM has no provider 'anthropc'. Did you mean anthropic?"),
    (["--api-base", "http://127.0.0.1:9"], "--api-base goes with --live."),
    (["--live"], "Nobody is named to be asked. Say --provider NAME, such as anthropic, or --api-base URL."),
    (["--live", "--api-base", "here"], "--api-base is not an address."),
    (["--live", "--api-base", "http://u:hunter2@h/"], "--api-base holds a password or a key"),
    (["--live", "--provider", "nobody"], "LiteLLM has no provider 'nobody'."),
])  # fmt: skip
def test_a_wrong_command_line_is_one_sentence(arguments, said, capsys: Captured) -> None:
    """With exit code 2; no password is repeated."""
    assert main.main(["models", *arguments]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1
    assert "hunter2" not in err


def test_a_server_of_ones_own_is_asked(server: FaultServer, capsys: Captured) -> None:
    """Its models come with what the table knows of them; words filter them as well."""
    found = asked("--live", "--api-base", server.base, capsys=capsys)
    assert [(m["name"], m["api_base"], m["key"], m["capabilities"]["context"]) for m in found["models"]] == [
        ("openai/gpt-4o", server.base, "yes", 128_000), ("openai/org/new", server.base, "yes", 9000)]  # fmt: skip
    assert found["models"][0]["listed_by"] == f"{server.base}/v1/models"
    (only,) = asked("new", "--live", "--provider", "hosted_vllm", "--api-base", server.base, capsys=capsys)["models"]
    assert (only["name"], only["key"]) == ("hosted_vllm/org/new", "needless")
    assert main.main(["models", "--live", "--api-base", server.base]) == 0
    assert "openai/org/new     -      -       -       9k       ?  ???   yes" in capsys.readouterr().out


def test_addresses_of_the_settings_are_asked(server: FaultServer, place: Workspace, capsys: Captured) -> None:
    """All of them at once; one that fails is a sentence and the exit code, the others are listed."""
    settings.files(place)[0].write_text(
        f'model = ["hosted_vllm/mine"]\n[models."hosted_vllm/mine"]\napi_base = "{server.base}/v1"\nprice = [1, 2]\n'
        f'[models."openai/other"]\napi_base = "http://127.0.0.1:9/v1"\n'
    )  # fmt: skip
    found = asked("--live", capsys=capsys, code=4)
    assert {m["name"] for m in found["models"]} == {"hosted_vllm/gpt-4o", "hosted_vllm/org/new"}
    (fault,) = found["faults"]
    assert fault["what"].startswith("The server at 127.0.0.1:9 cannot be reached")
    assert fault["exit_code"] == 4
    own = asked(capsys=capsys)["models"][:2]
    assert [(m["name"], m["listed_by"], m["input_usd"]) for m in own] == [
        ("openai/other", "settings", None), ("hosted_vllm/mine", "settings", 1.0)]  # fmt: skip


def test_nobody_elsewhere_is_asked_before_somebody_agreed(place: Workspace, capsys: Captured) -> None:
    """The sentence says what is sent, which is less than a search sends; a yes to it is not kept."""
    assert main.main(["models", "--live", "--provider", "openai"]) == 2
    assert ("openai/* is asked at api.openai.com, and nobody has agreed to send it the question which models it has, "
            "with the provider's key. Say --allow-remote") in capsys.readouterr().err  # fmt: skip
    assert main.main(["models", "--live", "--provider", "openai", "--local-only"]) == 2
    assert "which is not this machine" in capsys.readouterr().err
    assert not (place.root / "consent.json").exists()


@pytest.mark.parametrize(("play", "code"), [(Play(kind="401"), 3), (Play(kind="500"), 4), (Play(kind="html"), 4)])
def test_a_fault_is_the_exit_code(server: FaultServer, play: Play, code: int, capsys: Captured) -> None:
    """One sentence on stderr, nothing on stdout."""
    server.script = always(play)
    assert main.main(["models", "--live", "--api-base", server.base]) == code
    found = capsys.readouterr()
    assert found.out == ""
    assert found.err.startswith("forge-tui: The server at 127.0.0.1:")
    assert found.err.count("\n") == 1
    assert KEY not in found.err


def test_names_and_columns_fit_the_terminal(server: FaultServer, capsys: Captured, monkeypatch) -> None:
    """In a narrow one columns are left out, and names, which are to be typed, are not cut."""
    server.models = [{"id": "a" * 30}, {"id": "b\x1b[2J"}, {"id": "模型"}, {"id": "x y"}]
    monkeypatch.setattr(output, "terminal_width", lambda: 50)
    assert main.main(["models", "--live", "--api-base", server.base]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 50
    assert lines[0].split() == ["model", "$", "in", "key"]
    assert [line.split("  ")[0] for line in lines[2:]] == [f"openai/{'a' * 30}", "openai/x y", "openai/模型"]


def test_a_terminal_is_shown_a_screenful(capsys: Captured, monkeypatch) -> None:
    """Unless a limit is named; in a pipe there is none."""
    monkeypatch.setattr(output, "terminal_width", lambda: 100)
    assert main.main(["models"]) == 0
    found = capsys.readouterr()
    assert len(found.out.splitlines()) == 42
    assert "more models: name words of it, or say --limit 0." in found.err
    assert main.main(["models", "--limit", "3"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 5


def interrupted(server: FaultServer, *arguments: str, before: str = "") -> tuple[int, float, str]:
    """Exit code, seconds and stderr of a command that is interrupted when the server is asked, or after a moment."""
    code = ("import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
            f"{before}\nfrom forge_tui.cli.main import main; sys.exit(main({list(arguments)!r}))")  # fmt: skip
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + (0.7 if before else 30.0)
    while not server.requests and process.poll() is None and time.monotonic() < until:
        time.sleep(0.02)
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    err = process.communicate(timeout=30)[1]
    return process.returncode, time.monotonic() - began, err


#: a name server that does not answer, which no signal ends
HANGING = "import socket, time; socket.getaddrinfo = lambda *a, **k: time.sleep(30)"


@pytest.mark.parametrize(("arguments", "before"), [
    (["models", "--live", "--api-base", "SERVER"], ""),
    (["models", "--live", "--provider", "openai", "--allow-remote"], HANGING),
    (["models", "--live", "--provider", "openai", "--allow-remote"],
     HANGING + "; from forge_tui.cli import consent; consent._LOOK_UP_S = 0.1"),
    # in the middle of importing LiteLLM
    (["doctor", "--llm", "--model", "openai/m", "--api-base", "SERVER"], "pass"),
])  # fmt: skip
def test_ctrl_c_ends_it_at_once(server: FaultServer, arguments, before) -> None:
    """Whoever hangs, a server or a name server, is left behind."""
    server.script = always(Play(kind="slow"))
    code, seconds, err = interrupted(server, *[a.replace("SERVER", server.base) for a in arguments], before=before)
    assert (code, err.splitlines()[-1]) == (130, "forge-tui: Interrupted.")
    # a second, and what a busy machine takes to schedule it
    assert seconds < 3


def test_work_in_threads_ends_or_is_left(monkeypatch) -> None:
    """A result, an exception, or a limit; a thread that hangs does not keep the loop from closing."""
    import asyncio
    import threading

    assert waiting.in_thread(lambda: 3, 5) == 3
    with pytest.raises(ZeroDivisionError):
        waiting.in_thread(lambda: 1 // 0, 5)
    held = threading.Event()
    with pytest.raises(TimeoutError):
        waiting.in_thread(held.wait, 0.01)

    async def main_() -> str:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await asyncio.to_thread(held.wait)
        return "left"

    assert waiting.run(main_()) == "left"
    held.set()
