"""Options that go with a model's name, from text to values."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator
from pathlib import Path

from forge_tui.core.errors import UsageError

#: floating dtypes that a model may be moved to
DTYPES: tuple[str, ...] = ("float32", "float16", "bfloat16", "float64")
_SHORT_DTYPES = {"fp32": "float32", "f32": "float32", "float": "float32", "fp16": "float16", "f16": "float16",
                 "half": "float16", "bf16": "bfloat16", "fp64": "float64", "f64": "float64",
                 "double": "float64"}  # fmt: skip
#: characters of a path in a sentence
_LONGEST = 120
INPUT_FILES: tuple[str, ...] = (".safetensors", ".pt", ".pth")


def inputs(text: str | None) -> str:
    """The file of `--inputs`, absolute; empty where it is not said.

    Raises:
        UsageError: no such file, or of another kind.
    """
    if text is None:
        return ""
    path = _existing(text, "--inputs")
    if path.suffix not in INPUT_FILES:
        raise UsageError(f"{path} is not a file of inputs.", f"Inputs come from {', '.join(INPUT_FILES)} files.")
    return str(path)


def vary(text: str | None) -> str:
    """`file.py:function` of `--vary` with an absolute path; empty where it is not said.

    Raises:
        UsageError: no such file, or not a function's name behind the colon.
    """
    if text is None:
        return ""
    name, colon, function = text.rpartition(":")
    if not colon or not function.isidentifier() or not name:
        raise UsageError(f"--vary {text} names no function.", "Write --vary file.py:NAME.")
    path = _existing(name, "--vary")
    if path.suffix != ".py":
        raise UsageError(f"{path} is not a Python file.", "Write --vary file.py:NAME.")
    return f"{path}:{function}"


@contextlib.contextmanager
def looked_up(text: str) -> Iterator[None]:
    """A path that the system refuses to look up (too long, `~nobody`, a circle of links) is a fault in its text."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        short = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
        why = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"{short} cannot be looked up: {why}.", "Check the path.") from error


def _existing(text: str, option: str) -> Path:
    with looked_up(text):
        path = Path(text).expanduser()
        if not path.is_file():
            raise UsageError(f"{option}: there is no file {path}.", "Check the path.")
        return path.resolve()


def phases(texts: Iterable[str]) -> dict[str, float]:
    """Weights of phases from `NAME=WEIGHT` texts.

    Raises:
        UsageError: not of that form, not a weight, or one name twice.
    """
    found: dict[str, float] = {}
    for text in texts:
        name, equals, number = text.rpartition("=")
        try:
            weight = float(number)
        except ValueError:
            weight = -1.0
        if not equals or not name.strip() or not 0 <= weight < math.inf:
            raise UsageError(f"--phase {text} is not NAME=WEIGHT.", "A weight is a number from 0, as in decode=128.")
        if name.strip() in found:
            raise UsageError(f"--phase names {name.strip()} twice.", "Give each phase one weight.")
        found[name.strip()] = weight
    return found


def dynamic(texts: Iterable[str]) -> tuple[str, ...]:
    """Names of dimensions, without blanks.

    Raises:
        UsageError: one is empty.
    """
    found = tuple(text.strip() for text in texts)
    if not all(found):
        raise UsageError("--dynamic names no dimension.", "Write --dynamic NAME, as in --dynamic seq.")
    return found


def dtype(dtype: str | None) -> str | None:
    """The name that torch has for a floating dtype, from that or a short one.

    Raises:
        UsageError: no dtype that a model can be moved to.
    """
    if dtype is None:
        return None
    name = _SHORT_DTYPES.get(dtype.lower(), dtype.lower())
    if name not in DTYPES:
        raise UsageError(f"{dtype!r} is not a dtype for a model.", f"Choose one of {', '.join(DTYPES)}.")
    return name
