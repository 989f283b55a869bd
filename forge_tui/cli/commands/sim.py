"""What `run --device sim:FILE` means: the landscape, the model in it, and who may write kernels for it."""

from __future__ import annotations

import difflib
import hashlib
from pathlib import Path

from forge_tui.core import landscapes
from forge_tui.core.errors import UsageError
from forge_tui.core.landscapes import PREFIX
from forge_tui.core.paths import Workspace, workspace_for
from forge_tui.core.records import ModelSpec
from forge_tui.models.spec import ModelRequest
from forge_tui.search.player import PLAYER

_SUFFIX = ".landscape"


def device_of(model: str | None, device: str) -> tuple[str | None, str]:
    """Model and device, where `sim:FILE` may stand in the place of either.

    Raises:
        UsageError: neither a model nor a landscape is named.
    """
    if model is not None and model.startswith(PREFIX) and device == "auto":
        return None, model
    if model is None and not device.startswith(PREFIX):
        raise UsageError("Missing argument 'MODEL'.", "See forge-tui run --help.")
    return model, device


def packaged() -> dict[str, Path]:
    """Landscapes that come with the program, by name."""
    folder = Path(__file__).resolve().parents[2] / "examples" / "landscapes"
    return {path.stem: path for path in sorted(folder.glob(f"*{_SUFFIX}"))}


def locate_landscape(
    model: str | None, device: str, request: ModelRequest, workspace: str | None
) -> tuple[ModelSpec, str, Workspace]:
    """What stands for the model, with the file as its path; the device by a short name; the workspace.

    Raises:
        UsageError: there is no such landscape, it is damaged or newer, or the model is not the one recorded.
    """
    name = device.removeprefix(PREFIX)
    path = Path(name).expanduser()
    if not name or not path.is_file():
        known = packaged()
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"Did you mean {PREFIX}{close[0]}? " if close else ""
            hint += f"Name a file that forge-tui record wrote, or one of {', '.join(known)}."
            raise UsageError(f"There is no landscape {name or PREFIX}.", hint)
        path = known[name]
    path = path.resolve()
    found = landscapes.read(path)
    if model is not None and model.rpartition("/")[2] != found.model:
        raise UsageError(f"{device} was recorded of {found.model}, not of {model}.", "Leave the model out.")
    if request != ModelRequest():
        raise UsageError("A recorded landscape has its own model and inputs.",
                         "Leave out what describes them (--dtype, --inputs and the like).")  # fmt: skip
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    spec = ModelSpec(text=found.model, path=str(path), content_hash=digest)
    return spec, f"{PREFIX}{path.stem}", workspace_for(None, workspace)


def check_writers(models: list[str], *, starts: bool, on_sim: bool, pace: float) -> list[str]:
    """Who writes kernels beside the templates.

    Raises:
        UsageError: somebody who knows nothing of recorded kernels, or the player without a landscape.
    """
    if not on_sim:
        if PLAYER in models:
            raise UsageError(f"--model {PLAYER} plays a model on recorded landscapes alone.",
                             "Name --device sim:FILE, or another model.")  # fmt: skip
        if pace:
            raise UsageError("--pace is for recorded landscapes.", "Leave it out, or name --device sim:FILE.")
        return models
    others = [name for name in models if name != PLAYER]
    if others or starts:
        what = f"--model {others[0]}" if others else "--start"
        raise UsageError(f"{what} brings kernels that no recorded landscape knows.",
                         f"Leave it out; --model {PLAYER} plays a model.")  # fmt: skip
    return models or [PLAYER]
