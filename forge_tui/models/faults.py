"""What a model's own code raised, as one sentence with the line in the user's file."""

from __future__ import annotations

import traceback
from pathlib import Path

import torch

from forge_tui.core.errors import TRACEBACK_IN_LOG, ForgeError, ModelError
from forge_tui.core.records import ModelSpec

_LONGEST = 400


def explain(error: BaseException, spec: ModelSpec, what: str) -> ForgeError:
    """A `ModelError` for an exception of the model's code; a `ForgeError` stays as it is.

    `what` is the start of the sentence, such as `build() failed`. Raise the result `from error`: the traceback then
    goes to the worker's log. Whatever a model raises may be given (a skipped test is no `Exception`); an interrupt is
    raised again.
    """
    if isinstance(error, KeyboardInterrupt):
        raise error
    if isinstance(error, ForgeError):
        return error
    if is_out_of_memory(error):
        return ModelError(f"{what}: out of memory{_line(error, spec)}.", "Use a smaller input, or a bigger device.")
    text = readable(" ".join(_text(error).split()))
    if len(text) > _LONGEST:
        text = text[: _LONGEST - 3] + "..."
    if isinstance(error, SyntaxError):
        name = Path(error.filename or spec.path).name
        at = f" (line {error.lineno} of {name})" if error.lineno else ""
        return ModelError(f"{what}{at}: {type(error).__name__}: {error.msg}.", TRACEBACK_IN_LOG)
    said = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return ModelError(f"{what}{_line(error, spec)}: {said.rstrip('.')}.", TRACEBACK_IN_LOG)


def readable(text: str) -> str:
    r"""The text with lone surrogates, which no encoding has, written out as `\udc80`."""
    return text.encode("utf-8", "backslashreplace").decode()


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as another:  # noqa: BLE001 - the model's own class
        return f"its text cannot be had ({type(another).__name__})"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether host or device memory ran out."""
    if isinstance(error, (MemoryError, torch.cuda.OutOfMemoryError)):
        return True
    text = _text(error)
    return isinstance(error, RuntimeError) and ("can't allocate memory" in text or "out of memory" in text)


def _line(error: BaseException, spec: ModelSpec) -> str:
    """` (line 12 of model.py)`: the innermost frame in the model file, else in its folder."""
    frames = traceback.extract_tb(error.__traceback__)
    here = Path(spec.path)
    inside = [f for f in frames if f.filename == str(here)] or [
        f for f in frames if Path(f.filename).parent == here.parent
    ]
    return f" (line {inside[-1].lineno} of {Path(inside[-1].filename).name})" if inside else ""
