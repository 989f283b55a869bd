"""Targets are chosen by what they have to give, and named ones always."""

import msgspec
import pytest

from forge_tui.core.errors import ExitCode, UsageError
from forge_tui.core.profiles import Hotspot, Profile, WhatIf
from forge_tui.core.records import Device, KernelInput, KernelOutput, Signature, Target, TensorSpec
from forge_tui.targets.select import choose, measured_gains

MODEL_MS = 100.0


def target(name: str, headroom_ms: float, *, calls: int = 4, flops: int = 0, size: int = 8) -> Target:
    """A target of this much headroom."""
    spec = TensorSpec(shape=(size,), dtype="float32", strides=(1,))
    signature = Signature(
        inputs=(KernelInput(name="x", spec=spec, source="arg", path="x"),),
        outputs=(KernelOutput(name="out0", spec=spec),), scalars=(), call={}, result={},
    )  # fmt: skip
    return Target(id=f"id-{name}", name=name, kind="function", qualname=f"m:{name}", instances=(), signature=signature,
                  calls=calls, time_us=1, share=0.1, floor_us=1, bound="memory", headroom_ms=headroom_ms,
                  bytes_moved=1, flops=flops)  # fmt: skip


def profile(targets: list[Target], tree: list[tuple[str, str | None, float]], torch: tuple[str, ...] = ()) -> Profile:
    """A profile whose tree is (name, parent's name, headroom) under a root."""
    ids = {"model": 0} | {name: i for i, (name, _, _) in enumerate(tree, 1)}
    by_name = {t.name: t for t in targets}
    spots = [Hotspot(id=0, parent=None, name="M", kind="model", path="", calls=1, total_ms=100, self_ms=0, share=1,
                     reason="the whole model")]  # fmt: skip
    for name, parent, headroom in tree:
        item = by_name.get(name)
        spots.append(Hotspot(id=ids[name], parent=ids[parent or "model"], name=name,
                             kind="torch" if name in torch else "function", path="", calls=item.calls if item else 4,
                             total_ms=headroom, self_ms=0, share=0.1, headroom_ms=headroom,
                             target_id=item.id if item else None, reason="" if item else "it draws random numbers",
                             ))  # fmt: skip
    return Profile(device=Device(name="cpu", model="", arch=""), model_ms=MODEL_MS, overhead=1,
                   hotspots=tuple(spots), targets=tuple(targets))  # fmt: skip


def names(found: list[Target]) -> list[str]:
    """The names, in order."""
    return [t.name for t in found]


def flat(*targets: Target) -> Profile:
    """Targets side by side."""
    return profile(list(targets), [(t.name, None, t.headroom_ms) for t in targets])


def test_ranked_by_headroom_and_cut():
    """The largest headroom comes first; what is under 0.3% of the model's time is left out; the list is cut."""
    many = [target(f"t{i}", float(i + 1)) for i in range(9)]
    assert names(choose(flat(*many, target("small", 0.29), target("enough", 0.31)))) == [
        "t8", "t7", "t6", "t5", "t4", "t3", "t2", "t1", "t0", "enough"
    ]  # fmt: skip
    assert names(choose(flat(target("small", 0.29), target("enough", 0.31)))) == ["enough"]
    assert names(choose(flat(*many), max_targets=2)) == ["t8", "t7"]


def test_named_targets():
    """Named targets are taken however small, ranked, without a cut or repeats."""
    found = flat(target("a", 5.0), target("b", 0.1), target("c", 9.0))
    assert names(choose(found, names=("b", "a", "b"), max_targets=1)) == ["a", "b"]


def test_unknown_names():
    """A name that is no target is a usage error with the names there are; a refused callable says why."""
    found = profile([target("softmax", 5.0)], [("softmax", None, 5.0), ("dropout", None, 1.0)])
    with pytest.raises(UsageError) as caught:
        choose(found, names=("sofmax",))
    assert str(caught.value) == (
        "There is no target named 'sofmax'. Did you mean softmax? The targets are: softmax."
    )
    assert caught.value.exit_code == ExitCode.USAGE
    with pytest.raises(UsageError, match="dropout is no target: it draws random numbers"):
        choose(found, names=("dropout",))
    with pytest.raises(UsageError, match="The targets are: none"):
        choose(flat(), names=("x",))


def test_containers_count_what_their_insides_leave():
    """A layer with matrix work is not ranked by its norms' headroom; a plain function keeps its own."""
    targets = [
        target("Layer", 50.0, flops=10, size=2), target("norm", 30.0), target("attend", 15.0, size=3),
        target("softmax", 10.0, size=4),
    ]  # fmt: skip
    tree = [("Layer", None, 50.0), ("norm", "Layer", 30.0), ("attend", "Layer", 15.0), ("softmax", "attend", 10.0)]
    assert names(choose(profile(targets, tree))) == ["norm", "attend", "softmax", "Layer"]


def test_matrix_work_is_discounted():
    """A vendor's matrix product ranks below memory-bound work of the same headroom."""
    assert names(choose(flat(target("matmul", 12.0, flops=5), target("norm", 8.0)))) == ["norm", "matmul"]
    assert names(choose(flat(target("matmul", 80.0, flops=5), target("norm", 8.0)))) == ["matmul", "norm"]


def test_many_matrix_products_are_no_single_kernel():
    """A callable with more than three matrix products inside is chosen only by name."""
    targets = [target("MLP", 20.0, flops=5), target("Block", 40.0, flops=5)]
    tree = [("MLP", None, 20.0), *[(f"torch.matmul{i}", "MLP", 0.0) for i in range(3)], ("Block", None, 40.0),
            *[(f"torch.bmm{i}", "Block", 0.0) for i in range(4)]]  # fmt: skip
    spots = tuple(f"torch.{kind}{i}" for kind in ("matmul", "bmm") for i in range(4))
    found = profile(targets, tree, torch=spots)
    renamed = [
        Hotspot(**{f: getattr(h, f) for f in h.__struct_fields__ if f != "name"}, name=h.name.rstrip("0123456789"))
        for h in found.hotspots
    ]
    found = Profile(device=found.device, model_ms=MODEL_MS, overhead=1, hotspots=tuple(renamed), targets=found.targets)
    assert names(choose(found)) == ["MLP"]
    assert names(choose(found, names=("Block",))) == ["Block"]


def test_wrappers_count_once():
    """A module that only passes its tensors on and what it calls are one target; the one with more calls is kept."""
    tree = [("Outer", None, 10.0), ("inner", "Outer", 9.8)]
    assert names(choose(profile([target("Outer", 10.0), target("inner", 9.8)], tree))) == ["Outer"]
    assert names(choose(profile([target("Outer", 10.0), target("inner", 20.0, calls=8)], tree))) == ["inner"]
    assert names(choose(profile([target("Outer", 10.0, size=9), target("inner", 9.8)], tree))) == ["Outer", "inner"]
    linear = [target("Linear", 40.0, flops=3), target("F.linear", 39.9, flops=3)]
    assert names(choose(profile(linear, [("Linear", None, 40.0), ("F.linear", "Linear", 39.9)]))) == ["Linear"]


def test_no_targets():
    """A model with nothing to give has no targets to search."""
    assert choose(flat()) == []


def test_what_lies_only_inside_a_target_with_a_kernel_at_hand_is_left_to_it():
    """An inner target goes when all its calls are inside; one that is also called elsewhere, or is named, stays."""
    outer, inner, both = target("outer", 9.0), target("inner", 5.0), target("both", 4.0)
    tree = [("outer", None, 9.0), ("inner", "outer", 5.0), ("both", "outer", 4.0)]
    nested = profile([outer, inner, both], tree)
    elsewhere = Hotspot(id=9, parent=0, name="both", kind="function", path="", calls=1, total_ms=1, self_ms=1,
                        share=0.1, headroom_ms=1.0, target_id=both.id)  # fmt: skip
    nested = msgspec.structs.replace(nested, hotspots=(*nested.hotspots, elsewhere))

    def at_hand(t: Target) -> bool:
        return t.name == "outer"

    assert names(choose(nested)) == ["outer", "inner", "both"]
    assert names(choose(nested, at_hand=at_hand)) == ["outer", "both"]
    assert names(choose(nested, at_hand=at_hand, names=["inner"])) == ["inner"]
    assert names(choose(nested, at_hand=lambda t: t.name == "inner")) == ["outer", "inner", "both"]


def measured(found: Profile, *gains: tuple[str, float], mode: str = "compile", failure: str = "") -> Profile:
    """The profile with what-if rows: (target's name, milliseconds that the model gains)."""
    rows = tuple(
        WhatIf(mode=mode, target_ids=(f"id-{name}",), base_ms=MODEL_MS, ms=None if failure else MODEL_MS - gain,
               failure=failure)
        for name, gain in gains
    )  # fmt: skip
    return msgspec.structs.replace(found, what_ifs=(*found.what_ifs, *rows))


def test_measured_gain_ranks_under_the_mode_it_was_measured_in():
    """The gain inside the model decides where it is known for the mode; otherwise headroom does."""
    plain = flat(target("hidden", 30.0), target("fused", 20.0), target("real", 10.0))
    found = measured(plain, ("hidden", 5.0), ("fused", -3.0), ("real", 9.0))
    assert names(choose(found, mode="compile")) == ["real", "hidden"]
    assert names(choose(found, mode="graph")) == ["hidden", "fused", "real"]
    assert names(choose(found)) == ["hidden", "fused", "real"]
    assert names(choose(found, mode="compile", names=["fused", "real"])) == ["real", "fused"]


def test_what_was_not_measured_counts_in_proportion():
    """Targets without a gain count for the part that the measured ones gained of theirs; failed rows are none."""
    plain = flat(target("a", 30.0), target("b", 20.0), target("c", 10.0))
    found = measured(plain, ("a", 15.0))
    found = measured(found, ("b", 1.0), failure="it crashed")
    together = WhatIf(mode="compile", target_ids=("id-b", "id-c"), base_ms=MODEL_MS, ms=MODEL_MS)
    found = msgspec.structs.replace(found, what_ifs=(*found.what_ifs, together))
    # a gained half of its headroom, so b counts for 10 and c for 5
    assert names(choose(found, mode="compile")) == ["a", "b", "c"]
    assert names(choose(measured(plain, ("b", 12.0), ("c", 0.0)), mode="compile")) == ["a", "b"]


def test_gain_of_a_wrapper_holds_for_the_one_that_stands_for_both():
    """What was measured of an inner target counts for the outer one that is kept, and its own gain before that."""
    tree = [("Outer", None, 10.0), ("inner", "Outer", 9.8), ("other", None, 5.0)]
    found = profile([target("Outer", 10.0), target("inner", 9.8), target("other", 5.0, size=3)], tree)
    assert names(choose(found, mode="eager")) == ["Outer", "other"]
    assert names(choose(measured(found, ("inner", 1.0), mode="eager"), mode="eager")) == ["Outer", "other"]
    assert names(choose(measured(found, ("inner", 0.1), mode="eager"), mode="eager")) == ["other"]
    both = measured(found, ("inner", 0.1), ("Outer", 8.0), mode="eager")
    assert names(choose(both, mode="eager")) == ["Outer", "other"]


def test_containers_gain_what_their_insides_leave():
    """A layer with matrix work that gains no more than its norms is not chosen; its norms are, by their gain."""
    targets = [target("Layer", 50.0, flops=10, size=2), target("norm", 30.0)]
    found = profile(targets, [("Layer", None, 50.0), ("norm", "Layer", 30.0)])
    assert names(choose(found, mode="eager")) == ["norm", "Layer"]
    found = measured(found, ("Layer", 12.0), ("norm", 12.0), mode="eager")
    assert names(choose(found, mode="eager")) == ["norm"]


def test_gains_are_relative_to_the_model_beside_them():
    """A row taken while the machine was slow counts by its ratio, not by its milliseconds."""
    found = measured(flat(target("a", 30.0), target("b", 20.0)), ("a", 10.0))
    slow = WhatIf(mode="compile", target_ids=("id-b",), base_ms=10 * MODEL_MS, ms=9.5 * MODEL_MS)
    whole = WhatIf(mode="compile", target_ids=(), base_ms=MODEL_MS, ms=MODEL_MS)
    found = msgspec.structs.replace(found, what_ifs=(*found.what_ifs, slow, whole))
    assert measured_gains(found, "compile") == {"id-a": pytest.approx(10.0), "id-b": pytest.approx(5.0)}
    assert names(choose(found, mode="compile")) == ["a", "b"]


def test_a_tree_deeper_than_the_stack():
    """A model that calls itself thousands of times over is ranked as any other."""
    depth = 5000
    targets = [target("Block", 40.0, flops=10, size=2), target("norm", 15.0)]
    tree = [("Block", None, 40.0), *[(f"f{i}", f"f{i - 1}" if i else "Block", 20.0) for i in range(depth)],
            ("norm", f"f{depth - 1}", 15.0), ("torch.matmul", "norm", 1.0)]  # fmt: skip
    assert names(choose(profile(targets, tree, torch=("torch.matmul",)))) == ["norm", "Block"]


def test_one_target_serves_every_size():
    """Where sizes vary, siblings are no targets of their own: their headroom is that of the one, under any name."""
    small, large, other = target("norm@2", 10.0), target("norm", 12.0, size=64), target("silu", 15.0, size=4)
    joined = msgspec.structs.replace(large, siblings=(small, msgspec.structs.replace(small, id="made", made=True)))
    tree = [("norm", None, 12.0), ("norm@2", None, 10.0), ("silu", None, 15.0)]
    found = profile([small, joined, other], tree)
    assert names(choose(found)) == ["norm", "silu"]
    assert names(choose(found, names=("norm@2",))) == names(choose(found, names=("norm", "norm@2"))) == ["norm"]
    assert names(choose(profile([small, large, other], tree))) == ["silu", "norm", "norm@2"]
