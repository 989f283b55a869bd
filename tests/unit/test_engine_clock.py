"""What of a session's time counts for what."""

from __future__ import annotations

import pytest

from forge_tui.engine.clock import Clock


class Seconds:
    """Pass when told to."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_only_search_counts_for_the_minutes_and_all_of_it_for_the_rent() -> None:
    """Profiling, waiting for a person and deploying are engine time; a rest of a provider is search."""
    now = Seconds()
    clock = Clock(100.0, 40.0, now)
    with clock.profiling():
        now.now += 7
    now.now += 3
    assert (clock.elapsed_s, clock.search_s) == (110.0, 40.0)
    with clock.searching():
        now.now += 5
        with clock.waiting(for_a_person=True):
            now.now += 1000
        with clock.waiting(for_a_person=False):
            now.now += 2
        assert clock.search_s == 47.0
        assert clock.unsaved() == (1017.0, 7.0, 7.0)
        now.now += 1
    now.now += 10
    assert clock.unsaved() == (11.0, 0.0, 1.0)
    assert (clock.elapsed_s, clock.search_s) == (1128.0, 48.0)


def test_what_ends_with_an_error_is_over() -> None:
    """A cancelled wait or search leaves the clock as an ended one does."""
    now = Seconds()
    clock = Clock(0.0, 0.0, now)

    def fail() -> None:
        with clock.searching(), clock.waiting(for_a_person=True):
            now.now += 1
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    now.now += 1
    with clock.searching():
        now.now += 4
    assert (clock.elapsed_s, clock.search_s) == (6.0, 4.0)
