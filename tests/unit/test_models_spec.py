"""Model names as typed become specs, or one clear sentence."""

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from forge_tui.core.errors import ExitCode, UsageError
from forge_tui.models.spec import EXAMPLES, parse_model


@pytest.fixture
def model_file(tmp_path: Path) -> Path:
    """A file with a factory."""
    path = tmp_path / "net.py"
    path.write_text("def build(): ...\n")
    return path


def test_file(model_file: Path):
    """A path gives an absolute path, no factory, and the hash of the file's content."""
    spec = parse_model(str(model_file))
    assert spec.path == str(model_file.resolve())
    assert spec.factory is None
    assert spec.content_hash == hashlib.sha256(model_file.read_bytes()).hexdigest()


def test_factory_after_colon(model_file: Path):
    """What stands after the last colon is the factory."""
    spec = parse_model(f"{model_file}:make_it")
    assert (spec.path, spec.factory) == (str(model_file.resolve()), "make_it")


def test_colon_in_a_file_name(tmp_path: Path):
    """A file whose own name has a colon is found as typed."""
    path = tmp_path / "a:b.py"
    path.write_text("")
    assert parse_model(str(path)).path == str(path)


def test_relative_path(model_file: Path, monkeypatch: pytest.MonkeyPatch):
    """A relative path is resolved against the current folder."""
    monkeypatch.chdir(model_file.parent)
    assert parse_model("./net.py").path == str(model_file.resolve())


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_exist(name: str):
    """Every example names a file that is packaged."""
    assert Path(parse_model(f"example:{name}").path).is_file()


def test_dtype_short_names(model_file: Path):
    """Short names of dtypes become torch's."""
    assert parse_model(str(model_file), "bf16").dtype == "bfloat16"
    assert parse_model(str(model_file), "float16").dtype == "float16"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "No model is named."),
        ("nowhere.py", "There is no model file nowhere.py. Check the path."),
        ("nowhere.py:build", "There is no model file nowhere.py. Check the path."),
        ("tiny-llm", "There is no model file tiny-llm. To name an example, write example:tiny-llm."),
        ("example:tiny_lm", "There is no example named 'tiny_lm'. Did you mean example:tiny-llm? The examples"),
        ("example:", "There is no example named ''. The examples are tiny-llm, resnet, vae-decoder."),
    ],
)  # fmt: skip
def test_sentences(text: str, said: str):
    """What cannot be a model is said in one sentence, with exit code 2."""
    with pytest.raises(UsageError) as caught:
        parse_model(text)
    assert str(caught.value).startswith(said)
    assert caught.value.exit_code == ExitCode.USAGE


def test_not_python_folder_and_factory(tmp_path: Path, model_file: Path):
    """A folder, a file of another kind, and a factory that is no name are refused by name."""
    other = tmp_path / "weights.pt"
    other.write_bytes(b"")
    for text, said in (
        (str(tmp_path), "is a folder"),
        (str(other), "is not a Python file"),
        (f"{model_file}:not a name", "cannot name a factory"),
        (f"{model_file}:", "cannot name a factory"),
    ):
        with pytest.raises(UsageError, match=said):
            parse_model(text)
    with pytest.raises(UsageError, match="'int7' is not a dtype"):
        parse_model(str(model_file), "int7")


def test_imports_no_torch():
    """The command line parses a model's name without importing torch."""
    code = (
        "import sys; from forge_tui.models.spec import parse_model; parse_model('example:resnet')\n"
        "print('torch' in sys.modules)"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "False"
