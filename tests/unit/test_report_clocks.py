"""What reports say of a timing's baselines, clocks and noise."""

import msgspec
import pytest

from forge_tui.core.timings import Noise, Ratio, SideTime, Timings
from forge_tui.report.clocks import timing_lines

QUIET = Timings(
    decides="wall time", best="compile", vs_eager=Ratio(speedup=2.0, low=1.95, high=2.05),
    vs_best=Ratio(speedup=1.1, low=1.08, high=1.125),
    sides=tuple(SideTime(name=name, us=us, call_us=us) for name, us in
                (("candidate", 10.0), ("eager", 20.0), ("compile", 11.0))),
)  # fmt: skip


def test_both_ratios_with_their_intervals():
    """On a quiet CPU there is nothing else to say."""
    assert timing_lines(QUIET) == [
        "against eager 2.000x, 95% interval 1.950 to 2.050",
        "against the fastest baseline, compile: 1.100x, 95% interval 1.080 to 1.125",
    ]


@pytest.mark.parametrize(("changes", "line"), [
    ({"best": "eager"}, "eager is the fastest baseline (beside it: compile)"),
    ({"best": "eager", "sides": QUIET.sides[:2], "missing": {"compile": "Unsupported: x"}},
     "eager is the fastest baseline (beside it: compile not timed: Unsupported: x)"),
    ({"sides": (SideTime(name="candidate", us=10.0, device_us=8.0, call_us=14.0),), "decides": "device events"},
     "decided by device events; in a replayed graph candidate 8.0 us"),
    ({"sides": (SideTime(name="candidate", us=10.0, device_us=8.0, call_us=14.0),)},
     "a call with the host's part: candidate 14.0 us"),
    ({"second_clock": "wall time agrees with the events"}, "second clock: wall time agrees with the events"),
    ({"noise": Noise(marks=("throttled (power brake)", "others used 45% of the GPU"))},
     "disturbed: throttled (power brake); others used 45% of the GPU"),
    ({"noise": Noise(repeated=1, waited_s=12.0, sm_mhz=(1965.0, 1980.0), temperature_c=51.0)},
     "1 disturbed round thrown away, waited 12 s for others, clock 1965 to 1980 MHz, 51 degrees C"),
    ({"settled": False}, "its times had not settled when the warm-up ended"),
])  # fmt: skip
def test_what_there_is_to_say(changes, line):
    """Each fact has its line."""
    assert line in timing_lines(msgspec.structs.replace(QUIET, **changes))
