"""Pickles of plain data: what they hold, and which are refused before anything is built of them."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from tb_ddp_doctor.storage.unpickle import PickleError, check, loads

PAIR = (0, 1)
PROTOCOLS = [2, 3, 4, 5]
FRAMES = [{"name": f"f{i}", "filename": "train.py", "line": i} for i in range(300)]
TAKEN: dict[str, Any] = {
    "text keys": {"a": PAIR, "b": [PAIR, PAIR]},
    "keys of numbers": {2**40: 1, None: 2, True: 3, 1.5: 4, -1: 5, 300: 6},
    "a snapshot's": {"segments": [{"segment_pool_id": (i, 0), "blocks": [{"frames": FRAMES}]} for i in range(50)]},
    "a dump's": {"entries": [{"process_group": ("0", "default_pg"), "frames": FRAMES[:i], "n": [i]} for i in range(9)]},
    "one tuple in many places": [PAIR, {"a": PAIR}, {1: PAIR, 2: (PAIR, (PAIR,)), 3: [PAIR] * 300}],
    "empty ones": [{}, [], (), {"a": {}, "b": [], "c": ()}],
    "many of all": [{str(i): {i: [i, str(i), (i,), {}]}} for i in range(2000)],
    "a number of 9 bytes": [2**66, {"a": -(2**66)}],
}
REFUSED: dict[str, Any] = {
    "a pair": {PAIR: 1},
    "a pair among others": {1: 1, PAIR: 2, "3": 3},
    "a pair that is elsewhere too": [PAIR, {"a": PAIR, "b": {PAIR: 1}}],
    "a pair behind many": [*({"a": i} for i in range(2000)), {str(i): i for i in range(500)} | {PAIR: 1}],
    "an empty tuple": {(): 1},
    "a tuple of a tuple": {(PAIR,): 0},
    "thousands of pairs": {(i, i): i for i in range(5000)},
    "four in one": {(1, 2, 3, 4): 0},
    "a number of 9 bytes": {2**66: 1},
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("name", TAKEN)
def test_plain_data_comes_back_as_it_was(name: str, protocol: int) -> None:
    assert loads(pickle.dumps(TAKEN[name], protocol)) == TAKEN[name]


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("name", REFUSED)
def test_keys_whose_hash_the_writer_chooses_are_refused(name: str, protocol: int) -> None:
    with pytest.raises(PickleError, match="keys are no text"):
        check(pickle.dumps(REFUSED[name], protocol))


@pytest.mark.parametrize(
    "stream",
    [
        b"}(K\x01K\x02\x86K\x03u.",  # as it comes
        b"}K\x01K\x02\x86K\x03s.",  # one item
        b"(K\x01K\x02\x86K\x03d.",  # a dict of what is since the mark
        b"K\x01K\x02\x86q\x07}(h\x07K\x03u.",  # through the memo
        b"K\x01K\x02\x86q\x07}(j\x07\0\0\0K\x03u.",
        b"K\x01K\x02\x86r\x07\0\0\0}(h\x07K\x03u.",
        b"\x80\x04K\x05\x94K\x01K\x02\x86\x94}(h\x01K\x03u.",  # without numbers
        b"](K\x01K\x02\x86q\x07h\x07q\x09}(h\x09K\x03ue.",  # and from there to another place
        b"}(K\x00](K\x05eK\x01K\x02\x86K\x03u.",  # behind a flat list
    ],
)
def test_no_way_leads_a_tuple_to_a_key(stream: bytes) -> None:
    stream = stream if stream.startswith(b"\x80") else b"\x80\x02" + stream
    assert isinstance(pickle.loads(stream), (dict, list))
    with pytest.raises(PickleError, match="keys are no text"):
        check(stream)


@pytest.mark.parametrize("stream", [b"\x80\x02K\x01\x94.", b"\x80\x04K\x01q\x00.", b"\x80\x02K\x01u.", b"\x80\x02}("])
def test_what_no_pickler_writes_is_refused(stream: bytes) -> None:
    with pytest.raises(PickleError):
        check(stream)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_file_that_is_cut_off_anywhere_is_said_to_be(protocol: int) -> None:
    whole = pickle.dumps({"a": [300, 1.5, -70_000, 2**40, "text"], "b": [PAIR] * 3}, protocol)
    for end in range(3, len(whole)):
        with pytest.raises(PickleError, match="It is cut off"):
            check(whole[:end])
