"""Reports: the HTML file, Markdown, and the JSON Schema. None of them obeys text from a trace."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import subprocess
from collections.abc import Callable
from html import unescape
from html.parser import HTMLParser
from itertools import combinations, permutations
from pathlib import Path
from typing import Any

import frontend_sources
import jsonschema
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from playwright._impl._driver import compute_driver_executable
from traces import ranks, write

from tb_ddp_doctor import cli, engine
from tb_ddp_doctor.cache import Cache
from tb_ddp_doctor.comparison.build import compare
from tb_ddp_doctor.discover.runs import discover
from tb_ddp_doctor.findings import Diagnosis, Finding, FixParts
from tb_ddp_doctor.report import escape, html, markdown, schema

ROOT = Path(__file__).parents[1]
DEMO_LOGS = ROOT / "demo_logs"
RENDERER = MarkdownIt("commonmark").enable(["table", "strikethrough"])
JOB = """
    rank# step |1
          gpu  [fwd....][bwd.]
          nccl                [ar........]
"""
HOSTILE = "</script><script>alert(1)</script> `a` | b\n# c [d](javascript:e) @f ``` <img src=x onerror=g>"


@pytest.fixture(scope="module")
def results() -> list[engine.Result]:
    cache = Cache()
    return [engine.diagnose(run, reading=engine.Reading(cache)) for run in discover(DEMO_LOGS)]


@pytest.fixture(scope="module")
def hostile(results: list[engine.Result]) -> engine.Result:
    """A result with a hostile text wherever a trace may put one."""

    def poisoned(finding: Finding) -> Finding:
        evidence = tuple(msgspec.structs.replace(one, what=HOSTILE) for one in finding.evidence)
        texts = dict.fromkeys(("title", "why", "cause"), HOSTILE)
        fix = f"{HOSTILE}\n\n{HOSTILE}"
        return msgspec.structs.replace(finding, evidence=evidence, fix=fix, fix_parts=FixParts.of(fix), **texts)

    result = next(result for result in results if result.diagnosis.verdict == "straggler")
    findings = tuple(map(poisoned, result.diagnosis.findings))
    diagnosis = msgspec.structs.replace(result.diagnosis, name=HOSTILE, headline=HOSTILE, findings=findings)
    return engine.Result(diagnosis, result.savings, result.job, result.files, result.from_digests)


class Tags(HTMLParser):
    """The elements of a page in order, with their attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        #: Without anything between, such as a comment.
        self.texts: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)
        if self.found and self.found[-1][0] == "script" and data.strip():
            self.scripts.append(data)


def answers(page: str) -> dict[str, Any]:
    held: dict[str, Any] = json.loads(Tags(page).scripts[0])
    return held


# -------------------------------------------------------------------------------------------------------- HTML


def test_the_page_names_nothing_outside_of_itself(results: list[engine.Result]) -> None:
    page = html.page(results, "logs")
    for tag, attributes in Tags(page).found:
        assert not {"src", "href", "action"} & set(attributes), tag


def test_the_pages_policy_allows_its_own_script_alone(results: list[engine.Result]) -> None:
    found = Tags(html.page(results, "logs"))
    policy = next(str(attributes["content"]) for tag, attributes in found.found if "http-equiv" in attributes)
    (sources,) = re.findall(r"script-src ([^;]*);", policy)
    script = found.scripts[-1]
    assert sources == f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
    assert script.rstrip().endswith("$index.show();")


def test_the_pages_script_is_javascript(results: list[engine.Result], tmp_path: Path) -> None:
    (tmp_path / "page.mjs").write_text(Tags(html.page(results, "logs")).scripts[-1])
    node, _ = compute_driver_executable()
    checked = subprocess.run([node, "--check", tmp_path / "page.mjs"], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr


def test_the_page_has_the_same_diagnoses_as_the_json(results: list[engine.Result]) -> None:
    held = answers(html.page(results, "logs"))
    listed = [run["name"] for run in held["runs"]["runs"]]
    assert listed == [result.diagnosis.name for result in results]
    for result in results:
        diagnosis = held[f"run?run={result.diagnosis.name}"]["diagnosis"]
        assert msgspec.json.decode(msgspec.json.encode(diagnosis), type=Diagnosis) == result.diagnosis


def test_the_page_lists_runs_as_the_tab_takes_them(results: list[engine.Result]) -> None:
    (run,) = answers(html.page(results[:1], "logs"))["runs"]["runs"]
    assert set(run) == set(frontend_sources.properties("model.js", "RunEntry"))


def test_the_page_says_when_the_newest_trace_of_a_run_was_written(tmp_path: Path) -> None:
    (run,) = discover(write(tmp_path / "job", ranks(JOB, JOB)))
    result = engine.diagnose(run)

    def modified_s() -> float | None:
        (listed,) = answers(html.page([result], "logs"))["runs"]["runs"]
        return listed["modified_s"]

    for written_s, path in zip((2000, 1000), result.files, strict=True):
        os.utime(str(path), (written_s, written_s))
    assert modified_s() == 2000
    for path in result.files:
        Path(str(path)).unlink()
    assert modified_s() is None


def test_the_page_holds_every_choice_of_what_to_fix(results: list[engine.Result]) -> None:
    result = next(result for result in results if result.diagnosis.name == "zero_workers")
    held = answers(html.page([result], "logs"))
    rules = ["dataloader-stall", "pageable-memcpy", "profiler-overhead"]
    for count in range(4):
        for chosen in combinations(rules, count):
            predicted = held[f"whatif?run=zero_workers&without={','.join(chosen)}"]
            assert predicted["without_ms"] == pytest.approx(result.savings.without(chosen).without_ms)


def test_the_page_of_a_few_runs_holds_their_comparisons(results: list[engine.Result]) -> None:
    held = answers(html.page(results[:3], "logs"))
    names = [result.diagnosis.name for result in results]
    compared = {route for route in held if route.startswith("compare")}
    assert compared == {f"compare?before={before}&after={after}" for before, after in permutations(names[:3], 2)}
    found = held[f"compare?before={names[0]}&after={names[1]}"]["comparison"]
    assert found == msgspec.json.decode(msgspec.json.encode(compare(*results[:2])))
    assert not any(route.startswith("compare") for route in answers(html.page(results[:4], "logs")))


def test_hostile_text_opens_no_element_of_the_page(hostile: engine.Result) -> None:
    page = html.page([hostile], HOSTILE)
    tags = [tag for tag, _ in Tags(page).found]
    assert tags.count("script") == 2
    assert "img" not in tags
    assert answers(page)[f"run?run={HOSTILE}"]["diagnosis"]["headline"] == HOSTILE


def test_64_ranks_are_small_enough_to_mail(tmp_path: Path) -> None:
    (run,) = discover(write(tmp_path / "job", ranks(*[JOB] * 64, steps=50)))
    page = html.page([engine.diagnose(run)], str(tmp_path))
    assert len(page.encode()) < 2_000_000


def test_no_report_goes_into_the_log_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = write(tmp_path / "job", ranks(JOB, JOB))
    assert cli.main(["diagnose", str(job), "--html", str(job / "report.html")]) == 2
    assert "is inside of the log directory" in capsys.readouterr().err
    assert cli.main(["diagnose", str(job), "--html", str(tmp_path / "report.html")]) == 0
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")


# -------------------------------------------------------------------------------------------------- the account


def adds_up(result: engine.Result) -> None:
    """The account sums to the step, and what the tab shows "with the fixes" is what what-if predicts of the same."""
    diagnosis = result.diagnosis
    account = diagnosis.account
    assert sum(line.total_ns for line in account.lines) == account.total_ns
    assert min(line.total_ns for line in account.lines) >= 0
    assert sum(line.ms for line in account.lines) == pytest.approx(diagnosis.step_ms)
    costs = {line.finding: line.ms for line in account.lines if line.kind == "finding"}
    costs["profiler-overhead"] = account.line("tracing").ms
    serious = [finding for finding in diagnosis.findings if finding.severity != "info"]
    for finding in diagnosis.findings:
        assert finding.cost_ms == pytest.approx(costs.get(finding.id, 0.0))
        assert finding.range_ms[0] <= finding.cost_ms <= finding.range_ms[1]
    left = diagnosis.step_ms - sum(finding.cost_ms for finding in serious)
    assert result.savings.without([finding.id for finding in serious]).without_ms == pytest.approx(left)


def test_the_account_of_real_jobs_adds_up(results: list[engine.Result]) -> None:
    for result in results:
        adds_up(result)


@given(st.lists(st.integers(0, 12), min_size=2, max_size=5))
@settings(max_examples=30)
def test_the_account_of_drawn_jobs_adds_up(tmp_path_factory: pytest.TempPathFactory, longer: list[int]) -> None:
    """Ranks whose forward takes so much longer than that of the shortest."""
    drawn = []
    for more in longer:
        less = " " * (12 - more)
        gpu = f"          gpu  [fwd....{'.' * more}][bwd.]{less}"
        drawn.append(
            f"\n    rank# step |1\n{gpu}\n          nccl                {' ' * more}[ar..{'.' * (12 - more)}]\n"
        )
    (run,) = discover(write(tmp_path_factory.mktemp("job") / "job", ranks(*drawn)))
    adds_up(engine.diagnose(run))


# --------------------------------------------------------------------------------------------- incomplete files


@pytest.fixture
def cut(tmp_path: Path) -> str:
    """A job of healthy ranks, one of whose files is cut off."""
    folder = write(tmp_path / "job", ranks(JOB, JOB, JOB, steps=6))
    half = sorted(folder.iterdir())[2]
    half.write_bytes(half.read_bytes()[:-600])
    return str(folder)


def test_every_output_says_above_all_that_a_file_is_incomplete(
    cut: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def printed(*arguments: str) -> str:
        assert cli.main([*arguments]) == 0
        return " ".join(capsys.readouterr().out.split())

    verdict = "No fault found in these traces, but 1 file is incomplete."
    said = printed("diagnose", cut)
    assert verdict in said
    assert "Incomplete: job/host2_102.1700000000000000000.pt.trace.json." in said
    assert verdict in printed("whatif", cut)
    assert json.loads(printed("diagnose", cut, "--json"))["runs"][0]["headline"] == verdict
    assert f"**{verdict}**" in printed("diagnose", cut, "--markdown")
    printed("diagnose", cut, "--html", str(tmp_path / "report.html"))
    page = (tmp_path / "report.html").read_text()
    assert f"<p>{verdict}</p>" in page
    held = answers(page)
    assert held["run?run=job"]["diagnosis"]["headline"] == verdict
    assert held["runs"]["runs"][0]["incomplete"] == 1


# ---------------------------------------------------------------------------------------------------- Markdown


def test_markdown_is_all_that_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["diagnose", str(DEMO_LOGS / "straggler_cpu"), "--markdown"])
    printed = capsys.readouterr().out
    rendered = RENDERER.render(printed)
    assert printed.startswith(
        "## ddp-doctor: straggler\\_cpu\n\n**Rank 1 (node0) costs 125.2 ms of 182.9 ms a step (68 %).**"
    )
    assert re.search(r"<td>Critical</td>\s*<td>straggler \(host\)</td>\s*<td[^>]*>1\d\d\.\d ms</td>", rendered)
    assert re.search(r"<td>floor</td>\s*<td[^>]*>49\.2 ms</td>\s*<td[^>]*>27 %</td>", rendered)
    assert "py-spy dump" in rendered


def test_hostile_text_opens_no_element_of_the_markdown(hostile: engine.Result) -> None:
    document = markdown.document([hostile])
    tags = Tags(RENDERER.render(document)).found
    ours = {"h2", "p", "strong", "table", "thead", "tbody", "tr", "th", "td", "details", "summary", "ul", "li", "pre"}
    assert {tag for tag, _ in tags} <= {*ours, "code"}
    assert [tag for tag, _ in tags].count("h2") == 1
    assert "@f" not in re.sub(r"```+\n.*?\n```+\n", "", document, flags=re.DOTALL)


LINKS = (
    "[x](http://evil.example)", "![x](http://evil.example/a.png)", "[x]: http://evil.example", "<http://evil.example>",
    "http://evil.example", "HTTPS://evil.example", "ftp://evil.example", "www.evil.example", "WWW.evil.example",
    "mailto:a@evil.example", "xmpp:a@evil.example", "a@evil.example", "@somebody", "@org/team", "#123", "org/name#123",
    "GH-123", '<a href="http://evil.example">x</a>', "http\u200b://evil.example",
)  # fmt: skip
#: What GitHub links wherever it stands (GFM, "Autolinks", and its own mentions and references).
LINKED = re.compile(r"(?i)(?:https?|ftp)://|\bwww\.|\b(?:mailto|xmpp):\w|@\w|#\d|\bgh-\d")


@pytest.mark.parametrize("shown", [escape.markdown, escape.markup])
@given(pieces=st.lists(st.sampled_from(LINKS) | st.text("`[](){}<>!:/.@#1 aw\\", max_size=6), max_size=5))
def test_no_name_is_a_link(shown: Callable[[str], str], pieces: list[str]) -> None:
    line = shown("".join(pieces))
    page = Tags(RENDERER.render(f"{line if shown is escape.markdown else f'<summary>{line}</summary>'}\n"))
    assert {tag for tag, _ in page.found} <= {"p", "code", "summary"}
    assert not [text for text in page.texts if LINKED.search(text)]


@given(st.text() | st.text("`@|\\<>&#*_~[]()1.-+=\n a:/"))
def test_a_line_of_markdown_says_what_the_text_says(text: str) -> None:
    words = escape.printable(" ".join(text.split()))
    rendered = RENDERER.render(f"{escape.markdown(text)}\n")
    said = unescape(re.sub(r"</?(p|code)>|<!-- -->|\n$", "", rendered))
    expected = "".join(piece for piece, _ in escape._pieces(text))
    assert said.strip() == expected.strip()
    assert expected.replace("`", "") == words.replace("`", "")


@given(st.text() | st.text("`@|<>&\n a"))
def test_a_line_of_html_says_what_the_text_says(text: str) -> None:
    said = unescape(re.sub(r"</?code>|<!-- -->", "", escape.markup(text)))
    assert said == "".join(piece for piece, _ in escape._pieces(text))


@given(st.text(min_size=1) | st.text("`~ a\n", min_size=1))
def test_nothing_ends_a_block_of_code(text: str) -> None:
    (token, *others) = RENDERER.parse(escape.code_block(text))
    assert token.type == "fence" and not others
    assert token.content == escape.printable_lines(text) + "\n"


# ------------------------------------------------------------------------------------------------------ schema


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft202012Validator:
    made = schema.schema("diagnosis")
    jsonschema.Draft202012Validator.check_schema(made)
    return jsonschema.Draft202012Validator(made)


def test_what_json_prints_is_valid(
    capsys: pytest.CaptureFixture[str], validator: jsonschema.Draft202012Validator
) -> None:
    cli.main(["diagnose", str(DEMO_LOGS), "--json"])
    validator.validate(json.loads(capsys.readouterr().out))


@pytest.mark.parametrize("names", [("zero_workers", "four_workers"), ("healthy", "no_overlap")])
def test_what_a_comparison_prints_is_valid(names: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["compare", *(str(DEMO_LOGS / name) for name in names), "--json"])
    found = json.loads(capsys.readouterr().out)
    made = jsonschema.Draft202012Validator(schema.schema("comparison"))
    made.check_schema(made.schema)
    made.validate(found)
    assert not made.is_valid(found | {"story": None})


NO_EVENTS = b'{"distributedInfo": {"rank": 0, "world_size": 3}, "traceEvents": []}'


@pytest.mark.parametrize(
    "changed",
    [{}, {0: None}, {0: b""}, {0: b"no trace", 1: None}, {0: NO_EVENTS}, {0: b"", 1: NO_EVENTS}],
    ids=["whole", "missing", "empty file", "one left", "no events", "two empty"],
)
def test_json_is_valid_of_what_is_incomplete_or_empty(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    validator: jsonschema.Draft202012Validator,
    changed: dict[int, bytes | None],
) -> None:
    files = sorted(write(tmp_path / "job", ranks(JOB, JOB, JOB), world_size=3).iterdir())
    for rank, data in changed.items():
        files[rank].unlink() if data is None else files[rank].write_bytes(data)
    assert cli.main(["diagnose", str(tmp_path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    validator.validate(document)
    assert len(document["runs"]) == 1


def test_json_of_a_cut_file_is_valid(
    cut: str, capsys: pytest.CaptureFixture[str], validator: jsonschema.Draft202012Validator
) -> None:
    cli.main(["diagnose", cut, "--json"])
    document = json.loads(capsys.readouterr().out)
    validator.validate(document)
    assert document["runs"][0]["incomplete"]


@pytest.mark.parametrize(("field", "value"), [("step_ms", "10 ms"), ("ranks", [0.5]), ("findings", None)])
def test_what_is_not_so_is_invalid(
    results: list[engine.Result], validator: jsonschema.Draft202012Validator, field: str, value: object
) -> None:
    run = json.loads(msgspec.json.encode(results[0].diagnosis))
    assert validator.is_valid({"schema_version": 2, "runs": [run]})
    assert not validator.is_valid({"schema_version": 2, "runs": [run | {field: value}]})
    del run[field]
    assert not validator.is_valid({"schema_version": 2, "runs": [run]})
