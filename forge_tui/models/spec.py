"""What the user typed as MODEL, turned into a `ModelSpec`; imports no torch and runs nothing of the file."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from forge_tui.core.errors import UsageError
from forge_tui.core.records import ModelSpec

#: packaged examples: name to file, below `forge_tui/examples`
EXAMPLES: Mapping[str, str] = MappingProxyType(
    {"tiny-llm": "tiny_llm.py", "resnet": "resnet.py", "vae-decoder": "vae_decoder.py"}
)

#: floating dtypes that a model may be moved to
DTYPES: tuple[str, ...] = ("float32", "float16", "bfloat16", "float64")
_SHORT_DTYPES = {"fp32": "float32", "f32": "float32", "float": "float32", "fp16": "float16", "f16": "float16",
                 "half": "float16", "bf16": "bfloat16", "fp64": "float64", "f64": "float64",
                 "double": "float64"}  # fmt: skip

_PREFIX = "example:"


def parse_model(text: str, dtype: str | None = None) -> ModelSpec:
    """The model that `file.py`, `file.py:factory` or `example:NAME` names.

    Raises:
        UsageError: no such file or example, not a Python file, or not a name behind the colon.
    """
    if text.startswith(_PREFIX):
        path, factory = _example(text.removeprefix(_PREFIX)), None
    else:
        path, factory = _file(text)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(f"The model file {path} cannot be read: {error.strerror or error}.") from error
    return ModelSpec(
        text=text, path=str(path), factory=factory, dtype=_dtype(dtype),
        content_hash=hashlib.sha256(content).hexdigest(),
    )  # fmt: skip


def is_example(spec: ModelSpec) -> bool:
    """Whether the model is a packaged one."""
    return spec.text.startswith(_PREFIX)


def _example(name: str) -> Path:
    file = EXAMPLES.get(name)
    if file is None:
        close = difflib.get_close_matches(name.lower().replace("_", "-"), EXAMPLES, n=1)
        hint = f"Did you mean example:{close[0]}? " if close else ""
        raise UsageError(f"There is no example named {name!r}.", f"{hint}The examples are {', '.join(EXAMPLES)}.")
    return Path(__file__).resolve().parent.parent / "examples" / file


def _file(text: str) -> tuple[Path, str | None]:
    if not text.strip():
        raise UsageError("No model is named.", "Name a Python file, or one of the examples, such as example:tiny-llm.")
    name, factory = text, None
    # a file may have a colon in its name; what exists as typed wins
    if ":" in text and not Path(text).expanduser().exists():
        name, _, factory = text.rpartition(":")
    path = Path(name).expanduser()
    if path.is_dir():
        raise UsageError(f"{path} is a folder.", "Name the Python file in it that builds the model.")
    if not path.exists():
        hint = f"To name an example, write example:{text}." if text in EXAMPLES else "Check the path."
        raise UsageError(f"There is no model file {path}.", hint)
    if path.suffix != ".py":
        raise UsageError(f"{path} is not a Python file.", "A model is a .py file with a build() function.")
    if factory is not None and not factory.isidentifier():
        raise UsageError(
            f"{factory!r} cannot name a factory.", f"Write {name}:NAME, where NAME is a function in the file."
        )
    return path.resolve(), factory


def _dtype(dtype: str | None) -> str | None:
    if dtype is None:
        return None
    name = _SHORT_DTYPES.get(dtype.lower(), dtype.lower())
    if name not in DTYPES:
        raise UsageError(f"{dtype!r} is not a dtype for a model.", f"Choose one of {', '.join(DTYPES)}.")
    return name
