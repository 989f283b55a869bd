"""The control socket, over a real Unix socket."""

import asyncio
import stat

import pytest

from forge_tui.core.errors import EnvironmentFault
from forge_tui.core.paths import Workspace
from forge_tui.engine.control import ControlServer
from forge_tui.processes.control import send


async def test_a_command_reaches_the_engine_and_its_answer_comes_back(tmp_path):
    """The command's fields arrive, the answer returns, the socket is private, and stop removes it."""
    seen = []
    server = ControlServer(tmp_path / "e.sock", {"stop": lambda m: seen.append(m) or {"state": "ending"}})
    await server.start()
    assert stat.S_IMODE((tmp_path / "e.sock").stat().st_mode) == 0o600
    answer = await asyncio.to_thread(send, tmp_path / "e.sock", "stop", why="test")
    await server.stop()
    assert answer == {"ok": True, "state": "ending"}
    assert seen == [{"op": "stop", "why": "test"}]
    assert not (tmp_path / "e.sock").exists()


@pytest.mark.parametrize("line", [b"\n", b"not json\n", b"[1]\n", b'{"op": "fly"}\n', b'{"no": 1}\n'])
async def test_nonsense_is_answered_with_what_is_known(tmp_path, line):
    """Whatever comes over the socket gets one JSON answer and does not end the server."""
    server = ControlServer(tmp_path / "e.sock", {"status": lambda _: {}})
    await server.start()
    for _ in range(2):
        reader, writer = await asyncio.open_unix_connection(str(tmp_path / "e.sock"))
        writer.write(line)
        answer = await reader.readline()
        writer.close()
        assert b"it knows status" in answer
    await server.stop()


def test_no_engine_is_said_in_a_sentence(tmp_path):
    """A socket that is not there is an environment fault that names the way on."""
    with pytest.raises(EnvironmentFault, match="No engine answers") as caught:
        send(tmp_path / "none.sock", "stop")
    assert "forge-tui resume" in caught.value.hint


def test_a_long_workspace_path_gets_a_short_socket(tmp_path):
    """Unix sockets take 107 bytes; a deep workspace still gets one, and always the same."""
    deep = Workspace(tmp_path / ("d" * 120) / ".forge")
    assert len(str(deep.socket("tiny-llm-1"))) < 108
    assert deep.socket("tiny-llm-1") == Workspace(deep.root).socket("tiny-llm-1")
    assert deep.socket("tiny-llm-1") != deep.socket("tiny-llm-2")
