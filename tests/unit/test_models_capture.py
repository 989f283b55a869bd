"""Captured calls on disk: what is the model's stays with the model, and what goes wrong is one sentence."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import nn

from forge_tui.core.errors import StoreError
from forge_tui.models import capture
from forge_tui.models.held import Held, Holders, Places
from forge_tui.models.load import LoadedModel, load_model
from forge_tui.models.snapshot import Copier
from forge_tui.models.spec import parse_model

MODEL = """
import torch
from torch import nn

TABLE = torch.arange(12.0)
MADE = None

def reads(x):
    return x * TABLE[:3]

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(SCALE, 4))
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("late", None)
        self.stray = torch.ones(2)

    def forward(self, x):
        return x @ self.weight

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.tied = self.blocks[1].weight

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x

def build():
    return Net(), (torch.ones(2, SCALE),)
"""


@pytest.fixture
def model(tmp_path: Path) -> LoadedModel:
    """A model with tensors in every kind of place."""
    return load(tmp_path)


def load(folder: Path, seed: int = 0, text: str = MODEL, scale: int = 4) -> LoadedModel:
    """The model in a file of this folder, built by this seed."""
    path = folder / "net.py"
    path.write_text(text.replace("SCALE", str(scale)))
    return load_model(parse_model(str(path)), "cpu", seed)


def holders(loaded: LoadedModel) -> Holders:
    """All places of the model, its function's closure among them."""
    return Holders(loaded, {f"{loaded.source.__name__}:reads": loaded.source.reads})


def saved(loaded: LoadedModel, folder: Path, tensors: list[torch.Tensor]) -> Path:
    """One call with these tensors, written down."""
    return folder / capture.save_by_content(folder, [Copier(holders(loaded)).take(tensors)])


def test_tensors_of_the_model_are_referred_to(model, tmp_path):
    """Parameters, buffers, attributes, closure tensors and views of them take no space and come from the model."""
    block = model.module.blocks[1]
    given = torch.full((3,), 7.0)
    tensors = [block.weight, block.weight.t(), block.weight[1:, :2], block.mean, block.stray,
               model.source.TABLE[3:9], given, model.module.blocks[0].weight]  # fmt: skip
    folder = saved(model, tmp_path / "captures", tensors)
    entries = json.loads((folder / "calls.json").read_text())["calls"][0]
    name = model.source.__name__
    assert [e.get("held") for e in entries] == [
        ["", "tied"], ["", "tied"], ["", "tied"], ["", "blocks.1.mean"],
        ["", "blocks.1.stray"], [f"{name}:reads", "TABLE"], None, ["", "blocks.0.weight"],
    ]  # fmt: skip
    assert (folder / "tensors.safetensors").stat().st_size < 200
    fresh = load(tmp_path)
    back = capture.load(folder, 0, "cpu", fresh)
    for have, want in zip(back, tensors, strict=True):
        assert torch.equal(have, want)
        assert (have.stride(), have.requires_grad, type(have)) == (want.stride(), False, torch.Tensor)
    weight = fresh.module.blocks[1].weight
    assert [t.data_ptr() for t in back[:3]] == [weight.data_ptr()] * 2 + [weight[1:].data_ptr()]


def test_another_process_finds_the_same_weights(model, tmp_path):
    """A process of its own loads what this one wrote."""
    folder = saved(model, tmp_path / "captures", [model.module.blocks[0].weight, torch.ones(2)])
    code = (
        "import sys; from forge_tui.models import capture; from forge_tui.models.load import load_model\n"
        "from forge_tui.models.spec import parse_model; from pathlib import Path\n"
        "loaded = load_model(parse_model(sys.argv[1]), 'cpu', 0)\n"
        "print(capture.load(Path(sys.argv[2]), 0, 'cpu', loaded)[0].double().sum().item())\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "net.py"), str(folder)],
                          capture_output=True, text=True, check=True, timeout=100)  # fmt: skip
    assert float(done.stdout) == float(model.module.blocks[0].weight.double().sum())


def test_other_weights_are_one_sentence(model, tmp_path):
    """Another seed, shape or model says what differs and what to do."""
    folder = saved(model, tmp_path / "captures", [model.module.blocks[0].weight])
    with pytest.raises(StoreError) as caught:
        capture.load(folder, 0, "cpu", load(tmp_path, seed=1))
    assert str(caught.value) == (
        "The model holds other values in blocks.0.weight than when it was profiled. "
        "Profile it again; if this comes back, seed what it draws its weights from."
    )
    with pytest.raises(StoreError, match=r"blocks\.0\.weight of the model has another form than when"):
        capture.load(folder, 0, "cpu", load(tmp_path, scale=2))
    with pytest.raises(StoreError, match=r"has no tensor blocks\.0\.weight, to which captured inputs refer\. Profile"):
        capture.load(folder, 0, "cpu", load(tmp_path, text=MODEL.replace("self.blocks", "self.layers")))
    with pytest.raises(StoreError, match=r"refer to blocks\.0\.weight of a model that is not loaded\. Load the model"):
        capture.load(folder, 0, "cpu")
    closure = saved(model, tmp_path / "captures", [model.source.TABLE])
    with pytest.raises(StoreError, match=r"holds other values in TABLE of reads than when"):
        capture.load(closure, 0, "cpu", load(tmp_path, text=MODEL.replace("arange(12.0)", "arange(1.0, 13.0)")))
    with pytest.raises(StoreError, match=r"refer to TABLE of reads: There is no function reads in"):
        capture.load(closure, 0, "cpu", load(tmp_path, text=MODEL.replace("def reads", "def looks")))


def test_weights_that_are_rounded_otherwise_are_the_same(model, tmp_path):
    """Last bits may depend on the number of threads that an initialisation ran with; more may not."""
    weight = model.module.blocks[0].weight
    folder = saved(model, tmp_path / "captures", [weight, model.module.blocks[1].mean])
    with torch.no_grad():
        weight.mul_(1 + 1e-6)
    assert torch.equal(capture.load(folder, 0, "cpu", model)[0], weight)
    with torch.no_grad():
        weight[0, 0] += 0.1
    with pytest.raises(StoreError, match="holds other values in"):
        capture.load(folder, 0, "cpu", model)


def test_what_the_model_wrote_or_made_since_is_stored(model, tmp_path):
    """Another process lacks what this one's model wrote, replaced or made after it was built."""
    block = model.module.blocks[0]
    block.mean.add_(1.0)
    block.late = torch.ones(5)
    block.stray = torch.zeros(2)
    model.source.MADE = torch.ones(3)
    found = holders(model)
    assert [found.find(t) for t in (block.mean, block.late, block.stray, model.source.MADE)] == [None] * 4
    assert found.find(block.weight) == (Held("blocks.0.weight"), 0)
    assert found.find(block.weight[1:]) == (Held("blocks.0.weight"), 4)
    assert found.find(block.weight.view(torch.int32)) is None, "other types of the same bytes are copied"
    assert found.find(torch.zeros(0)) is None
    folder = saved(model, tmp_path / "captures", [block.mean, block.late])
    assert [t.tolist() for t in capture.load(folder, 0, "cpu")] == [[1.0] * 4, [1.0] * 5]


def test_a_freed_tensor_is_not_mistaken():
    """Memory that a replaced tensor gave up is not taken for that tensor."""

    class Swaps(nn.Module):
        def __init__(self):
            super().__init__()
            self.state = torch.zeros(1000)

    module = Swaps()
    loaded = LoadedModel(parse_model("example:tiny-llm"), module, (), torch.device("cpu"), sys.modules[__name__])
    found = Holders(loaded)
    for _ in range(20):
        module.state = torch.ones(1000)
        assert found.find(module.state) is None


def test_a_view_beyond_the_models_tensor_is_stored(model, tmp_path):
    """A tensor on the memory of a parameter that reaches past it is copied."""
    room = torch.arange(10.0)
    module = nn.Linear(2, 2, bias=False)
    module.weight = nn.Parameter(room[2:6].view(2, 2), requires_grad=False)
    loaded = LoadedModel(model.spec, module, (), torch.device("cpu"), sys.modules[__name__])
    found = Holders(loaded)
    assert found.find(room[2:4]) == (Held("weight"), 0)
    assert found.find(room[:4]) is None
    assert found.find(room[4:8]) is None
    snapshot = Copier(found).take([room[4:8], room[3:5]])
    assert [t.tolist() for t in snapshot.tensors("cpu", Places(loaded))] == [[4.0, 5.0, 6.0, 7.0], [3.0, 4.0]]


def test_folders_of_the_first_form_are_read(tmp_path):
    """What was captured before tensors had rooms is read as it was."""
    new = tmp_path / capture.save_by_content(tmp_path, [[torch.arange(6.0).view(2, 3), torch.ones(1).expand(4)]])
    old = json.loads((new / "calls.json").read_text())
    del old["version"]
    for entry in old["calls"][0]:
        del entry["room"], entry["dtype"]
    (new / "calls.json").write_text(json.dumps(old))
    back = capture.load(new, 0, "cpu")
    assert back[0].tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    assert back[1].stride() == (0,)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"calls": 3}', '{"calls": [3]}', '{"calls": [[{}]]}', '{"calls": [[7]]}',
     '{"calls": [[{"key": "none", "shape": [2], "strides": [1]}]]}',
     '{"calls": [[{"key": "none", "shape": [2], "strides": [1], "room": 0, "at": 8, "dtype": "nothing"}]]}',
     '{"calls": [[{"key": "none", "shape": 2, "strides": [1]}]]}', '{"calls": [[{"key": 1, "held": 3}]]}'],
)  # fmt: skip
def test_damaged_index(tmp_path, text):
    """Whatever stands in the index, the answer is a sentence that says to profile again."""
    folder = tmp_path / capture.save_by_content(tmp_path, [[torch.ones(2)]])
    (folder / "calls.json").write_text(text)
    with pytest.raises(StoreError, match=r"Profile again\.$"):
        capture.load(folder, 0, "cpu")


def test_a_full_disk_is_one_sentence(tmp_path, monkeypatch):
    """A write that fails leaves nothing behind."""

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(capture, "save_file", full)
    with pytest.raises(StoreError) as caught:
        capture.save_by_content(tmp_path, [[torch.ones(2)]])
    assert str(caught.value) == (
        f"Captured inputs cannot be written to {tmp_path}: No space left on device. Free space there."
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("where", ["save_file", "_sync", "_put"])
def test_an_interrupted_write_leaves_nothing(tmp_path, monkeypatch, where):
    """Ctrl-C at any moment: there is a whole folder, or none."""

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(capture, where, interrupted)
    with pytest.raises(KeyboardInterrupt):
        capture.save_by_content(tmp_path, [[torch.ones(2)]])
    assert list(tmp_path.iterdir()) == []


def test_a_really_full_disk(tmp_path):
    """The same on a file system without room, where this machine lets one be made."""
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(tmp_path)], capture_output=True,
                          check=False)  # fmt: skip
    if made.returncode:
        pytest.skip("no right to mount")
    try:
        with pytest.raises(StoreError, match=r"cannot be written to .*Free space there\."):
            capture.save_by_content(tmp_path, [[torch.ones(1 << 20)]])
        assert list(tmp_path.iterdir()) == []
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_damaged_folder_is_written_anew(tmp_path):
    """Saving where the same content lies damaged makes it whole."""
    calls = [[torch.arange(3.0)]]
    folder = tmp_path / capture.save_by_content(tmp_path, calls)
    for damage in (lambda: (folder / "calls.json").write_text("{"), lambda: (folder / "tensors.safetensors").unlink()):
        damage()
        assert capture.save_by_content(tmp_path, calls) == folder.name
        assert capture.load(folder, 0, "cpu")[0].tolist() == [0.0, 1.0, 2.0]
        assert [p.name for p in tmp_path.iterdir()] == [folder.name]


def test_a_folder_is_private(tmp_path):
    """Nobody else reads what a user's model is given."""
    folder = tmp_path / capture.save_by_content(tmp_path, [[torch.ones(1)]])
    assert folder.stat().st_mode & 0o077 == 0


def test_unreferenced(tmp_path):
    """Folders that no profile names are found after an hour, unfinished ones after a day; nothing else is."""
    root = tmp_path / "captures"
    assert capture.unreferenced(root, []) == []
    kept, lost = (capture.save_by_content(root, [[torch.full((2,), v)]]) for v in (1.0, 2.0))
    (root / "notes.txt").write_text("a person's own")
    (root / "mine").mkdir()
    (root / ("a" * 32)).symlink_to(tmp_path)
    young, old = root / ".writing-young", root / ".writing-old"
    for folder in (young, old):
        folder.mkdir()
    os.utime(old, (time.time() - 2 * 86400,) * 2)
    assert capture.unreferenced(root, [kept]) == [old], "a profile that is being made may be about to name it"
    for name in (kept, lost):
        os.utime(root / name, (time.time() - 4000,) * 2)
    assert capture.unreferenced(root, [f"captures/{kept}"]) == [old, root / lost]
    for folder in capture.unreferenced(root, [kept]):
        shutil.rmtree(folder)
    assert capture.unreferenced(root, [kept], older_than_s=0.0) == []
    os.utime(root / kept, (time.time() - 4000,) * 2)
    capture.save_by_content(root, [[torch.full((2,), 1.0)]])
    assert capture.unreferenced(root, []) == [], "captured again, it is young"
    assert capture.count(root / kept) == 1


def test_sizes_in_words():
    """Sizes have the unit that a person would choose."""
    words = [capture.size_words(n) for n in (0, 999, 1000, 12_345, 3_210_000, 340e6, 2 << 30)]
    assert words == ["0 bytes", "999 bytes", "1.0 kB", "12 kB", "3.2 MB", "340 MB", "2.1 GB"]


@pytest.mark.gpu
def test_on_cuda(tmp_path):
    """On a GPU: chunks of one buffer share memory again, weights are referred to, addresses are as odd as they were."""
    path = tmp_path / "net.py"
    path.write_text(MODEL.replace("SCALE", "4"))
    loaded = load_model(parse_model(str(path)), "cuda:0", 0)
    weight = loaded.module.blocks[0].weight
    buffer = torch.randn(2, 12, device="cuda:0", dtype=torch.bfloat16)
    tensors = [*buffer.chunk(3, -1), buffer.view(-1)[1:9], weight.t(), weight]
    folder = tmp_path / capture.save_by_content(tmp_path, [Copier(Holders(loaded)).take(tensors)])
    back = capture.load(folder, 0, "cuda:0", load_model(parse_model(str(path)), "cuda:0", 0))
    for have, want in zip(back, tensors, strict=True):
        assert torch.equal(have, want)
        assert (have.stride(), have.device) == (want.stride(), want.device)
        assert have.data_ptr() % 16 == want.data_ptr() % 16
    base = back[0].data_ptr()
    assert [t.data_ptr() - base for t in back[:4]] == [0, 8, 16, 2]
    assert back[4].data_ptr() == back[5].data_ptr()
