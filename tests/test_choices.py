"""Options, arguments and names that are none: what is taken is said, and what was probably meant."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import traces

import tb_ddp_doctor
from tb_ddp_doctor.capture.directory import CaptureFolder, CaptureVerdict, write_json
from tb_ddp_doctor.capture.process import Start
from tb_ddp_doctor.capture.requests import CapturePlan, Mailbox, Request
from tb_ddp_doctor.capture.starts import JoinedStart, join
from tb_ddp_doctor.capture.windows import CaptureWindow
from tb_ddp_doctor.check.__main__ import main as check
from tb_ddp_doctor.choices import did_you_mean, number, refusal, whole
from tb_ddp_doctor.cli import main
from tb_ddp_doctor.facts.peaks import DEVICES, limits
from tb_ddp_doctor.planning.model import Question
from tb_ddp_doctor.planning.questions import FIELDS, checked, values

STEP = """
    rank# step     |2
          host     [fwd]                                  [opt][sync...............]
          autograd      [bwd_a][grad@4][bwd_b][grad@4][ar]
          gpu       [fwd......][bwd_a......][bwd_b......]                  [opt...]
          nccl                                           [ar@8............]
"""


@pytest.fixture(scope="module")
def logdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return traces.write(tmp_path_factory.mktemp("job"), traces.ranks(STEP, STEP))


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """What a command says that exits with 2."""
    try:
        assert main([str(argument) for argument in arguments]) == 2
    except SystemExit as ended:
        assert ended.code == 2
    said = capsys.readouterr()
    assert said.out == ""
    return " ".join(said.err.split())


def test_a_name_is_refused_with_the_nearest_one() -> None:
    assert refusal("keep", "trace", ["digests", "traces"]) == (
        "keep is one of digests, traces, not 'trace'. Did you mean 'traces'?"
    )
    assert did_you_mean("xyz", ["digests", "traces"]) == ""
    assert did_you_mean("Digest", ["digests"]) == " Did you mean 'digests'?"
    assert did_you_mean("--jsn", ["--json", "-h"]) == " Did you mean '--json'?"
    assert did_you_mean("--set", ["--last"]) == ""


@pytest.mark.parametrize("text", ["", "0", "x", "1.5", "11", "-1"])
def test_a_whole_number_is_told_its_limits(text: str) -> None:
    with pytest.raises(Exception, match="takes a count, from 1 to 10, not"):
        whole("a count", 1, 10)(text)


@pytest.mark.parametrize("text", ["", "-1", "nan", "inf", "x", "5 %%"])
def test_a_number_is_told_its_limits(text: str) -> None:
    with pytest.raises(Exception, match="takes percent, 0 or more, not"):
        number("percent", unit="%")(text)
    assert number("percent", unit="%")(" 5 %") == 5


# ------------------------------------------------------------------------------------------------ commands


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--dtype", "int8"], "--dtype takes one of fp32, fp16, bf16, fp8, not 'int8'."),
        (["--sharding", "zero4"], "not 'zero4'. Did you mean 'zero3'?"),
        (["--sharding", "ddp,zzz"], "not 'zzz'."),
        (
            ["--device", "XYZ"],
            "a GPU whose peak rates the doctor knows, not 'XYZ'. It knows GB300, ",
        ),
        (["--device", "H2000"], None),
        (["--ranks", "0"], "--ranks takes a whole number of ranks, 1 or more, not '0'."),
        (["--accumulate", "0"], "not '0'."),
        (["--workers", "-1"], ""),
        (["--bucket-mb", "0"], "not '0'."),
        (["--links", "nan"], "not 'nan'."),
        (["--links", "nothere.json"], "or the name of a calibration.json that there is, not 'nothere.json'."),
        (["--prefetch", "1.5"], "not '1.5'."),
        (["--fixed", "stragler"], "--fixed: There is no rule 'stragler'. Did you mean 'straggler'?"),
        (["--fixed", "straggler:9"], "--fixed: there is no finding 'straggler:9'. The findings are: job"),
    ],
)
def test_a_plan_of_what_there_is_not_is_refused(
    logdir: Path, capsys: pytest.CaptureFixture[str], options: list[str], said: str | None
) -> None:
    if said is None:  # it is taken, and this job's own GPU is not known
        assert main(["plan", str(logdir), *options]) == 2
        assert "Not predicted (--device): What Drawn GPU can do" in capsys.readouterr().out
    else:
        assert said in refused(capsys, "plan", logdir, *options)


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_plan_of_which_nothing_can_be_predicted_fails_and_says_why(
    logdir: Path, capsys: pytest.CaptureFixture[str], form: list[str]
) -> None:
    assert main(["plan", str(logdir), "--prefetch", "2", *form]) == 2
    assert "are gathered ahead or offloaded: ask with --sharding zero3." in " ".join(capsys.readouterr().out.split())
    assert main(["plan", str(logdir), "--bucket-mb", "10", *form]) == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["diagnos", "."], "Did you mean 'diagnose'?"),
        (["diagnose", ".", "--jsn"], "unrecognized arguments: --jsn. Did you mean '--json'?"),
        (
            ["diagnose", ".", "--fail-on", "majr"],
            "takes one of opportunity, info, minor, major, critical, not 'majr'. Did",
        ),
        (["diagnose", ".", "--set", "stragler.min_excess=1"], "There is no rule 'stragler'. Did you mean 'straggler'?"),
        (["diagnose", ".", "--set", "straggler.min_exces=1"], "slow_link. Did you mean 'min_excess'?"),
        (["diagnose", ".", "--set", "much"], "ddp-doctor explain RULE lists the thresholds of a rule."),
        (["diagnose", ".", "--scheduler", "localhost"], "with its port, as tcp://host:8786, not 'localhost'."),
        (["whatif", ".", "--without", "no-overlapp"], "--without: There is no rule 'no-overlapp'. Did you mean"),
        (["whatif", ".", "--without", "straggler:9"], "--without: there is no finding 'straggler:9'. The findings are"),
        (["digest", ".", "-o", __file__], "-o takes a folder, and"),
        (["explain", "stragler"], "Did you mean 'straggler' or"),
        (["explain", "zzz"], "'zzz' is no rule and no term. `ddp-doctor explain` lists all rules and terms."),
        (["capture", "/nowhere"], "There is no folder /nowhere: name the one that the job gave its Doctor."),
        (["dump", "/nowhere"], "There is no folder /nowhere: name the one that the job gave its Doctor."),
        (["compare", ".", ".", "--fail-on-regression", "much"], "takes percent, 0 or more, not 'much'"),
        (["slice", ".", "-o", "x.json", "--finding", "0"], "takes the number of a finding, 1 or more, not '0'"),
        (["diagnose", ".", "--cache-size", "-1"], "takes a size in GiB, 0 or more, not '-1'"),
        (["capture", ".", "--ranks", "a-b"], "--ranks takes numbers of ranks, such as 0,5-7, not 'a-b'."),
        (["capture", ".", "--wait", "soon"], "takes seconds, 0 or more, not 'soon'"),
        (["capture", ".", "--steps", "0"], "takes a number of steps, 1 or more, not '0'"),
    ],
)
def test_an_option_says_what_it_takes(
    logdir: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    arguments = [str(logdir) if argument == "." else argument for argument in arguments]
    assert said in refused(capsys, *arguments)


def test_an_option_that_changes_nothing_is_told(logdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", str(logdir), "--no-cache", "--step-range", "step"]) == 0
    assert "--step-range step changes nothing: it is for recordings of Nsight Systems" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------ Python


def test_a_finding_that_a_run_does_not_have_is_no_plan(logdir: Path) -> None:
    (found,) = tb_ddp_doctor.plan(logdir, Question(fixed=("straggler:9",)), cache=None)
    assert found.prediction is None
    assert [one.reason for one in found.refusals] == [
        "There is no finding 'straggler:9' to fix: ddp-doctor diagnose lists this run's."
    ]


def test_what_the_package_exports_is_in_its_dir() -> None:
    names = {"Question", "compare", "diagnose", "examine_dumps", "plan"}
    assert names <= set(dir(tb_ddp_doctor))
    assert all(getattr(tb_ddp_doctor, name) for name in names)
    with pytest.raises(AttributeError):
        _ = tb_ddp_doctor.nothing


@pytest.mark.parametrize(("short", "long"), [("bf16", "bfloat16"), ("fp16", "float16"), ("FP8", "float8")])
def test_a_dtype_means_the_same_on_the_command_line_and_in_python(logdir: Path, short: str, long: str) -> None:
    assert values("dtype", short) == values("dtype", long) == [long]
    (one,), (other,) = (tb_ddp_doctor.plan(logdir, Question(dtype=name), cache=None) for name in (short, long))
    assert one == other
    curves = [tb_ddp_doctor.plan(logdir, curves={"dtype": (name,)}, cache=None) for name in (short, long)]
    assert curves[0] == curves[1]


@pytest.mark.parametrize(
    "question",
    [
        Question(dtype="int8"),
        Question(ranks=0),
        Question(ranks=1.5),  # type: ignore[arg-type]
        Question(sharding="zero4"),
        Question(device="XYZ"),
        Question(workers=-1),
        Question(links=0.0),
        Question(accumulate=True),
    ],
)
def test_a_question_that_makes_no_sense_is_refused(question: Question) -> None:
    with pytest.raises(ValueError, match=r"takes .*, not "):
        checked(question)


def test_a_question_that_makes_sense_stays_as_it_is() -> None:
    question = Question(ranks=16, links=2.0, bucket_mb=25.0, prefetch=0, workers=0, device="H200", sharding="hsdp")
    assert checked(question) == (question, {})
    with pytest.raises(ValueError, match=r"not 'bucketmb'. Did you mean 'bucket_mb'"):
        checked(question, {"bucketmb": (1.0,)})
    assert checked(question, {"links": ("2x",)})[1] == {"links": (2.0,)}
    assert set(FIELDS) < set(Question.__struct_fields__)


def test_devices_that_are_suggested_are_known() -> None:
    assert all(limits(name) for name in DEVICES)


def test_a_table_that_there_is_not_is_refused(logdir: Path) -> None:
    (diagnosis,) = tb_ddp_doctor.diagnose(logdir, cache=None)
    with pytest.raises(ValueError, match=r"A table is one of .*, not 'finding'. Did you mean 'findings'"):
        diagnosis.to_pandas("finding")  # type: ignore[arg-type]
    compared = tb_ddp_doctor.compare(logdir, logdir, cache=None)
    with pytest.raises(ValueError, match=r"A table is one of .*, not 'nope'"):
        compared.to_pandas("nope")  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------ capture


@pytest.fixture
def job(tmp_path: Path) -> JoinedStart:
    """A job of four ranks that listens, and does not answer."""
    Mailbox(tmp_path).open()
    return join(tmp_path, Start("now", 4, "", True), 0)


def test_a_capture_of_a_job_that_has_ended_is_refused_at_once(
    job: JoinedStart, capsys: pytest.CaptureFixture[str]
) -> None:
    job.end()
    assert "has ended. Nothing can be captured." in refused(capsys, "capture", job.logdir, "--wait", "20")
    # A job that is started again listens.
    join(job.logdir, Start("later", 4, "", True), 0)
    assert "No rank answered within 0.2 s" in refused(capsys, "capture", job.logdir, "--wait", "0.2")


def test_a_capture_says_how_long_it_waited_for_an_answer(job: JoinedStart, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, "capture", job.logdir, "--wait", "1")
    assert "No rank answered within 1 s: the job was stopped" in said and "--cancel" in said


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--ranks", "0,9"], "--ranks: there is no rank 9. The job has ranks 0 to 3."),
        (["--steps", "99999"], "--steps: a capture has 1,000 steps at most, not 99,999."),
    ],
)
def test_what_the_job_cannot_capture_is_not_asked_for(
    job: JoinedStart, capsys: pytest.CaptureFixture[str], options: list[str], said: str
) -> None:
    assert said in refused(capsys, "capture", job.logdir, *options)
    assert not os.listdir(job.logdir / ".capture" / "requests")


def test_what_was_asked_for_is_withdrawn(job: JoinedStart, capsys: pytest.CaptureFixture[str]) -> None:
    mailbox = Mailbox(job.logdir)
    waiting, planned, done, ghost = (mailbox.ask(Request(time.time(), "a test")) for _ in range(4))
    mailbox.answer(planned, CaptureWindow(40, 2, request=planned), 0, job)
    mailbox.answer(done, CaptureWindow(20, 2, request=done), 0, job)
    write_json(CaptureFolder.of(job.folder, 20).verdict, CaptureVerdict(20, "", "", (), (), {}))
    plan = CapturePlan(
        start="an earlier start", folder=".", by_rank=0, first=60, steps=2, ranks=None, stacks=False, memory=False
    )
    write_json(job.logdir / ".capture" / "plans" / ghost, plan)
    assert main(["capture", str(job.logdir), "--cancel"]) == 0
    assert capsys.readouterr().out == "2 requests are withdrawn.\n"
    assert [mailbox.is_cancelled(name) for name in (waiting, planned, done, ghost)] == [True, True, False, False]
    assert not Mailbox(job.logdir).unanswered()
    assert "There is no request to withdraw" in refused(capsys, "capture", job.logdir, "--cancel")


@pytest.mark.parametrize(
    ("option", "given", "said"),
    [
        ("--fail-on", "much", "takes percent, 0 or more, not 'much'"),
        ("--seconds", "0", "takes seconds, above 0, not '0'"),
        ("--max-bytes", "lots", "takes a size up to 1024G, such as 64M, not 'lots'"),
        ("--html", "/nowhere/check.html", "/nowhere/check.html cannot be written: there is no folder /nowhere."),
        ("--sconds", "3", "Did you mean '--seconds'?"),
    ],
)
def test_the_check_says_what_its_options_take(
    option: str, given: str, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setenv("TORCH_CPP_LOG_LEVEL", "FATAL")  # as the command sets it, here for this test alone
    try:
        assert check([option, given]) == 2
    except SystemExit as ended:
        assert ended.code == 2
    assert said in " ".join(capsys.readouterr().err.split())


def test_the_check_says_which_backends_there_are() -> None:
    """As a command."""
    pytest.importorskip("torch")
    command = [sys.executable, "-m", "tb_ddp_doctor.check", "--backend", "glo"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "--backend: torch has no 'glo' here. gloo works on CPUs, nccl on GPUs." in done.stderr


@pytest.mark.parametrize("given", ["soon", "-1", "nan", "inf"])
def test_how_long_to_wait_for_a_job_that_hangs_is_a_number(
    given: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert f"takes seconds, 0 or more, not {given!r}" in refused(capsys, "dump", tmp_path, f"--wait={given}")
