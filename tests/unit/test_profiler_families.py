"""Families are found whatever the order, siblings alone are in one, and their dimensions get the right names."""

import functools
import math

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from forge_tui.core.errors import UsageError
from forge_tui.core.records import DynamicDim, KernelInput, KernelOutput, Scalar, Signature, Target, TensorSpec
from forge_tui.models.attributes import variant
from forge_tui.profiler.families.siblings import check_names, families, unused_names


def dense(shape, order=None):
    """Strides without gaps; `order` lists the dimensions from outer to inner."""
    strides, step = [0] * len(shape), 1
    for dim in reversed(order or range(len(shape))):
        strides[dim] = step
        step *= max(1, shape[dim])
    return tuple(strides)


def spec(shape, strides=None, dtype="float32"):
    """One tensor."""
    return TensorSpec(shape=tuple(shape), dtype=dtype, strides=tuple(strides or dense(shape)))


def make(ident, inputs, outputs, *, scalars=None, qualname="m:f", kind="function", sources=None, **more):
    """A target; `inputs` maps names to tensors (or shapes), `scalars` names to values."""
    as_spec = [(name, s if isinstance(s, TensorSpec) else spec(s)) for name, s in inputs.items()]
    ins = tuple(KernelInput(name=n, spec=s, source=(sources or {}).get(n, "arg"), path=n) for n, s in as_spec)
    outs = tuple(KernelOutput(name=f"out{i}", spec=s if isinstance(s, TensorSpec) else spec(s))
                 for i, s in enumerate(outputs))
    numbers = tuple(Scalar(name=n, value=v, source="arg", path=n) for n, v in (scalars or {}).items())
    args = [{"in": i} for i, item in enumerate(ins) if item.source == "arg"]
    call = {"tuple": [{"tuple": [*args, *({"value": s.value} for s in numbers)]}, {"dict": {}}]}
    result = {"out": 0} if len(outs) == 1 else {"tuple": [{"out": i} for i in range(len(outs))]}
    signature = Signature(inputs=ins, outputs=outs, scalars=numbers, call=call, result=result)
    return Target(id=ident, name="f", kind=kind, qualname=qualname, instances=more.pop("instances", ()), calls=1,
                  signature=signature, time_us=1.0, share=0.1, floor_us=0.1, bound="memory", headroom_ms=1.0,
                  bytes_moved=1, flops=0, **more)


def dims_of(found, ident):
    """Name, sizes and places of the dimensions of a target."""
    return [(d.name, d.sizes, d.places) for d in found[ident][1]]


def ids(found):
    """Target ids by family."""
    groups = {}
    for ident, (family, _) in found.items():
        groups.setdefault(family, set()).add(ident)
    return sorted(map(sorted, groups.values()))


def test_sequence_length():
    """Prefill and decode of one function are a family with one dimension, which the output shares."""
    two = [make("a", {"x": (1, 1024, 64)}, [(1, 1024, 64)]), make("b", {"x": (1, 1, 64)}, [(1, 1, 64)])]
    found = families(two)
    assert found["a"] == found["b"]
    assert found["a"][1] == (DynamicDim(name="d0", sizes=(1, 1024), places=(("x", 1), ("out0", 1))),)
    assert dims_of(families(two, ["seq"]), "b") == [("seq", (1, 1024), (("x", 1), ("out0", 1)))]
    assert dims_of(families(two, ["seq=1024"]), "b") == [("seq", (1, 1024), (("x", 1), ("out0", 1)))]
    assert families(two, ["seq=999"]) == found


def test_products_and_sums():
    """A dimension that is the product or the sum of others is called so, with the names of the user."""
    found = families([
        make(f"{b}{s}", {"x": (b, s, 8), "past": (b, 3 * s + b, 8)}, [(b * s, 8), (b, 4 * s + b, 8)])
        for b, s in ((1, 5), (2, 7), (2, 11))
    ], ["batch", "seq"])  # fmt: skip
    named = {d.name: d.places for d in found["15"][1]}
    assert named == {
        "batch": (("x", 0), ("past", 0), ("out1", 0)), "seq": (("x", 1),), "d0": (("past", 1),),
        "batch*seq": (("out0", 0),), "seq+d0": (("out1", 1),),
    }  # fmt: skip


def test_product_with_a_constant_size():
    """Rows of a flattened input with a constant batch are the batch times the length."""
    found = families([make(f"{s}", {"x": (3, s, 8)}, [(3 * s, 8)]) for s in (5, 7)], ["seq"])
    assert [d.name for d in found["5"][1]] == ["seq", "3*seq"]


def test_one_sibling():
    """A single signature has no dynamic dimension, unless a size names it: then every place of that size is it."""
    one = [make("a", {"x": (4, 16, 8), "y": (16, 8)}, [(4, 16)], scalars={"n": 16, "k": 3})]
    assert families(one)["a"][1] == families(one, ["seq"])["a"][1] == ()
    assert families(one, ["seq=16"])["a"][1] == (
        DynamicDim(name="seq", sizes=(16,), places=(("x", 1), ("y", 0), ("out0", 1)), scalars=("n",)),
    )
    assert families(one, ["seq=17"])["a"][1] == ()


def test_size_of_a_constant_dimension():
    """A size that no varying dimension has names the constant one that has it."""
    two = [make(str(s), {"x": (4, s)}, [(4, s)]) for s in (8, 9)]
    assert dims_of(families(two, ["batch=4"]), "8") == [
        ("d0", (8, 9), (("x", 1), ("out0", 1))), ("batch", (4,), (("x", 0), ("out0", 0))),
    ]  # fmt: skip


def test_names_hold_for_the_whole_model():
    """One name goes to the dimension at most places in all, also where a family saw some of its sizes only."""
    everywhere = [make(f"a{s}", {"x": (s, 8), "y": (s, 8)}, [(s, 8)]) for s in (1, 16, 32)]
    some = [make(f"b{s}", {"x": (c, s)}, [(c, s), (c, 2)], qualname="m:g") for s, c in ((1, 5), (32, 6))]
    found = families(everywhere + some, ["seq"])
    assert dims_of(found, "a1") == [("seq", (1, 16, 32), (("x", 0), ("y", 0), ("out0", 0)))]
    assert [name for name, _, _ in dims_of(found, "b1")] == ["d0", "seq"]


def test_parameters_vary_between_modules_not_calls():
    """A plain name goes to what calls bring, not to the width of a weight, however often that stands there."""
    layers = [
        make(f"{n}-{c}", {"x": (n, c), "weight": (c, c), "bias": (c,)}, [(n, c)], kind="module",
             sources={"weight": "param", "bias": "param"})
        for n, c in ((2, 64), (3, 96))
    ]  # fmt: skip
    found = families(layers, ["n"])
    assert [(name, len(places)) for name, _, places in dims_of(found, "2-64")] == [("n", 2), ("d0", 5)]


@pytest.mark.parametrize("change", [
    {"qualname": "m:g"}, {"kind": "torch"}, {"scalars": {"eps": 1e-6}}, {"scalars": {"eps": 2}},
    {"scalars": {"eps": True}}, {"inputs": {"y": (3, 8)}}, {"inputs": {"x": (3, 8, 1)}},
    {"inputs": {"x": spec((3, 8), dtype="float16")}}, {"outputs": [(3, 8), (3, 8)]}, {"outputs": [(3,)]},
    {"inputs": {"x": spec((3, 8), (1, 3))}}, {"inputs": {"x": spec((3, 8), (0, 1))}},
    {"inputs": {"x": spec((3, 8), (16, 2))}}, {"sources": {"x": "closure"}}, {"variant": "silu"},
])  # fmt: skip
def test_what_splits_a_family(change):
    """Another callable, constant, dtype, structure, layout or variant is another family."""
    base = {"inputs": {"x": (2, 8)}, "outputs": [(2, 8)], "scalars": {"eps": 1e-5}, "variant": "gelu"}
    same = {**base, "inputs": {"x": (3, 8)}, "outputs": [(3, 8)]}
    assert ids(families([make("a", **base), make("b", **same)])) == [["a", "b"]]
    assert ids(families([make("a", **base), make("b", **{**same, **change})])) == [["a"], ["b"]]


def test_equal_shapes_under_two_ids():
    """Targets whose signatures are equal differ in something hidden, so they are no siblings; callers tell which."""
    four = [
        make(f"{act}{n}", {"x": (n, 8)}, [(n, 8)], kind="module", instances=(act,))
        for act in ("gelu", "relu") for n in (3, 5)
    ]  # fmt: skip
    assert ids(families(four)) == [["gelu3", "gelu5"], ["relu3", "relu5"]]


LAYOUTS = {
    "transposed heads": lambda n: spec((2, 4, n, 8), (n * 32, 8, 32, 1)),
    "part of a fused projection": lambda n: spec((2, n, 8), (n * 24, 24, 1)),
    "channels last": lambda n: spec((2, 3, n, n), (3 * n * n, 1, 3 * n, 3)),
    "slice of a cache": lambda n: spec((2, 4, n, 8), (4 * 99 * 8, 99 * 8, 8, 1)),
    "expanded": lambda n: spec((2, n, 8), (0, 8, 1)),
    "expanded there": lambda n: spec((2, n, 8), (8, 0, 1)),
    "every other": lambda n: spec((2, n), (2 * n, 2)),
    "0-dim beside": lambda n: spec((n,)),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("sizes", [(1, 7), (3, 5, 6), (0, 2, 9)])
def test_strides_that_follow(layout, sizes):
    """Strides that follow from sizes, or stay as they are, do not split a family; sizes 0 and 1 say nothing of them."""
    found = families([make(str(n), {"x": LAYOUTS[layout](n), "s": ()}, [(n,)]) for n in sizes])
    assert ids(found) == [sorted(map(str, sizes))]
    assert [d.sizes for d in found[str(sizes[0])][1]] == [tuple(sizes)]


def test_layouts_stay_apart():
    """Contiguous calls and slices of a cache of one function are two families."""
    dense_calls = [make(f"d{n}", {"k": (2, n, 8)}, [(n,)]) for n in (3, 5, 7)]
    slices = [make(f"s{n}", {"k": spec((2, n, 8), (800, 8, 1))}, [(n,)]) for n in (3, 5, 7)]
    assert ids(families(dense_calls + slices)) == [["d3", "d5", "d7"], ["s3", "s5", "s7"]]


def test_integers_that_repeat_a_size():
    """An integer that equals a size in every sibling belongs to the dimension; one that does not splits."""
    def call(n, k):
        return make(f"{n}-{k}", {"x": (n, 6)}, [(n, 6)], scalars={"count": k, "width": 6})

    found = families([call(3, 3), call(5, 5)])
    assert found["3-3"][1][0].scalars == ("count",)
    assert ids(families([call(3, 4), call(5, 9)])) == [["3-4"], ["5-9"]]
    assert families([call(3, 2), call(5, 2)])["3-2"][1][0].scalars == ()


def test_integers_in_trees():
    """Sizes in slices, torch.Size and results are followed too, and other leaves split."""
    def call(n, size, stop, extra="a"):
        t = make(f"{n}", {"x": (n, 6)}, [(n, 6)])
        arg = {"list": [{"size": [size, 6]}, {"slice": [{"value": None}, {"value": stop}, {"value": None}]}]}
        tree = {"tuple": [{"tuple": [{"in": 0}, arg]}, {"dict": {"e": {"value": extra}}}]}
        result = {"dict": {"y": {"out": 0}, "n": {"value": n}}}
        return msgspec.structs.replace(t, signature=msgspec.structs.replace(t.signature, call=tree, result=result))

    assert ids(families([call(3, 3, 3), call(5, 5, 5)])) == [["3", "5"]]
    assert ids(families([call(3, 3, 3), call(5, 5, 2)])) == [["3"], ["5"]]
    assert ids(families([call(3, 3, 3), call(5, 5, 5, "b")])) == [["3"], ["5"]]


def test_empty_and_repeated():
    """No targets give no families; a target given twice counts once."""
    assert families([]) == {}
    one = make("a", {"x": (2,)}, [(2,)])
    assert len(families([one, one])) == 1


@pytest.mark.parametrize(("names", "says"), [
    ([""], "cannot name a dimension"), (["2d"], "cannot name a dimension"), (["a b"], "cannot name a dimension"),
    (["=4"], "cannot name a dimension"), (["seq="], "is not a size of the dimension seq"),
    (["seq=-1"], "is not a size"), (["seq=0"], "is not a size"), (["seq=1.5"], "is not a size"),
    (["seq=\u0664"], "is not a size"), (["seq=" + "9" * 30], "is not a size"), (["seq=1=2"], "is not a size"),
    (["s\u00e9q"], "cannot name a dimension"), (["seq", "seq=4"], "is named twice"),
    (["a=4", "b=4"], "a and b both name"),
    (["dims"], "has a meaning in kernels"), (["int"], "has a meaning in kernels"),
])  # fmt: skip
def test_malformed_names(names, says):
    """A malformed name is one sentence."""
    with pytest.raises(UsageError, match=says):
        check_names(names)
    with pytest.raises(UsageError, match=says):
        families([], names)


def test_names_that_are_used_up():
    """More names than dimensions are told; a name like a default one is not given twice."""
    two = [make(f"{n}", {"x": (n, m)}, [(n,)]) for n, m in ((2, 9), (3, 8))]
    found = families(two, ["d1", "b", "c"])
    assert [d.name for d in found["2"][1]] == ["d1", "b"]
    assert unused_names(["d1", "b", "c", "e=5"], found) == ("c", "e")
    assert [d.name for d in families(two, ["d0=9"])["2"][1]] == ["d1", "d0"]


def test_many_dimensions_and_targets():
    """Hundreds of signatures with dozens of dimensions each take no combinatorial time."""
    wide = [make(f"w{k}", {f"x{i}": (1000 * i + k * (i + 7), 3) for i in range(40)}, [(k + 5,)]) for k in range(8)]
    many = [make(f"m{k}", {"x": (k + 1, 64), "w": (64, 2 * k + 1)}, [(k + 1, 2 * k + 1)], qualname="m:g")
            for k in range(400)]
    found = families(wide + many, ["seq"])
    assert [len(group) for group in ids(found)] in ([8, 400], [400, 8])
    assert len(found["w0"][1]) == 41
    assert [(d.name, len(d.places)) for d in found["m0"][1]] == [("seq", 2), ("d0", 2)]


def test_variants_of_modules():
    """Modules that differ in numbers have one variant; in words, functions or parts, another."""
    gelu = functools.partial(nn.TransformerEncoderLayer, 8, 2, activation="gelu")
    assert variant(nn.GroupNorm(2, 8)) == variant(nn.GroupNorm(4, 16, eps=1e-3)) != ""
    assert variant(nn.Conv2d(2, 4, 3)) == variant(nn.Conv2d(2, 4, (5, 5), stride=2))
    assert variant(nn.Conv2d(2, 4, 3)) != variant(nn.Conv2d(2, 4, 3, padding_mode="reflect"))
    assert variant(nn.Sequential(nn.ReLU())) != variant(nn.Sequential(nn.SiLU()))
    assert variant(gelu(16)) == variant(gelu(32)) != variant(nn.TransformerEncoderLayer(8, 2, 16))
    assert variant(None) == ""


# -- made-up families ---------------------------------------------------------------------------------------------

SYMBOLS = ("p", "q", "r")


@st.composite
def made_up(draw, qualname="m:f"):
    """A family: tensors over symbols and constants, several assignments; the targets, and sizes by place."""
    symbol = st.sampled_from([*SYMBOLS, 2, 3, 8])
    tensors = draw(st.lists(st.lists(symbol, max_size=4), min_size=2, max_size=4))
    layouts = []
    for dims in tensors:
        order = draw(st.permutations(range(len(dims))))
        layouts.append((order, draw(st.sampled_from([1, 1, 2, 5]))))
    scalars = draw(st.lists(st.sampled_from([s for t in tensors for s in t] + [1.5, True, -4]), max_size=3))
    values = st.tuples(*[st.integers(2, 60)] * len(SYMBOLS))
    columns = draw(st.lists(values, min_size=1, max_size=5, unique=True))
    targets, seen = [], set()
    for column in columns:
        of = dict(zip(SYMBOLS, column, strict=True))
        shapes = [tuple(of.get(d, d) for d in dims) for dims in tensors]
        if str(shapes) in seen:  # a symbol that stands nowhere
            continue
        seen.add(str(shapes))
        specs = [spec(s, [gap * n for n in dense(s, order)]) if s else spec(s)
                 for s, (order, gap) in zip(shapes, layouts, strict=True)]
        numbers = {f"k{i}": of.get(s, s) if not isinstance(s, (bool, float)) else s for i, s in enumerate(scalars)}
        targets.append(make(f"{qualname}{column}", {f"x{i}": s for i, s in enumerate(specs[:-1])}, specs[-1:],
                            scalars=numbers, qualname=qualname))
    return targets


@settings(deadline=None, max_examples=150)
@given(made_up())
def test_made_up_families_are_recovered(targets):
    """Siblings made from one pattern are one family, and its dimensions are the columns of sizes that vary."""
    found = families(targets)
    assert len({family for family, _ in found.values()}) == 1
    columns = {}
    for tensor in [*targets[0].signature.inputs, *targets[0].signature.outputs]:
        for dim in range(len(tensor.spec.shape)):
            column = tuple(
                next(t for t in [*x.signature.inputs, *x.signature.outputs] if t.name == tensor.name).spec.shape[dim]
                for x in targets
            )
            columns.setdefault(column, set()).add((tensor.name, dim))
    expected = {(tuple(sorted(set(c))), frozenset(p)) for c, p in columns.items() if len(set(c)) > 1}
    dims = found[targets[0].id][1]
    assert {(d.sizes, frozenset(d.places)) for d in dims} == expected
    assert len({d.name for d in dims}) == len(dims)


@settings(deadline=None, max_examples=80)
@given(made_up("m:f"), made_up("m:g"), st.randoms(use_true_random=False), st.sampled_from([(), ("a", "b"), ("a=8",)]))
def test_order_does_not_matter(one, other, random, named):
    """Unrelated targets never join, and every order of the targets gives the same families, ids and names."""
    found = families(one + other, named)
    mixed = one + other
    random.shuffle(mixed)
    assert families(mixed, named) == found
    assert not {found[t.id][0] for t in one} & {found[t.id][0] for t in other}


@settings(deadline=None, max_examples=80)
@given(made_up())
def test_a_lone_sibling_is_of_no_other_id(targets):
    """A family has the id that each of its strides and constants gives, also when another sibling joins it."""
    if any(type(s.value) is int for s in targets[0].signature.scalars):
        return
    whole = families(targets)
    parts = families(targets[: math.ceil(len(targets) / 2)])
    assert {whole[ident][0] for ident in parts} == {family for family, _ in parts.values()}
