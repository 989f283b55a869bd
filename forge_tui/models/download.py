"""Configurations of the Hugging Face hub, brought into its cache by a process that alone has the token.

`python -m forge_tui.models.download` reads one request as JSON from stdin and answers on stdout.
"""

from __future__ import annotations

import errno
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

from forge_tui.core.errors import EnvironmentFault, ForgeError, UsageError
from forge_tui.models.hf import config as hf_config
from forge_tui.models.spec import HubModel
from forge_tui.processes.child import raise_reply
from forge_tui.processes.environment import clean_environment
from forge_tui.processes.wire import encode_error

LIMIT_S = 180.0
_DISK = (errno.ENOSPC, errno.EROFS, errno.EDQUOT)
_HUB_PREFIXES = ("HF_", "HUGGING_FACE_", "HUGGINGFACE")
_LOG_IN = "Set HF_TOKEN, or log in with: hf auth login"


def fetch(model: HubModel, *, remote_code: bool = False, limit_s: float = LIMIT_S) -> Path:
    """Download a model's configuration in a process of its own; its place in the hub's cache.

    With `remote_code` the Python files that the model is written in come along. No weights are downloaded.

    Raises:
        UsageError: there is no such model, revision or folder, or the token may not see it.
        EnvironmentFault: no network, or huggingface_hub is not installed.
    """
    own = {name: value for name, value in os.environ.items() if name.startswith(_HUB_PREFIXES)}
    env = clean_environment(own | {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1"})
    request = {"repository": model.repository, "folder": model.folder, "revision": model.revision,
               "remote_code": remote_code}  # fmt: skip
    try:
        done = subprocess.run(
            # -P: a file of the current folder must not be imported where the token is
            [sys.executable, "-P", "-m", "forge_tui.models.download"], input=json.dumps(request), capture_output=True,
            text=True, env=env, timeout=limit_s, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise EnvironmentFault(
            f"The Hugging Face hub did not give {model.repository} within {limit_s:g} s.", "Try again later."
        ) from error
    try:
        answer = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError) as error:
        said = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise EnvironmentFault(f"Downloading {model.repository} failed: {said[0]}.") from error
    if "error" in answer:
        raise_reply(answer["error"])
    return Path(answer["config"])


def download(request: dict[str, Any]) -> Path:
    """What `fetch` promises, in the process that has the token."""
    repository, folder, revision = request["repository"], request["folder"], request["revision"]
    try:
        hub = importlib.import_module("huggingface_hub")
    except ImportError as error:
        raise EnvironmentFault("huggingface_hub is not installed.", "pip install 'forge-tui[hf]'") from error
    wanted = "/".join(filter(None, (folder, hf_config.FILE)))
    # of folders that have no configuration the name alone is needed, to say what there is
    patterns = [wanted, hf_config.FILE, hf_config.PIPELINE, f"*/{hf_config.FILE}"]
    try:
        place = _snapshot(hub, repository, revision, patterns + (["*.py"] if request["remote_code"] else []))
        config = place / wanted
        if not config.is_file():
            hf_config.locate(place / folder, "/".join(filter(None, (f"hf:{repository}", folder))))
        if request["remote_code"]:
            for other in _other_repositories(hf_config.read(config)):
                _snapshot(hub, other, None, ["*.py"])
    except ForgeError:
        raise
    except Exception as error:  # noqa: BLE001 - the hub's client raises whatever its HTTP library does
        _explain(error, repository, revision)
    return config


def _snapshot(hub: Any, repository: str, revision: str | None, patterns: list[str]) -> Path:
    return Path(hub.snapshot_download(repository, revision=revision, allow_patterns=patterns))


def _other_repositories(config: dict[str, Any]) -> list[str]:
    """Repositories whose Python files a configuration names, as in `org/code--modeling.Model`."""
    found: set[str] = set()
    references = config.get("auto_map")
    for value in references.values() if isinstance(references, dict) else ():
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str) and "--" in text:
                found.add(text.partition("--")[0])
    return sorted(found)


def _explain(error: Exception, repository: str, revision: str | None) -> NoReturn:
    names = {kind.__name__ for kind in type(error).__mro__}
    if "GatedRepoError" in names:
        raise UsageError(
            f"{repository} is only for those who accepted its terms, and this token has not.",
            f"Accept them on the model's page. {_LOG_IN}",
        ) from error
    if "RevisionNotFoundError" in names:
        raise UsageError(f"{repository} has no revision {revision}.", "Check what stands behind the @.") from error
    if names & {"RepositoryNotFoundError", "HFValidationError"}:
        raise UsageError(
            f"There is no folder {repository} here, and no model of that name that the Hugging Face hub shows.",
            f"Check the name. Where it is private: {_LOG_IN}",
        ) from error
    if "DisabledRepoError" in names:
        raise UsageError(f"The Hugging Face hub has disabled {repository}.") from error
    if isinstance(error, PermissionError) or (isinstance(error, OSError) and error.errno in _DISK):
        raise EnvironmentFault(
            f"The hub's cache cannot be written: {error}.", "Set HF_HOME to another folder."
        ) from error
    causes = _modules(_chain(error))
    if names & {"LocalEntryNotFoundError", "OfflineModeIsEnabled"} or causes & {"httpx", "httpcore", "requests"}:
        status = getattr(getattr(error, "response", None), "status_code", None)
        why = f"it answered {status}" if status else "there is no network, or it is down"
        raise EnvironmentFault(
            f"{repository} is no folder here, and the Hugging Face hub could not be asked: {why}.",
            "Check the name, and the network; or name a folder with its config.json.",
        ) from error
    raise EnvironmentFault(f"Downloading {repository} failed: {type(error).__name__}: {error}.") from error


def _chain(error: BaseException) -> Iterable[BaseException]:
    seen: set[int] = set()
    step: BaseException | None = error
    while step is not None and id(step) not in seen:
        seen.add(id(step))
        yield step
        step = step.__cause__ or step.__context__


def _modules(errors: Iterable[BaseException]) -> set[str]:
    return {kind.__module__.partition(".")[0] for error in errors for kind in type(error).__mro__}


def main() -> None:
    """Answer one request."""
    try:
        answer: dict[str, Any] = {"config": str(download(json.load(sys.stdin)))}
    except Exception as error:  # noqa: BLE001 - every failure is reported to the caller
        answer = encode_error(error)
    sys.stdout.write("\n" + json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
