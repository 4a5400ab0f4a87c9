"""Which names are shown: a bounded number, and nobody's messages get lost."""

from hypothesis import given
from hypothesis import strategies as st

from broker.monitoring.traffic_figures import HALF_LIFE_S, TopTotals


def test_all_are_shown_where_there_is_room() -> None:
    shown = TopTotals(2).update({"b": (1, 10), "a": (2, 20)}, 0.0)
    assert (dict(shown.names), shown.other) == ({"a": (2, 20), "b": (1, 10)}, (0, 0))


def test_the_others_count_as_one() -> None:
    top = TopTotals(1)
    assert top.update({"a": (5, 50), "b": (2, 20), "c": (1, 10)}, 0.0).other == (3, 30)
    shown = top.update({"a": (6, 60), "b": (3, 30), "c": (1, 10)}, 15.0)
    assert (dict(shown.names), shown.other) == ({"a": (6, 60)}, (4, 40))


def test_a_name_that_becomes_busy_is_shown_and_takes_nothing_from_the_others() -> None:
    top = TopTotals(1)
    top.update({"a": (100, 100), "b": (10, 10)}, 0.0)
    shown = top.update({"a": (100, 100), "b": (500, 500)}, 15.0)
    assert (dict(shown.names), shown.other) == ({"b": (500, 500)}, (10, 10))
    assert top.update({"a": (103, 103), "b": (500, 500)}, 30.0).other == (13, 13)


def test_two_of_nearly_the_same_do_not_take_turns() -> None:
    top = TopTotals(1)
    totals = {"a": 0, "b": 0}
    shown = []
    for step in range(20):
        totals["a"] += 100 + step % 2 * 10
        totals["b"] += 105
        look = top.update({name: (count, count) for name, count in totals.items()}, step * 15.0)
        shown += list(look.names)
    assert len(set(shown)) == 1


def test_an_old_flood_makes_room_in_the_end() -> None:
    top = TopTotals(1)
    top.update({"a": (1_000, 0), "b": (0, 0)}, 0.0)
    assert "b" in top.update({"a": (1_000, 0), "b": (100, 0)}, 5 * HALF_LIFE_S).names


def test_a_counter_that_began_anew_counts_from_there() -> None:
    top = TopTotals(1)
    top.update({"a": (100, 100), "b": (50, 50)}, 0.0)
    assert top.update({"a": (100, 100), "b": (3, 3)}, 1.0).other == (53, 53)


@given(st.lists(st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 50)), max_size=12))
def test_the_others_never_go_back_and_the_number_of_names_is_kept(grown: list[dict[str, int]]) -> None:
    top, other = TopTotals(3), 0
    totals: dict[str, int] = {}
    for step, more in enumerate(grown):
        for name, count in more.items():
            totals[name] = totals.get(name, 0) + count
        shown = top.update({name: (count, count) for name, count in totals.items()}, step * 15.0)
        assert len(shown.names) == min(3, len(totals))
        assert shown.other[0] >= other
        other = shown.other[0]
