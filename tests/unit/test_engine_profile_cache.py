"""Saved profiles: used again while nothing they hang on has changed, and never otherwise."""

import contextlib
import os
import sys
import threading
from pathlib import Path

import msgspec
import pytest
import store_fixture as fixture

from forge_tui.core.paths import Workspace
from forge_tui.core.records import HfOptions, ModelSpec, RunOptions
from forge_tui.engine import profiles
from forge_tui.models import sources
from forge_tui.models.sources import files_read, sources_of, state_of, unchanged


class FakeRooms:
    """Rooms that give a profile and count how often."""

    def __init__(self, found):
        self.found, self.asked = found, 0

    async def profile(self):
        self.asked += 1
        return self.found


@pytest.fixture
def place(tmp_path):
    """A workspace."""
    return Workspace(tmp_path / ".forge")


def options(place, **changes):
    """Options of a session on a model file."""
    spec = ModelSpec(text="m.py", path="/m.py", content_hash="1")
    return RunOptions(model=msgspec.structs.replace(spec, **changes.pop("spec", {})), device="cpu",
                      workspace=str(place.root), **changes)  # fmt: skip


async def test_profile_is_made_once(place):
    """The second call takes the saved one, whole; `fresh` measures again."""
    rooms = FakeRooms(fixture.whole_profile())
    for _ in range(2):
        assert await profiles.profile_cached(rooms, options(place), place) == fixture.whole_profile()
    assert rooms.asked == 1
    rooms.found = fixture.profile()
    assert await profiles.profile_cached(rooms, options(place), place, fresh=True) == fixture.profile()
    assert profiles.find(options(place), place) == fixture.profile()


@pytest.mark.parametrize("changes", [
    {"spec": {"path": "/other.py"}}, {"spec": {"factory": "make"}}, {"spec": {"dtype": "bfloat16"}},
    {"spec": {"content_hash": "2"}}, {"spec": {"hf": HfOptions(batch=2)}}, {"spec": {"inputs": "/x.pt"}},
    {"spec": {"vary": "f.py:g"}}, {"spec": {"phases": {"decode": 2.0}}}, {"spec": {"dynamic": ("seq",)}},
    {"spec": {"text": "example:m"}}, {"device": "cuda:0"}, {"threads": 3}, {"seed": 1}, {"capture_bytes": 5},
])  # fmt: skip
def test_everything_that_changes_the_result_is_in_the_key(place, changes):
    """Each field of the model, device, threads, seed and capture size makes another profile."""
    fields = {"device": "cpu"} | changes
    device = fields.pop("device")
    other = msgspec.structs.replace(options(place, **fields), device=device)
    assert profiles.profile_key(other) != profiles.profile_key(options(place))


def test_every_field_of_a_model_is_in_the_key(place):
    """A field that is added to the model's record cannot be forgotten: the whole record is hashed."""
    tried = {"path", "factory", "dtype", "content_hash", "hf", "inputs", "vary", "phases", "dynamic"}
    assert set(ModelSpec.__struct_fields__) - {"text"} == tried, "add the new field to the test above"


def test_what_does_not_change_the_result_is_not_in_the_key(place):
    """How the model was typed, limits of the search, the workspace: the same profile."""
    same = options(place, spec={"text": "./m.py"}, max_evaluations=5, target_names=("x",), proposers=())
    assert profiles.profile_key(same) == profiles.profile_key(options(place))


@pytest.mark.parametrize(("what", "value"), [
    ("_version", lambda library: "9"), ("_machine", lambda device: ["another"]), ("_this_program", lambda: ["newer"]),
])  # fmt: skip
def test_versions_and_machine_are_in_the_key(place, monkeypatch, what, value):
    """Another torch, another machine or another release of this program do not take the profile."""
    before = profiles.profile_key(options(place))
    monkeypatch.setattr(profiles, what, value)
    assert profiles.profile_key(options(place)) != before


def test_settings_of_the_environment_are_in_the_key(place, monkeypatch):
    """OMP_NUM_THREADS changes how torch computes; HOME does not; undecodable values are no fault."""
    before = profiles.profile_key(options(place))
    monkeypatch.setenv("SOME_OTHER", "1")
    assert profiles.profile_key(options(place)) == before
    monkeypatch.setenv("TORCHINDUCTOR_X", os.fsdecode(b"\xff"))
    assert profiles.profile_key(options(place)) != before


def test_processor_is_told_from_another(tmp_path):
    """Name and feature flags of the first processor, not its clock at the moment."""
    info = tmp_path / "cpuinfo"
    info.write_text("processor : 0\nmodel name : A\ncpu MHz : 1\nflags : avx\n\nprocessor : 1\nmodel name : B\n")
    assert profiles._processor(info) == ["model name : A", "flags : avx"]
    assert isinstance(profiles._processor(tmp_path / "none"), list)


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b"\xff\xfe", b'{"device": 3}', b"null"])
async def test_damaged_file_is_no_profile(place, damage):
    """Whatever stands in the file, it is measured again and written anew."""
    rooms = FakeRooms(fixture.profile())
    await profiles.profile_cached(rooms, options(place), place)
    (saved,) = (place.artifacts / "profiles").glob("*.json")
    saved.write_bytes(damage)
    assert await profiles.profile_cached(rooms, options(place), place) == fixture.profile()
    assert rooms.asked == 2
    assert await profiles.profile_cached(rooms, options(place), place) == fixture.profile()
    assert rooms.asked == 2


async def test_missing_captures_are_made_again(place):
    """Without its captured inputs a target could not be verified."""
    target = msgspec.structs.replace(fixture.targets()[0], capture="captures/abc")
    rooms = FakeRooms(fixture.profile(targets=(target,)))
    for asked in (1, 2):
        await profiles.profile_cached(rooms, options(place), place)
        assert rooms.asked == asked
    (place.captures / "abc").mkdir()
    await profiles.profile_cached(rooms, options(place), place)
    assert rooms.asked == 2


async def test_changed_source_is_measured_again(place, tmp_path):
    """A file that the model imported or read has another content, or is gone; a new time alone changes nothing."""
    helper = tmp_path / "helper.py"
    helper.write_text("x = 1")
    rooms = FakeRooms(fixture.profile(sources={str(helper): state_of(str(helper))}))
    await profiles.profile_cached(rooms, options(place), place)
    os.utime(helper, (1, 1))
    await profiles.profile_cached(rooms, options(place), place)
    assert rooms.asked == 1
    helper.write_text("x = 2")
    await profiles.profile_cached(rooms, options(place), place)
    assert rooms.asked == 2
    helper.unlink()
    await profiles.profile_cached(rooms, options(place), place)
    assert rooms.asked == 3


async def test_old_profiles_are_dropped(place):
    """The newest are kept, so that a folder of a long project does not grow for ever."""
    rooms = FakeRooms(fixture.profile())
    for seed in range(profiles._MAX_KEPT + 5):
        await profiles.profile_cached(rooms, options(place, seed=seed), place)
        (saved,) = (place.artifacts / "profiles").glob(f"{profiles.profile_key(options(place, seed=seed))}.json")
        os.utime(saved, (seed, seed))
    assert len(list((place.artifacts / "profiles").iterdir())) == profiles._MAX_KEPT
    assert profiles.find(options(place, seed=0), place) is None
    assert profiles.find(options(place, seed=profiles._MAX_KEPT + 4), place) is not None


# ---- which files a model is made of


def test_files_that_are_read_are_seen(tmp_path, monkeypatch):
    """Opened for reading by any Python code in the block, relative ones too; writes, descriptors and misses are not."""
    monkeypatch.chdir(tmp_path)
    for name in ("a.txt", "b.bin", "c.txt", "late.txt"):
        Path(name).write_text(name)
    with files_read() as opened:
        Path("a.txt").read_text()
        os.close(os.open("b.bin", os.O_RDONLY))
        with open("c.txt", "r+"), open("w.txt", "w"), open(os.devnull):
            pass
        with pytest.raises(FileNotFoundError):
            Path("none.txt").read_text()
        read, write = os.pipe()
        os.close(write)
        with open(read):
            pass
        other = threading.Thread(target=lambda: (tmp_path / "thread.txt").exists() or Path("a.txt").read_text())
        other.start()
        other.join()
    Path("late.txt").read_text()
    found = sources_of(opened, set())
    assert set(found) == {str(tmp_path / "a.txt"), str(tmp_path / "b.bin")}
    assert unchanged(found)


def test_modules_of_the_model_are_sources_and_libraries_are_not(tmp_path, monkeypatch):
    """What lies beside the model file counts; Python's own, installed and this program's modules do not."""
    (tmp_path / "beside_the_model.py").write_text("import json")
    monkeypatch.syspath_prepend(str(tmp_path))
    with files_read() as opened:
        import beside_the_model
    assert beside_the_model.json
    names = {"beside_the_model", "json", "msgspec", "forge_tui.core.records", "sys", "no_such_module"}
    assert list(sources_of(opened, names)) == [str(tmp_path / "beside_the_model.py")]
    sys.modules.pop("beside_the_model")


def test_a_library_that_opens_thousands_of_its_files_hides_none_of_the_model(tmp_path, monkeypatch):
    """What is installed does not count against the limit of files."""
    monkeypatch.setattr(sources, "_MAX_FILES", 2)
    installed = tmp_path / "site-packages"
    installed.mkdir()
    (tmp_path / "weights.txt").write_text("1")
    with files_read() as opened:
        for number in range(5):
            (installed / f"{number}.py").write_text("")
            (installed / f"{number}.py").read_text()
        (tmp_path / "weights.txt").read_text()
    assert opened == {str(tmp_path / "weights.txt")}


def test_large_files_are_known_by_size_and_time(tmp_path, monkeypatch):
    """Hashing gigabytes of weights would take as long as a profile."""
    monkeypatch.setattr(sources, "_HASHED_BYTES", 3)
    weights = tmp_path / "w.bin"
    weights.write_bytes(b"1234")
    os.utime(weights, ns=(5, 5))
    assert state_of(str(weights)) == "4 bytes, changed at 5"
    weights.write_bytes(b"4321")
    assert not unchanged({str(weights): "4 bytes, changed at 5"})
    weights.write_bytes(b"123")
    assert len(state_of(str(weights))) == 64
    assert state_of(str(tmp_path)) == ""


def test_recorders_nest_and_stop_after_a_fault(tmp_path):
    """An inner block sees its own files; one that raises leaves no recorder behind."""
    (tmp_path / "x").write_text("")
    with files_read() as outer:
        with contextlib.suppress(FileNotFoundError), files_read() as found:
            (tmp_path / "x").read_text()
            (tmp_path / "y").read_text()
        assert str(tmp_path / "x") in found
        assert sources._recording is outer
    assert sources._recording is None
