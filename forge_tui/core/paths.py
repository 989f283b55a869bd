"""Where things live: the workspace of a model, and the user's XDG folders."""

from __future__ import annotations

import errno
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from forge_tui.core.errors import StoreError, UsageError


@dataclass(frozen=True, slots=True)
class Workspace:
    """One folder with one SQLite file and content-addressed artifacts."""

    root: Path

    @property
    def database(self) -> Path:
        """The SQLite file."""
        return self.root / "forge.db"

    @property
    def artifacts(self) -> Path:
        """Captured inputs and built kernels, by content."""
        return self.root / "artifacts"

    @property
    def builds(self) -> Path:
        """Built kernels by key."""
        return self.artifacts / "builds"

    @property
    def captures(self) -> Path:
        """Captured inputs of targets."""
        return self.artifacts / "captures"

    @property
    def logs(self) -> Path:
        """Logs of engines and workers."""
        return self.root / "logs"

    def socket(self, session: str) -> Path:
        """The engine's control socket; in a short folder where the path would pass the system's 107 bytes."""
        path = self.root / f"engine-{session}.sock"
        if len(os.fsencode(path)) <= 100:
            return path
        folder = Path(tempfile.gettempdir()) / f"forge-tui-{os.getuid()}"
        return folder / f"{abs(hash_path(self.root)) % 10**10}-{session}.sock"

    def prepare(self) -> None:
        """Make the folders.

        Raises:
            StoreError: the folder cannot be written.
        """
        try:
            for folder in (self.root, self.builds, self.captures, self.logs):
                folder.mkdir(parents=True, exist_ok=True)
            probe = self.root / f".write-{os.getpid()}"
            try:
                probe.write_bytes(b"x")
            finally:
                probe.unlink(missing_ok=True)
            ignore = self.root / ".gitignore"
            if not ignore.exists():
                ignore.write_text("*\n")
        except OSError as error:
            raise StoreError(
                f"The workspace {self.root} cannot be written: {error.strerror or error}.",
                "Name another folder with --workspace, or free space there.",
            ) from error


def hash_path(path: Path) -> int:
    """A stable number for a path (`hash()` differs between processes)."""
    import hashlib

    return int.from_bytes(hashlib.sha256(os.fsencode(path.resolve())).digest()[:8], "big")


def workspace_for(model_path: str | None, chosen: str | None) -> Workspace:
    """`--workspace`, else `.forge/` beside the model file, else in the current folder.

    Raises:
        UsageError: the path leads in a circle, or names a user whom nobody knows; the current folder is gone.
    """
    try:
        if chosen:
            return Workspace(Path(chosen).expanduser().resolve())
        if model_path:
            return Workspace(Path(model_path).resolve().parent / ".forge")
        return Workspace(Path.cwd() / ".forge")
    except FileNotFoundError as error:
        raise UsageError("The current folder is no longer there.", "Change to another one.") from error
    except (OSError, RuntimeError, ValueError) as error:
        # a circle of links is a RuntimeError until Python 3.13
        circle = getattr(error, "errno", 0) == errno.ELOOP or "loop" in str(error)
        why = "its links lead in a circle" if circle else str(getattr(error, "strerror", None) or error).rstrip(".")
        what = f"The workspace {chosen or model_path or '.'} cannot be found: {why}."
        raise UsageError(what, "Name another folder with --workspace.") from error


def cache_root() -> Path:
    """Where facts about the machine are kept for all workspaces: `$XDG_CACHE_HOME/forge-tui`."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base.startswith("/") else Path.home() / ".cache") / "forge-tui"


def scratch_root() -> Path:
    """A folder for short-lived big files: shared memory where there is some, else the temporary folder."""
    shm = Path("/dev/shm")  # noqa: S108 - candidates' outputs pass through here, private folders are made below
    if shm.is_dir() and os.access(shm, os.W_OK):
        return shm
    return Path(tempfile.gettempdir())
