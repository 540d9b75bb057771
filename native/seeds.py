"""Writes the fuzzer's seed corpus: small lists of events, and packets, each of which shows one thing that files do.

    python native/seeds.py DIRECTORY

A seed is two bytes that `fuzz.c` takes its limits and cuts from, and the text behind the list's "[", or packets.
"""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path

OP = {"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 1, "tid": 2, "ts": 10.5, "dur": 2.25,
      "args": {"External id": 3, "Concrete Inputs": ["", "4"], "Input Dims": [[24, 9], []]}}  # fmt: skip
LAUNCH = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 2, "ts": 11, "dur": 1,
          "args": {"cbid": 211, "correlation": 77}}  # fmt: skip
METADATA = {"Collective name": "allreduce", "In msg nelems": 8, "Out msg nelems": 8, "Group size": 4, "dtype": "Float",
            "Process Group Name": "0", "Process Group Ranks": "[0, 1, ...]", "Seq": 5, "Dst Rank": 3,
            "func": "AllReduce", "algo": "RING", "proto": "LL", "n_channels": 2, "count": 64, "seq": 9}  # fmt: skip
KERNEL = {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 20.001, "dur": 5,
          "args": {"device": 0, "stream": 7, "correlation": 77, "grid": [4, 1, 1], "graph id": 2,
                   "graph node id": 8589934597, **METADATA}}  # fmt: skip
COPY = {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD (Pageable -> Device)", "pid": 0, "tid": "stream 7",
        "ts": "30.000", "dur": 1e-3, "args": {"device": 0, "stream": "0x0", "bytes": "128"}}  # fmt: skip
COMM = {"ph": "X", "cat": "cpu_op", "name": "record_param_comms", "pid": 1, "tid": 2, "ts": 1, "dur": 1,
        "args": {"Concrete Inputs": ["", "34", "0"], "Group size": None}}  # fmt: skip
FRAME = {
    "ph": "X",
    "cat": "python_function",
    "name": "f.py(3): g",
    "pid": 1,
    "tid": 1,
    "ts": 1,
    "dur": 200,
    "args": {"Python id": 1},
}
MEMORY = {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 1, "tid": 2, "ts": 12.125,
          "args": {"Total Reserved": 512, "Total Allocated": 256, "Bytes": -64, "Device Id": 0, "Device Type": 1,
                   "Addr": 139797580218368}}  # fmt: skip
FLOW = {"ph": "s", "id": 1, "pid": 1, "tid": 1, "ts": 1, "cat": "ac2g", "name": "ac2g"}
NAMED = {"name": "process_name", "ph": "M", "ts": 1, "pid": 1, "tid": None, "args": {"name": "python"}}

TAIL = b'], "deviceProperties": [{"id": 0}], "baseTimeNanoseconds": 7}'
EVENTS = [OP, LAUNCH, KERNEL, COPY, COMM, MEMORY, FRAME, FLOW, NAMED]
DENSE = json.dumps(EVENTS, separators=(",", ":")).encode()[1:-1]

#: Members that the scanner foresees: first right, then wrong.
FORESEEN = [event | change for change in ({}, {}, {"tid": 3}, {"cat": "cpu_op"}, {"ph": "i"}) for event in EVENTS]

SEEDS = {
    "every-event": DENSE + TAIL,
    "foreseen": json.dumps(FORESEEN, separators=(",", ":")).encode()[1:-1] + TAIL,
    "indented": json.dumps(EVENTS, indent=2).encode()[1:-1] + TAIL,
    "cut-off": DENSE[:-20],
    "no-events": TAIL,
    "broken-event": DENSE.replace(b'"gemm"', b'"ge"mm"') + TAIL,
    "bad-escape": DENSE.replace(b'"gemm"', b'"C:\\Users"') + TAIL,
    "escapes": DENSE.replace(b'"gemm"', b'"\\u00e9\\\\\\"\\ud800"') + TAIL,
    "no-utf-8": DENSE.replace(b'"gemm"', b'"\xff\xfe\x01\n"') + TAIL,
    "last-is-broken": DENSE + b',{"ph": "X", "name": """}' + TAIL,
    "end-that-is-none": DENSE + b"]," + DENSE + TAIL,
    "times": b",".join(json.dumps(OP | {"ts": time}).encode() for time in ("1e3", "-0", "+.5", None, [1], "9" * 40))
    + TAIL,
    "nested": b'{"ph": "X", "args": ' + b"[" * 70 + b"]" * 70 + b"}," + DENSE + TAIL,
    "wrong-types": json.dumps([OP | {"name": 7}, OP | {"pid": {}}, COPY | {"args": []}, 7, None, [{}]]).encode()[1:-1]
    + TAIL,
    "many-names": b",".join(json.dumps(OP | {"name": f"n{number}"}).encode() for number in range(12)) + TAIL,
}


def varint(number: int) -> bytes:
    """A number as protobuf has it."""
    found = bytearray()
    while number >= 0x80:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def message(**fields: object) -> bytes:
    """A message of fields `f3=...` by number: numbers, eight bytes (floats), or bytes, each once or in a list."""
    found = b""
    for name, values in fields.items():
        for value in values if isinstance(values, list) else [values]:
            tag = int(name[1:]) << 3
            if isinstance(value, int):
                found += varint(tag) + varint(value)
            elif isinstance(value, float):
                found += varint(tag | 1) + struct.pack("<d", value)
            else:
                found += varint(tag | 2) + varint(len(value)) + value
    return found


def packet(time: int, kind: int, *, sequence: int = 1, event: bytes = b"", **fields: object) -> bytes:
    """A packet with an event of track 7."""
    told = message(f9=kind, f11=7) + event
    return message(f1=message(f8=time, f10=sequence, f11=told, **fields))


ARGS = message(f4=[
    message(f4=7, f10=b"device"), message(f4=(1 << 64) - 5, f10=b"stream"), message(f5=2.5, f10=b"correlation"),
    message(f9=b"[4, 1, 1]", f10=b"grid"), message(f6=b'a"\\\x01', f10=b"grid"),
    message(f12=[message(f4=1), message(f11=[message(f2=1, f10=b"x")])], f10=b"grid"), message(f17=4, f1=3),
])  # fmt: skip
INTERNED = message(f1=message(f1=1, f2=b"kernel"), f2=message(f1=2, f2=b"gemm"), f3=message(f1=3, f2=b"grid"),
                   f29=message(f1=4, f2=b"text"))  # fmt: skip
NAMED = message(f22=b"kernel", f23=b"gemm")
ENDS = packet(30, 2) + packet(40, 2)
TRACK = message(f1=message(f60=message(f1=7, f2=b"stream 7", f5=1))) + message(
    f1=message(f60=message(f1=1, f3=message(f1=5)))
)
PACKETS = {
    "packets": TRACK + packet(10, 1, event=NAMED + ARGS) + packet(20, 1, event=NAMED + message(f47=3.0, f52=9)) + ENDS,
    "interned": packet(10, 1, event=message(f3=1, f10=2) + ARGS, f12=INTERNED, f13=1) + packet(20, 1) + ENDS,
    "instants": packet(10, 3, event=NAMED) + packet(5, 1, event=NAMED) + ENDS,
    "defaults": message(f1=message(f59=message(f11=message(f11=8)), f41=1)) + packet(10, 1, event=NAMED) + ENDS,
    "other-fields": message(f2=b"abc", f3=7, f4=1.0) + packet(10, 1, event=NAMED) + ENDS,
    "packets-cut": packet(10, 1, event=NAMED + ARGS)[:-9],
    "packets-astray": packet(10, 1, event=NAMED) + b"\x0b" + ENDS,
}

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in (SEEDS | PACKETS).items():
        for limits in (b"\0", b"\xff"):
            (folder / f"{name}-{limits[0]}").write_bytes(limits + b"\5" + text)
