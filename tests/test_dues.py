"""The moments at which the outstanding calls of a run are looked at again."""

from satay.dues import Dues


def dues(*moments: tuple[int, int]) -> Dues:
    made = Dues()
    for due, call in moments:
        made.add(due, call)
    return made


def test_calls_are_due_in_the_order_of_their_moments() -> None:
    made = dues((30, 2), (10, 4), (20, 3))

    assert [4, 3, 2, None] == [made.pop_due(30) for _ in range(4)]


def test_calls_of_one_moment_are_due_in_the_order_of_the_calls() -> None:
    made = dues((10, 9), (10, 2), (10, 5))

    assert [2, 5, 9] == [made.pop_due(10) for _ in range(3)]


def test_nothing_is_due_before_its_moment() -> None:
    made = dues((10, 2))

    assert made.pop_due(9) is None
    assert 2 == made.pop_due(10)


def test_the_earliest_moment_is_that_of_a_call_that_is_outstanding() -> None:
    made = dues((10, 2), (20, 3), (30, 4))

    assert 20 == made.earliest({3, 4})
    assert 20 == made.earliest({3: "a", 4: "b"})
    assert made.earliest({}) is None


def test_a_call_can_have_a_moment_after_another() -> None:
    made = dues((10, 2), (20, 2))

    assert 2 == made.pop_due(10)
    assert 20 == made.earliest({2})


def test_without_calls_there_is_no_moment() -> None:
    made = dues()

    assert made.earliest({2}) is None
    assert made.pop_due(10) is None
