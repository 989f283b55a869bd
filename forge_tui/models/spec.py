"""What the user typed as MODEL, turned into a `ModelSpec`; imports no torch and runs nothing of the file."""

from __future__ import annotations

import difflib
import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import msgspec

from forge_tui.core.errors import UsageError
from forge_tui.core.records import HfOptions, ModelSpec
from forge_tui.models import options as values
from forge_tui.models.hf import config as hf_config

#: packaged examples: name to file, below `forge_tui/examples`
EXAMPLES: Mapping[str, str] = MappingProxyType(
    {"tiny-llm": "tiny_llm.py", "resnet": "resnet.py", "vae-decoder": "vae_decoder.py"}
)

ATTENTIONS: tuple[str, ...] = ("eager", "sdpa")

_EXAMPLE = "example:"
_HF = "hf:"
_HUB_NAME = re.compile(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)((?:/[A-Za-z0-9][\w.-]*)*)(?:@([\w./-]+))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """What a command line says about its model beside the name; None and empty is what is not said."""

    dtype: str | None = None
    inputs: str | None = None
    vary: str | None = None
    phases: tuple[str, ...] = ()
    """`NAME=WEIGHT` each."""
    dynamic: tuple[str, ...] = ()
    batch: int | None = None
    length: int | None = None
    layers: int | None = None
    attention: str | None = None
    remote_code: bool = False


@dataclass(frozen=True, slots=True)
class HubModel:
    """A configuration on the Hugging Face hub."""

    repository: str
    folder: str = ""
    """Folder of the configuration in the repository."""
    revision: str | None = None


def hub_model(text: str) -> HubModel | None:
    """What `hf:org/name`, `hf:org/name/folder` or `hf:org/name@revision` names, unless there is such a folder here."""
    if not text.startswith(_HF):
        return None
    with values.looked_up(text):
        if Path(text.removeprefix(_HF)).expanduser().exists():
            return None
    match = _HUB_NAME.fullmatch(text.removeprefix(_HF))
    if match is None or match[0].endswith((".json", ".py")):
        return None
    return HubModel(match[1], match[2].strip("/"), match[3])


def parse_model(text: str, request: ModelRequest = ModelRequest(), hub_config: Path | None = None) -> ModelSpec:
    """The model that `file.py`, `file.py:factory`, `example:NAME` or `hf:FOLDER` names.

    `hub_config` is the downloaded configuration of what `hub_model` finds.

    Raises:
        UsageError: no such file, folder or example, not a Python file, not a name behind the colon, or options that
            do not fit.
    """
    hf: HfOptions | None = None
    factory: str | None = None
    with values.looked_up(text):
        if text.startswith(_EXAMPLE):
            path = _example(text.removeprefix(_EXAMPLE))
        elif text.startswith(_HF):
            path = hub_config or _configuration(text)
            hf = _hf_options(path, request)
        else:
            path, factory = _file(text)
    if hf is None:
        _refuse_hf_options(request)
    if request.inputs is not None and request.vary is not None:
        raise UsageError("--inputs and --vary both name the inputs.", "Leave one of them out.")
    spec = ModelSpec(
        text=text, path=str(path), factory=factory, dtype=values.dtype(request.dtype), hf=hf,
        inputs=values.inputs(request.inputs), vary=values.vary(request.vary), phases=values.phases(request.phases),
        dynamic=values.dynamic(request.dynamic),
    )  # fmt: skip
    return msgspec.structs.replace(spec, content_hash=content_hash(spec))


def content_hash(spec: ModelSpec) -> str:
    """sha256 of the model file and of the files of inputs, as they are now.

    Raises:
        UsageError: one of them cannot be read.
    """
    digests = [_digest(Path(spec.path), "model file")]
    if spec.hf is not None and spec.hf.remote_code:
        folder = Path(spec.path).parent
        digests += [_digest(p, "model file") for p in sorted(folder.rglob("*.py")) if p.is_file()]
    if spec.inputs:
        digests.append(_digest(Path(spec.inputs), "file of inputs"))
    if spec.vary:
        digests.append(_digest(Path(spec.vary.rpartition(":")[0]), "file of inputs"))
    return digests[0] if len(digests) == 1 else hashlib.sha256(" ".join(digests).encode()).hexdigest()


def is_example(spec: ModelSpec) -> bool:
    """Whether the model is a packaged one."""
    return spec.text.startswith(_EXAMPLE)


def home_of(spec: ModelSpec) -> str | None:
    """The file beside which the model's workspace lies; None for the current folder."""
    return None if is_example(spec) or spec.hf is not None else spec.path


def _digest(path: Path, what: str) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UsageError(f"The {what} {path} cannot be read: {error.strerror or error}.") from error


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
        hint = "Name the Python file in it that builds the model."
        if (path / hf_config.FILE).is_file() or (path / hf_config.PIPELINE).is_file():
            hint = f"For its Hugging Face configuration, write hf:{text}."
        raise UsageError(f"{path} is a folder.", hint)
    if not path.exists():
        hint = f"To name an example, write example:{text}." if text in EXAMPLES else "Check the path."
        raise UsageError(f"There is no model file {path}.", hint)
    if path.suffix != ".py":
        hint = f"For a Hugging Face configuration, write hf:{text}." if path.suffix == ".json" else (
            "A model is a .py file with a build() function.")  # fmt: skip
        raise UsageError(f"{path} is not a Python file.", hint)
    if not path.is_file():
        raise UsageError(f"{path} is a pipe, a socket or a device.", "Name the Python file that builds the model.")
    return path.resolve(), _name(name, factory)


def _name(file: str, name: str | None) -> str | None:
    if name is not None and not name.isidentifier():
        raise UsageError(
            f"{name!r} cannot name a factory.", f"Write {file}:NAME, where NAME is a function in the file."
        )
    return name


def _configuration(text: str) -> Path:
    name = text.removeprefix(_HF)
    if not name.strip():
        raise UsageError("No model is named.", "Write hf:FOLDER, with the folder of a config.json, or hf:org/name.")
    # links are not followed: in the hub's cache they point out of the folder that holds the model's files
    path = Path(os.path.abspath(Path(name).expanduser()))  # noqa: PTH100
    if path.is_dir():
        return hf_config.locate(path, text.rstrip("/"))
    if not path.exists():
        raise UsageError(f"There is no folder or configuration {path}.", "Check the path.")
    if path.suffix != ".json" or not path.is_file():
        raise UsageError(f"{path} is not a configuration.", "Name a folder with a config.json, or the .json file.")
    return path


def _hf_options(path: Path, request: ModelRequest) -> HfOptions:
    config = hf_config.read(path)
    given: dict[str, int] = {}
    for name in ("batch", "length", "layers"):
        value = getattr(request, name)
        if value is not None:
            if value < 1:
                raise UsageError(f"--{name} {value} is too small.", "Give a number from 1.")
            given[name] = value
    if request.attention is not None:
        if request.attention not in ATTENTIONS:
            raise UsageError(f"{request.attention!r} is no attention.", f"Choose one of {', '.join(ATTENTIONS)}.")
        if hf_config.library_of(config) == "diffusers":
            raise UsageError("--attention is for models of transformers; this one is of diffusers.", "Leave it out.")
    return HfOptions(**given, attention=request.attention or "", remote_code=request.remote_code)


def _refuse_hf_options(request: ModelRequest) -> None:
    said = [name for name in ("batch", "length", "layers", "attention") if getattr(request, name) is not None]
    said += ["trust-remote-code"] if request.remote_code else []
    if said:
        flags = ", ".join(f"--{name}" for name in said)
        raise UsageError(
            f"{flags} can only be said of a Hugging Face model (hf:FOLDER or hf:org/name).",
            "A Python file decides these in its build() function.",
        )
