"""What each block of a device's memory is for, by the phases in which it is born and dies. Sizes are GB."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from test_memory import table
from traces import GB, digests, read

from tb_ddp_doctor.digest.allocator import BEFORE, AllocatorEvents, blocks
from tb_ddp_doctor.digest.build import digest
from tb_ddp_doctor.digest.model import AllocatorMemory, MemoryCategory, StateBytes
from tb_ddp_doctor.digest.model_states import persistent
from tb_ddp_doctor.trace.names import Phase

#: A rank that trains two steps, 64 ms each; what it allocates is drawn below.
_TRAINS = """
    rank0 step    |1                                                              |2
          host    [fwd................]                    [update..........]     [fwd................]                    [update..........]
          autograd                     [bwd...............]                                            [bwd...............]
          gpu     [fwd................][bwd...............][update..........]     [fwd................][bwd...............][update..........]
          memory  """  # noqa: E501


def of(memory: str) -> AllocatorMemory:
    """The memory of that rank."""
    return digests(_TRAINS + memory)[0].memory


def parts(row: np.ndarray) -> dict[str, float]:
    """Categories that have some, GB."""
    return {kind.name.lower(): int(row[kind]) / GB for kind in MemoryCategory if row[kind]}


def test_forward_leaves_activations_and_backward_gradients() -> None:
    #         forward              backward             optimizer
    got = of("[2of9a][6of9t][2of9t][3of9g][1of9a]        [0of9g]")
    assert parts(got.category_peaks[0]) == {"activation": 2, "gradient": 1, "temporary": 4}
    assert parts(got.categories[0]) == {"activation": 2, "temporary": 4}
    assert got.peak_phase[0] == Phase.FORWARD


def test_what_is_born_and_dies_in_one_phase_is_temporary() -> None:
    got = of("[2of9] [5of9t][2of9t][6of9u][2of9u]")
    assert got.category_peaks[0, MemoryCategory.TEMPORARY] == 4 * GB


def test_each_phase_says_what_it_adds_and_its_peak() -> None:
    got = of("[3of9a][5of9b]       [7of9g][5of9b]       [9of9o][7of9o]")
    change = dict(zip((phase.name for phase in Phase), (got.phase_change[0] // GB).tolist(), strict=True))
    assert change == {"LOADING": 0, "FORWARD": 5, "BACKWARD": 0, "OPTIMIZER": 2, "OTHER": 0}
    assert (got.phase_peak[0] // GB).tolist() == [-1, 5, 7, 9, -1]


def test_the_optimizers_first_step_leaves_its_state() -> None:
    got = of("[2of9a]              [3of9g][1of9a]       [5of9m][4of9g]")
    assert parts(got.category_peaks[0]) == {"activation": 2, "gradient": 1, "optimizer_state": 4}


def test_what_outlives_two_updates_is_no_activation() -> None:
    got = of("[3of9a][4of9x]       [1of9a]")
    assert parts(got.categories[0]) == {"activation": 3, "other": 1}


def test_blocks_are_joined_by_address() -> None:
    events = table([10, 20, 30, 40, 50], bytes=[8, 4, -8, 8, -6], allocated=[8, 12, 4, 12, 6], address=[1, 2, 1, 1, 3])
    (trace,) = read("host [a]").values()
    got = blocks(AllocatorEvents.of(replace(trace, memory=events), 0))
    assert list(zip(got.bytes.tolist(), got.born.tolist(), got.died.tolist(), strict=True)) == [
        (6, BEFORE, 4),
        (8, 0, 2),
        (4, 1, 5),
        (8, 3, 5),
    ]


def test_an_address_that_is_allocated_twice_was_released_between() -> None:
    events = table([10, 20], bytes=[8, 4], allocated=[8, 4], address=[1, 1])
    (trace,) = read("host [a]").values()
    got = blocks(AllocatorEvents.of(replace(trace, memory=events), 0))
    assert got.died.tolist() == [1, 2]


_BYTES = st.integers(0, 2**40)


@given(_BYTES, _BYTES, st.integers(-1, 2**40), st.lists(_BYTES, min_size=7, max_size=7), st.booleans())
def test_persistent_memory_is_split_to_the_byte(
    base: int, gradients: int, optimizer: int, seen: list[int], has_buckets: bool
) -> None:
    states = StateBytes(gradients or -1, gradients or -1, optimizer, 4, "AdamW")
    split = persistent(base, states, np.array(seen, np.int64), has_buckets)
    assert split.sum() == base
    assert (split >= 0).all()


def test_persistent_memory_is_split_by_the_gradients_bytes() -> None:
    seen = np.zeros(len(MemoryCategory), np.int64)
    seen[MemoryCategory.GRADIENT] = 10
    split = persistent(60, StateBytes(10, 10, 20, 4, "AdamW"), seen, has_buckets=True)
    assert parts(split * GB) == {"parameter": 10, "optimizer_state": 20, "communication": 10, "other": 20}


def test_gradients_in_buckets_are_no_communication() -> None:
    seen = np.zeros(len(MemoryCategory), np.int64)
    split = persistent(60, StateBytes(10, 10, -1, 4, "Unheard"), seen, has_buckets=True)
    assert parts(split * GB) == {"parameter": 10, "gradient": 10, "optimizer_state": 40}


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(st.integers(0, 200), st.integers(-(2**62), 2**62), st.integers(-1, 2**62), st.integers(-1, 6)),
        max_size=30,
    )
)
def test_the_sums_hold_whatever_the_events_say(rows: list[tuple[int, int, int, int]]) -> None:
    (trace,) = read(_TRAINS + "[1of2]").values()
    start = int(trace.events.start_ns.min())
    time, size, allocated, address = map(list, zip(*rows, strict=True)) if rows else ([], [], [], [])
    events = table(
        [start + at * 1_000_000 for at in time], bytes=size, allocated=allocated, reserved=allocated, address=address
    )
    got = digest(replace(trace, memory=events)).memory
    seen = got.peak_allocated >= 0
    assert (got.categories[seen].sum(axis=1) == got.peak_allocated[seen]).all()
    assert (got.series.sum(axis=1) == got.allocated).all()


def test_what_an_all_gather_fills_is_a_communication_buffer() -> None:
    def gathers(elements: int) -> AllocatorMemory:
        return digests(f"""
            rank0 step     |1                                                              |2
                  host     [fwd................]                    [update..........]     [fwd.....]
                  autograd                     [bwd...............]
                  gpu      [fwd................][bwd...............][update..........]     [fwd.....]
                  nccl                     [ag@{elements}..]
                  memory   [4of9a]             [0of9a]
        """)[0].memory

    assert parts(gathers(1000).category_peaks[0]) == {"communication": 4}
    assert parts(gathers(2000).category_peaks[0]) == {"activation": 4}
