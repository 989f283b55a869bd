"""One kernel file at several sizes: right at all of them, or rejected with the size in front."""

import re

import msgspec
import pytest
import pytest_asyncio
from evaluator_support import build, evaluator, make_target, workspace

from forge_tui.contract import plan
from forge_tui.core.records import DynamicDim, Verdict

HEAD = '#include "forge_target.h"\n#include <cmath>\n'
BODY = """
extern "C" __attribute__((visibility("default"))) int forge_launch(FORGE_PARAMS) {
    const int64_t rows = ROWS;
    for (int64_t r = 0; r < rows; ++r) {
        float sum = 0;
        for (int64_t j = 0; j < 96; ++j) sum += x[r * 96 + j] * x[r * 96 + j];
        const float scale = 1.0f / std::sqrt(sum / 96 + 1e-6f);
        SCRATCH
        for (int64_t j = 0; j < 96; ++j) out0[r * 96 + j] = x[r * 96 + j] * scale * weight[j];
    }
    return 0;
}
"""

pytestmark = pytest.mark.asyncio(loop_scope="module")


def source(rows: str = "dims.seq", head: str = "", scratch: str = "") -> str:
    """An RMSNorm over so many rows."""
    return head + HEAD + BODY.replace("ROWS", rows).replace("SCRATCH", scratch)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def place(tmp_path_factory):
    """A target of 50 rows with siblings of 1 and 33 rows, and its evaluator."""
    where = workspace(tmp_path_factory.mktemp("sizes"))
    varies = DynamicDim(name="seq", sizes=(1, 33, 50), places=(("x", 0), ("out0", 0)))
    own = make_target(where, "norm", "build")
    others = tuple(make_target(where, "norm", f"build_{n}", id=f"norm-{n}", made=n == 33) for n in (1, 33))
    judge = evaluator(where)
    yield judge, msgspec.structs.replace(own, siblings=others, dynamic=(varies,)), where.root / "built"
    await judge.close()


async def verdict(place, text: str, target=None):
    """What becomes of a source."""
    judge, usual, folder = place
    target = target or usual
    built = build(target, text, folder)
    plans = plan.make_all(text, target, judge._device, {})
    return await judge.evaluate(target, msgspec.structs.replace(built, plans=plans), 5)


async def test_right_at_every_size(place):
    """Sizes and workspace follow the call; the verdict is about speed at the target's own size."""
    text = source(head="//@workspace x_numel * 4 + seq\n", scratch="static_cast<char*>(workspace)[384 * r] = 1;")
    found = await verdict(place, text)
    assert found.verdict.right, found.reason
    assert found.speedup is not None


@pytest.mark.parametrize(
    ("rows", "said"),
    [("dims.seq / 2 * 2", r"^At seq=1: .*never written"),
     ("dims.seq == 33 ? 32 : dims.seq", r"^At seq=33: .*never written in row 32"),
     ("50", r"^At seq=1: It (writes|crashed)")],
    ids=["even only", "all but one", "one size only"],
)  # fmt: skip
async def test_wrong_at_another_size(place, rows, said):
    """What is right at the size that is timed is rejected for another one, seen or made, with its name."""
    found = await verdict(place, source(rows))
    assert found.verdict in (Verdict.REJECTED, Verdict.CRASHED)
    assert re.search(said, found.reason), found.reason
    assert found.speedup is None


async def test_a_seen_size_that_cannot_be_judged(place):
    """The target is unusable, with the size; one that was only made is left out."""
    judge, usual, _ = place
    gone = msgspec.structs.replace(usual.siblings[1], capture="captures/none", id="gone")
    left = msgspec.structs.replace(usual, id="left", siblings=(usual.siblings[0], gone))
    assert (await judge.open(left)).usable
    assert (await verdict(place, source("dims.seq"), left)).verdict.right
    lost = msgspec.structs.replace(usual, id="lost", siblings=(msgspec.structs.replace(gone, made=False, id="gone2"),))
    check = await judge.open(lost)
    assert not check.usable
    assert "No inputs of RMSNorm" in check.reason or "no captured inputs" in check.reason
    assert check.reason.startswith("At seq=33: ")
