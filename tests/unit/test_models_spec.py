"""Model names as typed become specs, or one clear sentence."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from forge_tui.cli import main
from forge_tui.cli.commands.run import locate
from forge_tui.core.errors import ExitCode, UsageError
from forge_tui.core.records import HfOptions, ModelSpec
from forge_tui.models.spec import EXAMPLES, ModelRequest, content_hash, home_of, parse_model
from forge_tui.store.naming import stem


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
    assert parse_model(str(model_file), ModelRequest(dtype="bf16")).dtype == "bfloat16"
    assert parse_model(str(model_file), ModelRequest(dtype="float16")).dtype == "float16"


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
        parse_model(str(model_file), ModelRequest(dtype="int7"))


def test_imports_no_torch():
    """The command line parses a model's name without importing torch."""
    code = (
        "import sys; from forge_tui.models.spec import parse_model; parse_model('example:resnet')\n"
        "print('torch' in sys.modules)"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "False"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a configuration."""
    path = tmp_path / "llama"
    path.mkdir()
    (path / "config.json").write_text('{"model_type": "llama"}')
    return path


def test_configuration(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A folder, its configuration, and any JSON file of that form name the same kind of model."""
    spec = parse_model(f"hf:{folder}")
    assert (spec.path, spec.factory) == (str(folder / "config.json"), None)
    assert spec.hf is not None
    assert (spec.hf.batch, spec.hf.length, spec.hf.layers, spec.hf.attention) == (1, None, None, "")
    bare = tmp_path / "bare.json"
    bare.write_text('{"_class_name": "AutoencoderKL"}')
    assert parse_model(f"hf:{bare}").path == str(bare)
    monkeypatch.chdir(tmp_path)
    assert parse_model("hf:llama/").path == spec.path
    assert parse_model("hf:./llama/config.json").path == spec.path


def test_links_are_not_followed(folder: Path, tmp_path: Path):
    """In the hub's cache a configuration is a link; its folder is where the other files are."""
    (tmp_path / "blob").write_text('{"model_type": "gpt2"}')
    (folder / "config.json").unlink()
    (folder / "config.json").symlink_to(tmp_path / "blob")
    assert parse_model(f"hf:{folder}").path == str(folder / "config.json")


def test_hf_options(folder: Path):
    """Options of the command line are in the spec, so that workers and a resumed session have them."""
    request = ModelRequest(dtype="bf16", batch=4, length=7, layers=2, attention="sdpa", remote_code=True,
                           phases=("prefill=1", "decode = 0.5", "set 1=3"), dynamic=("seq", " batch=2 "))  # fmt: skip
    spec = parse_model(f"hf:{folder}", request)
    assert spec.hf is not None
    assert (spec.hf.batch, spec.hf.length, spec.hf.layers, spec.hf.attention) == (4, 7, 2, "sdpa")
    assert spec.hf.remote_code
    assert spec.dtype == "bfloat16"
    assert spec.phases == {"prefill": 1.0, "decode": 0.5, "set 1": 3.0}
    assert spec.dynamic == ("seq", "batch=2")


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ({"batch": 2}, "--batch can only be said of a Hugging Face model"),
        ({"layers": 2, "length": 3, "attention": "sdpa", "remote_code": True},
         "--length, --layers, --attention, --trust-remote-code can only be said"),
        ({"inputs": "a.pt", "vary": "b.py:f"}, "--inputs and --vary both name the inputs"),
        ({"inputs": "nowhere.pt"}, "--inputs: there is no file nowhere.pt"),
        ({"vary": "nowhere.py:f"}, "--vary: there is no file nowhere.py"),
        ({"vary": "nowhere.py"}, "names no function"),
        ({"vary": ":f"}, "names no function"),
        ({"vary": "x.py:a b"}, "names no function"),
        ({"phases": ("decode",)}, "--phase decode is not NAME=WEIGHT"),
        ({"phases": ("=1",)}, "--phase =1 is not NAME=WEIGHT"),
        ({"phases": ("a=x",)}, "--phase a=x is not"),
        ({"phases": ("a=-1",)}, "--phase a=-1 is not"),
        ({"phases": ("a=nan",)}, "--phase a=nan is not"),
        ({"phases": ("a=inf",)}, "--phase a=inf is not"),
        ({"phases": ("a=1", "a=2")}, "--phase names a twice"),
        ({"dynamic": ("seq", " ")}, "--dynamic names no dimension"),
    ],
)
def test_options_that_do_not_fit(model_file: Path, monkeypatch: pytest.MonkeyPatch, said: dict, text: str):
    """Each is one sentence."""
    monkeypatch.chdir(model_file.parent)
    with pytest.raises(UsageError, match=text.replace("--", "-{2}")):
        parse_model(str(model_file), ModelRequest(**said))


def test_configurations_that_are_none(folder: Path, tmp_path: Path):
    """Missing files, other JSON, pipelines and folders of models are said, with what to write instead."""
    def said(name: str, content: str) -> str:
        path = tmp_path / name
        path.write_text(content)
        with pytest.raises(UsageError) as caught:
            parse_model(f"hf:{path}")
        return str(caught.value)

    assert "is not JSON" in said("a.json", "{")
    assert "is not JSON" in said("deep.json", "[" * 100_000)
    assert "does not say what model it is" in said("b.json", "[]")
    assert "does not say what model it is" in said("c.json", '{"hidden_size": 3, "model_type": ""}')
    assert "describes a pipeline" in said("d.json", '{"_class_name": "FluxPipeline"}')
    assert "is not a configuration" in said("model.safetensors", "")
    for name, text in (("", "Write hf:FOLDER"), (str(tmp_path / "nowhere"), "There is no folder or configuration")):
        with pytest.raises(UsageError, match=text):
            parse_model(f"hf:{name}")
    with pytest.raises(UsageError, match=r"has no config\.json\. Did you mean hf:.*/llama\?"):
        parse_model(f"hf:{tmp_path}")
    (tmp_path / "model_index.json").write_text('{"_class_name": "FluxPipeline"}')
    with pytest.raises(UsageError, match=r"is a pipeline of several models\. Name one of them: hf:.*/llama\."):
        parse_model(f"hf:{tmp_path}")
    with pytest.raises(UsageError, match=r"is a folder\. For its Hugging Face configuration, write hf:"):
        parse_model(str(folder))
    with pytest.raises(UsageError, match=r"is not a Python file\. For a Hugging Face configuration, write hf:"):
        parse_model(str(folder / "config.json"))
    with pytest.raises(UsageError, match="'flash' is no attention"):
        parse_model(f"hf:{folder}", ModelRequest(attention="flash"))
    with pytest.raises(UsageError, match=r"-{2}batch 0 is too small"):
        parse_model(f"hf:{folder}", ModelRequest(batch=0))
    (folder / "config.json").write_text('{"_class_name": "AutoencoderKL"}')
    with pytest.raises(UsageError, match=r"-{2}attention is for models of transformers"):
        parse_model(f"hf:{folder}", ModelRequest(attention="sdpa"))


def test_hash_covers_the_inputs(model_file: Path, tmp_path: Path):
    """A change of the model, of the file of inputs or of the function's file is seen."""
    inputs, vary = tmp_path / "x.pt", tmp_path / "v.py"
    inputs.write_bytes(b"1")
    vary.write_text("3")
    specs = [
        parse_model(str(model_file), ModelRequest(inputs=str(inputs))),
        parse_model(str(model_file), ModelRequest(vary=f"{vary}:sets")),
    ]
    assert len({spec.content_hash for spec in [*specs, parse_model(str(model_file))]}) == 3
    assert specs[0].inputs == str(inputs)
    assert specs[1].vary == f"{vary}:sets"
    for spec, file in zip(specs, (inputs, vary), strict=True):
        assert content_hash(spec) == spec.content_hash
        file.write_text("2")
        assert content_hash(spec) != spec.content_hash
        file.unlink()
        with pytest.raises(UsageError, match="cannot be read"):
            content_hash(spec)


def test_where_sessions_lie(model_file: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Beside a model file; in the current folder for configurations and examples."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    for text, place in ((str(model_file), tmp_path), (f"hf:{folder}", here), ("example:resnet", here)):
        spec, device, workspace = locate(text, "cpu", ModelRequest(), None)
        assert workspace.root == place / ".forge"
        assert device == "cpu"
        assert (home_of(spec) is None) == (place == here)
    assert locate(f"hf:{folder}", "cpu", ModelRequest(), str(tmp_path / "w"))[2].root == tmp_path / "w"


@pytest.mark.parametrize("command", ["run", "check", "profile"])
def test_commands_take_the_options(command: str, model_file: Path, folder: Path, capsys: pytest.CaptureFixture[str]):
    """All three commands have the options of a model, and say the same of wrong ones."""
    said = ["--batch", "2", "--length", "8", "--layers", "1", "--attention", "eager", "--trust-remote-code"]
    assert main.main([command, str(model_file), "--device", "cpu", *said]) == ExitCode.USAGE
    err = capsys.readouterr().err
    assert "--batch, --length, --layers, --attention, --trust-remote-code can only be said of a Hugging Face" in err
    more = ["--phase", "decode=x", "--dynamic", "seq", "--dynamic", "batch"]
    assert main.main([command, f"hf:{folder}", "--device", "cpu", *said, *more]) == ExitCode.USAGE
    assert "--phase decode=x is not NAME=WEIGHT" in capsys.readouterr().err
    assert main.main([command, str(model_file), "--device", "cpu", "--vary", "v.py"]) == ExitCode.USAGE
    assert "--vary v.py names no function" in capsys.readouterr().err
    assert main.main([command, str(model_file), "--device", "cpu", "--inputs", "v.pt"]) == ExitCode.USAGE
    assert "--inputs: there is no file v.pt" in capsys.readouterr().err


def test_spec_survives_json(folder: Path):
    """The spec is the same behind the pipe to a worker."""
    spec = parse_model(f"hf:{folder}", ModelRequest(layers=3, phases=("decode=2",), dynamic=("seq",)))
    assert msgspec.convert(json.loads(spec.to_json()), ModelSpec) == spec


@pytest.mark.parametrize(
    ("text", "path", "name"),
    [
        ("hf:./qwen", "/m/qwen/config.json", "qwen"),
        ("hf:.", "/m/my model/config.json", "my-model"),
        ("hf:resnet50.json", "/m/resnet50.json", "resnet50"),
        ("hf:org/sd-3.5/vae@v1", "/c/models--org--sd/snapshots/abc/vae/config.json", "sd-3.5-vae"),
        ("config.py", "/m/config.py", "config"),
        ("example:tiny-llm", "/e/tiny_llm.py", "tiny-llm"),
    ],
)
def test_sessions_are_named_by_the_model(text: str, path: str, name: str):
    """A configuration's session is named by its folder, or by its place on the hub, not by `config`."""
    hf = HfOptions() if text.startswith("hf:") else None
    assert stem(ModelSpec(text=text, path=path, hf=hf)) == name
