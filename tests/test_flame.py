"""Modules as profiles that other viewers read: pprof's protobuf and collapsed stacks."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given
from hypothesis import strategies as st
from load import DEMO_LOGS
from test_modules import of_run, with_mlp_until
from traces import write

from tb_ddp_doctor.cli import main
from tb_ddp_doctor.facts import MissingFactError
from tb_ddp_doctor.report.flame import AMOUNTS, ModuleStack, collapsed, pprof

_TYPES = {"u": descriptor_pb2.FieldDescriptorProto.TYPE_UINT64, "i": descriptor_pb2.FieldDescriptorProto.TYPE_INT64}
#: The part of profile.proto that is written, by message: name, number, type (or message) and whether it repeats.
_PROTO = {
    "ValueType": [("type", 1, "i", False), ("unit", 2, "i", False)],
    "Label": [("key", 1, "i", False), ("str", 2, "i", False), ("num", 3, "i", False)],
    "Sample": [("location_id", 1, "u", True), ("value", 2, "i", True), ("label", 3, "Label", True)],
    "Line": [("function_id", 1, "u", False), ("line", 2, "i", False)],
    "Location": [("id", 1, "u", False), ("line", 4, "Line", True)],
    "Function": [("id", 1, "u", False), ("name", 2, "i", False)],
    "Profile": [
        ("sample_type", 1, "ValueType", True),
        ("sample", 2, "Sample", True),
        ("location", 4, "Location", True),
        ("function", 5, "Function", True),
        ("string_table", 6, "s", True),
        ("default_sample_type", 14, "i", False),
    ],
}


def decoded(data: bytes) -> list[ModuleStack]:
    """The stacks that protobuf's own decoder reads."""
    file = descriptor_pb2.FileDescriptorProto(name="profile.proto", package="perftools", syntax="proto3")
    for name, fields in _PROTO.items():
        message = file.message_type.add(name=name)
        for field, number, kind, repeats in fields:
            label = descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED if repeats else 1
            one = message.field.add(name=field, number=number, label=label)
            if kind in _TYPES:
                one.type = _TYPES[kind]
            elif kind == "s":
                one.type = descriptor_pb2.FieldDescriptorProto.TYPE_STRING
            else:
                one.type = descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE
                one.type_name = f".perftools.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    profile = message_factory.GetMessageClass(pool.FindMessageTypeByName("perftools.Profile"))()
    profile.ParseFromString(gzip.decompress(data))
    text = list(profile.string_table)
    assert text[0] == ""
    kinds = {text[one.type]: text[one.unit] for one in profile.sample_type}
    assert kinds.items() <= AMOUNTS.items() and list(kinds) == [name for name in AMOUNTS if name in kinds]
    assert text[profile.default_sample_type] == "time"
    functions = {one.id: text[one.name] for one in profile.function}
    places = {one.id: functions[one.line[0].function_id] for one in profile.location}
    return [
        ModuleStack(
            tuple(places[at] for at in reversed(one.location_id)),
            one.label[0].num,
            dict(zip(kinds, one.value, strict=True)),
        )
        for one in profile.sample
    ]


@given(
    st.lists(
        st.builds(
            ModuleStack,
            st.lists(st.text(st.characters(codec="utf-8")), min_size=1, max_size=4).map(tuple),
            st.integers(0, 1 << 20),
            st.fixed_dictionaries(dict.fromkeys(AMOUNTS, st.integers(0, 1 << 62))),
        ),
        max_size=8,
    )
)
def test_protobuf_reads_the_stacks_that_were_written(found: list[ModuleStack]) -> None:
    assert decoded(pprof(found)) == found


def test_collapsed_stacks_have_a_line_each_whatever_modules_are_called() -> None:
    found = [
        ModuleStack(("job", "a;b\n", "forward"), 0, {"time": 12, "launches": 1}),
        ModuleStack(("job", "c", "backward"), 1, {"time": 5, "launches": 3}),
    ]
    assert collapsed(found).decode() == "job;rank 0;a_b_;forward 12\njob;rank 1;c;backward 5\n"
    assert collapsed(found[:1]).decode() == "job;a_b_;forward 12\n"
    assert collapsed(found[1:], "launches").decode() == "job;c;backward 3\n"


def test_what_is_not_known_of_all_runs_is_left_out() -> None:
    always = {"time": 12, "launches": 1}
    work = {"above": 4, "flops": 800, "bytes": 60, "critical": 9}
    found = [ModuleStack(("job", "gemm"), 0, always | work), ModuleStack(("other", "gemm"), 0, always)]
    assert [one.amounts for one in decoded(pprof(found))] == [always, always]
    assert collapsed(found, "flops").decode() == "job;gemm 800\n"
    with pytest.raises(MissingFactError, match="record_shapes=True"):
        collapsed(found[1:], "flops")
    with pytest.raises(MissingFactError, match="no critical path"):
        collapsed(found[1:], "critical")


def test_times_of_a_rank_sum_to_its_step(tmp_path: Path) -> None:
    job = of_run(tmp_path, *map(with_mlp_until, (40, 60)))
    profile, text = tmp_path / "job.pb.gz", tmp_path / "job.collapsed"
    assert main(["diagnose", job, "--pprof", str(profile), "--collapsed", str(text), "--rank", "1"]) == 0
    found = decoded(profile.read_bytes())
    assert sum(one.amounts["time"] for one in found) == sum(
        int(line.rpartition(" ")[2]) for line in text.read_text().splitlines()
    )
    frames = ("job", "layers", "layers.0", "layers.0.mlp", "forward", "aten::mm", "gemm")
    (gemm,) = [one for one in found if one.frames == frames]
    assert (gemm.rank, gemm.amounts["time"], gemm.amounts["launches"]) == (1, 4_000_000, 1)
    assert "job;layers;layers.0;layers.0.mlp;forward;aten::mm;gemm 4000000\n" in text.read_text()


def test_the_work_of_a_demo_is_in_its_stacks(tmp_path: Path) -> None:
    """Its layers are guesses, and its traces have the sizes of inputs."""
    profile, text = tmp_path / "job.pb.gz", tmp_path / "job.collapsed"
    wanted = ["--pprof", str(profile), "--collapsed", str(text), "--collapsed-amount", "flops", "--rank", "0"]
    assert main(["diagnose", str(DEMO_LOGS / "healthy"), *wanted]) == 0
    found = decoded(profile.read_bytes())
    flops = sum(one.amounts["flops"] for one in found)
    assert flops == sum(int(line.rpartition(" ")[2]) for line in text.read_text().splitlines())
    # Eight layers' GEMMs and attention, forward and backward.
    assert 1e11 < flops < 1e13
    time, above = (sum(one.amounts[name] for one in found) for name in ("time", "above"))
    assert 0 < above < time


def test_the_stacks_of_all_ranks_sum_to_the_critical_path(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profile, text = tmp_path / "job.pb.gz", tmp_path / "job.collapsed"
    wanted = ["--pprof", str(profile), "--collapsed", str(text), "--collapsed-amount", "critical", "--json"]
    assert main(["diagnose", str(DEMO_LOGS / "straggler_cpu"), *wanted]) in (0, 1)
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    step_ns = 1e6 * run["layers"]["rows"][0]["critical_ms"]
    found = decoded(profile.read_bytes())
    # Each of some hundred stacks is rounded to a nanosecond.
    assert sum(one.amounts["critical"] for one in found) == pytest.approx(step_ns, abs=len(found))
    assert sum(int(line.rpartition(" ")[2]) for line in text.read_text().splitlines()) == pytest.approx(
        step_ns, abs=len(found)
    )
    assert {one.frames[1:] for one in found if not one.amounts["time"]} <= {("outside of all kernels",)}


def test_traces_that_name_no_modules_write_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "job", "step |1\nhost [work]")
    profile = tmp_path / "job.pb.gz"
    assert main(["diagnose", str(tmp_path / "job"), "--pprof", str(profile)]) == 2
    assert not profile.exists()
    assert "No trace names the model's modules" in " ".join(capsys.readouterr().err.split())
