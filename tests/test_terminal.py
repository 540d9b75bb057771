"""Text from a trace that a terminal would obey, in every command: none of it reaches the terminal."""

from __future__ import annotations

import gzip
import io
import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from tb_ddp_doctor.cli import main
from tb_ddp_doctor.report.wrapping import print_table, titled

DEMO_LOGS = Path(__file__).parents[1] / "demo_logs"
#: Colours, a window's title, C1, the direction of text, DEL, a return, a step back, a line of its own, rich's markup.
OBEYED = "\x1b[31m\x1b]0;title\x07\x9b2J\x85\u202e\u2066\u200f\x7f\r\x08\nFORGED[red]"
#: What must not be printed. All but "\n" ends no line of ours.
BAD = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]|^ *FORGED", re.MULTILINE
)
#: Fields whose text the user's program, or somebody else's, chose.
NAMED = {"name", "Process Group Name", "Process Group Description", "Collective name", "hostname"}


def poisoned(value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        return {name: poisoned(item, name) for name, item in value.items()}
    if isinstance(value, list):
        return [poisoned(item) for item in value]
    if key in NAMED and isinstance(value, str) and not value.startswith("ProfilerStep"):
        return value + OBEYED
    return value


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ranks of two demo jobs, whose names, and whose files' names, are poisoned, and a file that is no trace."""
    logs = tmp_path_factory.mktemp("logs")
    for name in ("zero_workers", "no_overlap"):
        folder = logs / f"{name}{OBEYED}"
        folder.mkdir()
        for path in sorted((DEMO_LOGS / name).iterdir())[:2]:
            events = poisoned(msgspec.json.decode(gzip.decompress(path.read_bytes())))
            (folder / f"{OBEYED}{path.name}").write_bytes(gzip.compress(msgspec.json.encode(events), 1))
    (logs / f"broken{OBEYED}").mkdir()
    (logs / f"broken{OBEYED}" / f"{OBEYED}.pt.trace.json").write_text("not json")
    return logs


@pytest.mark.parametrize(
    ("command", "status"),
    [
        ("diagnose LOGS", 0),
        ("diagnose LOGS -v --communication --phases --critical-path", 0),
        ("diagnose LOGS --json", 0),
        ("diagnose LOGS --markdown", 0),
        ("diagnose LOGS --html OUT/report.html", 0),
        ("diagnose ABSENT", 2),
        ("whatif LOGS", 0),
        ("whatif LOGS --json", 0),
        ("compare ONE OTHER", 0),
        ("compare ONE OTHER --json", 0),
        ("compare ONE OTHER --markdown", 0),
        ("compare LOGS OTHER", 2),
        ("slice ONE -o OUT/slice.json", 0),
        ("slice ONE -o OUT/slice.pftrace --finding 99", 2),
        ("slice LOGS -o OUT/slice.json", 2),
        ("merge OTHER -o OUT/merged.pftrace", 0),
        ("merge LOGS -o OUT/merged.json --run absent", 2),
        ("digest LOGS -o OUT/digests", 0),
    ],
)
def test_nothing_is_printed_that_a_terminal_obeys(
    logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, status: int
) -> None:
    places = {
        "LOGS": logs, "ONE": logs / f"zero_workers{OBEYED}", "OTHER": logs / f"no_overlap{OBEYED}",
        "ABSENT": logs / f"absent{OBEYED}",
    }  # fmt: skip
    out = tmp_path / f"out{OBEYED}"
    arguments = [str(places.get(word, word.replace("OUT", str(out)))) for word in command.split()]
    out.mkdir()
    assert main(arguments) == status
    printed = capsys.readouterr()
    assert printed.out or printed.err
    assert not BAD.search(printed.out), BAD.search(printed.out)
    assert not BAD.search(printed.err), BAD.search(printed.err)


def test_a_name_that_is_longer_than_its_column_goes_on_in_the_next_line() -> None:
    """A kernel of torch.compile's says at its end what it was fused from."""
    printed = io.StringIO()
    console = Console(width=30, file=printed)
    name = "triton_red_fused__log_softmax_div_mul_view_31"
    print_table(console, titled("", "kernel", ">ms", no_wrap=True), [(name, "3.13")])
    assert name in "".join(printed.getvalue().replace("3.13", "").split())


def test_arguments_are_repeated_harmlessly(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["diagnose", "logs", f"--{OBEYED}"])
    printed = capsys.readouterr()
    assert "unrecognized arguments" in printed.err and not BAD.search(printed.err)


def test_json_means_the_same(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["diagnose", str(logs / f"zero_workers{OBEYED}"), "--json"])
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    assert run["name"] == f"zero_workers{OBEYED}"
