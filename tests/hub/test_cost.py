"""How much of the disk a conversion needs at most while its source files come and go."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.files.conversion.plan import Item, Plan
from engine.files.pulling.cost import room_needed

HEADER = b"0123456789"
Reads = tuple[tuple[int, ...], int]


def plan_of(items: list[Reads]) -> Plan:
    made = [Item(str(number), "f", 0, size, (), reads) for number, (reads, size) in enumerate(items)]
    return Plan(dense={}, dense_header=HEADER, banks=(), items=tuple(made), sizes={}, left_out={})


def test_shards_that_follow_each_other_take_one_at_a_time() -> None:
    plan = plan_of([((0,), 50), ((1,), 50), ((2,), 50)])
    assert room_needed(plan, [100, 100, 100]) == len(HEADER) + 150 + 100


def test_a_file_that_is_needed_to_the_end_is_there_all_the_time() -> None:
    plan = plan_of([((0,), 50), ((1,), 50), ((0, 2), 50)])
    assert room_needed(plan, [1000, 100, 10]) == max(10 + 100 + 1100, 10 + 150 + 1010)


def test_files_that_lie_there_anyway_take_nothing() -> None:
    assert room_needed(plan_of([((0, 1), 50)]), [0, 0]) == len(HEADER) + 50


def test_items_that_read_nothing_and_a_plan_of_nothing() -> None:
    assert room_needed(plan_of([((), 5)]), [100]) == len(HEADER) + 5
    assert room_needed(plan_of([]), [100]) == len(HEADER)


@given(st.lists(st.tuples(st.sets(st.integers(0, 4)), st.integers(0, 100)), max_size=12))
def test_against_a_disk_that_is_kept_book_of(items: list[tuple[set[int], int]]) -> None:
    """A file is on the disk from its first reader to its last, an item from when it is written on."""
    plan = plan_of([(tuple(sorted(reads)), size) for reads, size in items])
    sizes = [7, 70, 700, 0, 33]
    readers = {file: [place for place, (reads, _) in enumerate(items) if file in reads] for file in range(5)}
    most = len(HEADER)
    for place in range(len(items)):
        output = len(HEADER) + sum(size for _, size in items[: place + 1])
        held = [file for file, places in readers.items() if places and places[0] <= place <= places[-1]]
        most = max(most, output + sum(sizes[file] for file in held))
    assert room_needed(plan, sizes) == most
