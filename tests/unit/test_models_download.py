"""Models of the hub: one process has the token, the rest see the cache; without a network it is one sentence."""

import asyncio
import hashlib
import json
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from forge_tui.cli.commands.run import locate
from forge_tui.core.errors import EnvironmentFault, ExitCode, UsageError
from forge_tui.models.download import fetch
from forge_tui.models.spec import HubModel, ModelRequest, hub_model
from forge_tui.processes.child import WorkerProcess
from forge_tui.processes.environment import clean_environment

pytest.importorskip("huggingface_hub")
TOKEN = "hf_forgetestforgetestforgetestforge"
COMMIT = "c" * 40
LLAMA = {"model_type": "llama", "vocab_size": 20, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1,
         "num_attention_heads": 2}  # fmt: skip
REPOSITORIES = {
    "org/model": {"config.json": json.dumps(LLAMA), "model.safetensors": "weights", "modeling_x.py": "x = 1\n"},
    "org/code": {"modeling.py": "y = 2\n", "model.safetensors": "weights"},
    "org/remote": {"config.json": json.dumps(LLAMA | {"auto_map": {"AutoModel": "org/code--modeling.M"}}),
                   "tokenizer.py": "z = 3\n"},
    "org/pipeline": {"model_index.json": json.dumps({"_class_name": "XPipeline"}), "vae/config.json": json.dumps(
        {"_class_name": "AutoencoderKL"}), "vae/model.safetensors": "weights"},
    "org/empty": {"README.md": "nothing"},
}  # fmt: skip


class Hub(BaseHTTPRequestHandler):
    """As much of the hub as its client asks of it; everything wants the token."""

    asked: ClassVar[list[str]] = []
    status = 200

    def log_message(self, *arguments):
        """Nothing on stderr."""

    def do_HEAD(self):
        """The description of a file."""
        self.answer(body=False)

    def do_GET(self):
        """A file, or the list of files."""
        self.answer(body=True)

    def answer(self, *, body: bool):
        """Anything the client may ask."""
        path = self.path.partition("?")[0]
        type(self).asked.append(path)
        if type(self).status != 200:
            return self.send(type(self).status, b"", {}, body)
        if path.startswith("/api/models/"):
            name = "/".join(path.split("/")[3:5])
            missing = None if name in REPOSITORIES else "RepoNotFound"
        else:
            name = "/".join(path.split("/")[1:3])
            missing = None if name in REPOSITORIES else "RepoNotFound"
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            code = "GatedRepo" if name == "org/pipeline" else "RepoNotFound"
            return self.send(403 if code == "GatedRepo" else 401, b"", {"X-Error-Code": code}, body)
        if missing:
            return self.send(404, b"", {"X-Error-Code": missing}, body)
        files = REPOSITORIES[name]
        if path.startswith("/api/models/"):
            if path.split("/")[5:6] == ["revision"] and path.split("/")[6] not in ("main", COMMIT):
                return self.send(404, b"", {"X-Error-Code": "RevisionNotFound"}, body)
            entries = [{"type": "file", "path": f, "rfilename": f, "size": len(c), "oid": "0" * 40}
                       for f, c in files.items()]  # fmt: skip
            listed = entries if "/tree/" in path else {"id": name, "sha": COMMIT, "siblings": entries}
            return self.send(200, json.dumps(listed).encode(), {"Content-Type": "application/json"}, body)
        file = path.split("/", 5)[5]
        if file not in files:
            return self.send(404, b"", {"X-Error-Code": "EntryNotFound"}, body)
        content = files[file].encode()
        etag = hashlib.sha1(content).hexdigest()
        return self.send(200, content, {"X-Repo-Commit": COMMIT, "ETag": f'"{etag}"'}, body)

    def send(self, status: int, content: bytes, headers: dict[str, str], body: bool):
        """One answer."""
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            self.wfile.write(content)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A hub on this machine that wants the token, and an empty cache."""
    monkeypatch.setattr(Hub, "asked", [])
    monkeypatch.setattr(Hub, "status", 200)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    for name in [n for n in os.environ if n.startswith(("HF_", "HUGGING")) or n.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.chdir(tmp_path)
    yield Hub
    server.shutdown()
    server.server_close()
    thread.join()


def test_names():
    """What names a model of the hub, and what names a folder here."""
    assert hub_model("hf:org/name") == HubModel("org/name")
    assert hub_model("hf:org/name/vae") == HubModel("org/name", "vae")
    assert hub_model("hf:org/name/a/b@v1.0") == HubModel("org/name", "a/b", "v1.0")
    for text in ("net.py", "hf:", "hf:name", "hf:/org/name", "hf:./org/name", "hf:../x", "hf:org/../x", "hf:~/x/y",
                 "hf:org/name.json", "org/name", "hf:org/name@", "hf:org//x", "hf:-x/y", "hf:org/na me"):  # fmt: skip
        assert hub_model(text) is None, text


def test_a_folder_here_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """What exists as typed is no model of the hub."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org" / "name").mkdir(parents=True)
    assert hub_model("hf:org/name") is None


def test_only_the_configuration_is_downloaded(hub, tmp_path: Path):
    """The token is shown to the hub; no weights and no Python files come."""
    config = fetch(HubModel("org/model"))
    assert json.loads(config.read_text()) == LLAMA
    assert config.is_relative_to(tmp_path / "hub")
    assert [p.name for p in config.parent.iterdir()] == ["config.json"]
    assert not any("safetensors" in path for path in hub.asked)


def test_python_files_only_when_trusted(hub):
    """With remote code the Python files come along, also of the repository that the configuration names."""
    assert sorted(p.name for p in fetch(HubModel("org/remote")).parent.iterdir()) == ["config.json"]
    assert not any("org/code" in path for path in hub.asked)
    config = fetch(HubModel("org/remote"), remote_code=True)
    assert sorted(p.name for p in config.parent.iterdir()) == ["config.json", "tokenizer.py"]
    other = config.parents[3] / "models--org--code" / "snapshots" / COMMIT
    assert [p.name for p in other.iterdir()] == ["modeling.py"]


def test_parts_of_a_pipeline(hub):
    """A pipeline's folders are named; one of them is a model."""
    with pytest.raises(UsageError, match=r"is a pipeline of several models\. Name one of them: hf:org/pipeline/vae\."):
        fetch(HubModel("org/pipeline"))
    config = fetch(HubModel("org/pipeline", "vae"))
    assert json.loads(config.read_text()) == {"_class_name": "AutoencoderKL"}


def test_the_cache_serves_without_a_network(hub, monkeypatch: pytest.MonkeyPatch):
    """What was downloaded once is found when the hub is away."""
    first = fetch(HubModel("org/model"))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert fetch(HubModel("org/model")) == first
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert fetch(HubModel("org/model")) == first


def test_sentences(hub, monkeypatch: pytest.MonkeyPatch):
    """Unknown names, revisions and folders, a missing token, and a hub that is down."""
    with pytest.raises(UsageError, match="no model of that name that the Hugging Face hub shows"):
        fetch(HubModel("org/nothing"))
    with pytest.raises(UsageError, match=r"org/model has no revision v9\."):
        fetch(HubModel("org/model", revision="v9"))
    with pytest.raises(UsageError, match=r"has no config\.json"):
        fetch(HubModel("org/empty"))
    with pytest.raises(UsageError, match=r"has no config\.json"):
        fetch(HubModel("org/model", "vae"))
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(UsageError, match="Where it is private: Set HF_TOKEN"):
        fetch(HubModel("org/remote"))
    with pytest.raises(UsageError, match="only for those who accepted its terms"):
        fetch(HubModel("org/pipeline", "vae"))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(EnvironmentFault, match="could not be asked: there is no network, or it is down") as caught:
        fetch(HubModel("org/other"))
    assert caught.value.exit_code == ExitCode.ENVIRONMENT


def test_a_hub_that_hangs(hub, monkeypatch: pytest.MonkeyPatch):
    """A hub that does not answer in time is one sentence, and no process stays."""
    monkeypatch.setattr(Hub, "answer", lambda self, *, body: threading.Event().wait(1.5))
    with pytest.raises(EnvironmentFault, match=r"did not give org/model within 1 s"):
        fetch(HubModel("org/model"), limit_s=1.0)


def test_files_of_the_current_folder_are_not_imported(hub, tmp_path: Path):
    """A file named like a library does not get at the token."""
    (tmp_path / "huggingface_hub.py").write_text("import pathlib\npathlib.Path('stolen').write_text('x')\n")
    (tmp_path / "json.py").write_text("raise SystemExit('wrong json')\n")
    fetch(HubModel("org/model"))
    assert not (tmp_path / "stolen").exists()


def test_the_command_line_downloads_and_workers_do_not_see_the_token(hub, tmp_path: Path, capsys):
    """`locate` gives a spec of the cached configuration, from which a worker without token or network profiles."""
    pytest.importorskip("transformers")
    spec, device, place = locate("hf:org/model", "cpu", ModelRequest(length=5, batch=2), None)
    assert (spec.text, device, place.root) == ("hf:org/model", "cpu", tmp_path / ".forge")
    assert spec.path.startswith(str(tmp_path / "hub"))
    assert (spec.hf.batch, spec.hf.length) == (2, 5)
    out, err = capsys.readouterr()
    assert (out, err) == ("", "Looking for org/model on the Hugging Face hub ...\n")
    asked = len(hub.asked)

    env = clean_environment()
    assert TOKEN not in env.values()
    assert "HF_TOKEN" not in env
    assert env["HF_HOME"] == str(tmp_path / "hub")

    async def worker():
        import msgspec

        process = WorkerProcess("forge_tui.profiler.worker", tmp_path / "worker.log", {"OMP_NUM_THREADS": "1"})
        try:
            await process.start()
            seen = Path(f"/proc/{process.pid}/environ").read_bytes()
            reply = await process.request(
                "profile", 120, spec=msgspec.to_builtins(spec), device="cpu", threads=1, repeats=1,
                artifacts=str(tmp_path / "captures"),
            )  # fmt: skip
        finally:
            await process.stop()
        return seen, reply

    (tmp_path / "captures").mkdir()
    seen, reply = asyncio.run(worker())
    assert TOKEN.encode() not in seen
    assert [p["name"] for p in reply["profile"]["phases"]] == ["prefill", "decode"]
    assert len(hub.asked) == asked
