"""Types that several threads decode at once for the first time."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "tb_ddp_doctor"
#: Six threads that decode a type which none has decoded before, a hundred times: without the lock it dies in the first.
AT_ONCE = """
import sys, threading
from typing import Generic, TypeVar
import msgspec
from tb_ddp_doctor.known_type import known

T = TypeVar("T")
sys.setswitchinterval(1e-7)
for _ in range(100):

    class Inner(msgspec.Struct):
        rank: int | None

    class Box(msgspec.Struct, Generic[T]):
        value: T

    begin, found = threading.Barrier(6), []

    def decode():
        begin.wait()
        found.append(msgspec.json.decode(b'{"value": {"rank": 1}}', type=known(Box[Inner])).value.rank)

    threads = [threading.Thread(target=decode) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [1] * 6, found
"""
#: Types that msgspec knows from the start.
PLAIN = {"str", "int", "float", "list", "tuple", "dict"}


def test_threads_that_decode_a_type_first_at_once_do_not_end_the_process() -> None:
    done = subprocess.run([sys.executable, "-c", AT_ONCE], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_every_struct_that_is_decoded_is_known_first() -> None:
    """But arguments of events, whose decoders are made on import."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for call in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "decode"):
                continue
            for kind in (keyword.value for keyword in call.keywords if keyword.arg == "type"):
                named = kind.value if isinstance(kind, ast.Subscript) else kind
                name = ast.unparse(named.func if isinstance(named, ast.Call) else named)
                fits = name == "known" or name in PLAIN or name == "hint" or path.name == "args.py"
                assert fits, f"{path.relative_to(PACKAGE)}:{call.lineno} decodes {name}"
