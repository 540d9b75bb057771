"""The digest of a rank that computes on its CPU: operators stand for kernels, and gloo's events for communication."""

from __future__ import annotations

import msgspec
import numpy as np

from tb_ddp_doctor.digest import model, owners
from tb_ddp_doctor.digest.allocator import ON_CPU, Allocations
from tb_ddp_doctor.digest.collectives import host_collectives
from tb_ddp_doctor.digest.compiled import compiled_work
from tb_ddp_doctor.digest.device_events import DeviceEvents
from tb_ddp_doctor.digest.frames import code, stalled
from tb_ddp_doctor.digest.gap_ops import gap_ops
from tb_ddp_doctor.digest.graph_walks import graph_walks
from tb_ddp_doctor.digest.host_calls import HostCalls
from tb_ddp_doctor.digest.intervals import EMPTY
from tb_ddp_doctor.digest.kernels import operators_as_kernels
from tb_ddp_doctor.digest.late_launches import recording
from tb_ddp_doctor.digest.launches import DeviceRows
from tb_ddp_doctor.digest.lost_kernels import without_device
from tb_ddp_doctor.digest.memory import memory
from tb_ddp_doctor.digest.modules import host_modules
from tb_ddp_doctor.digest.operators import operators
from tb_ddp_doctor.digest.phases import HostPhases, exposed_on_host, host_phases, stalled_phases
from tb_ddp_doctor.digest.point_to_point import messages
from tb_ddp_doctor.digest.recorded_steps import contents_and_rounds, contents_and_steps
from tb_ddp_doctor.digest.serving import serving_work
from tb_ddp_doctor.digest.steps import NO_STEP
from tb_ddp_doctor.digest.trace_contents import loader_kind
from tb_ddp_doctor.digest.vocabulary import Vocabulary
from tb_ddp_doctor.findings import FileWarning
from tb_ddp_doctor.storage.column_table import empty
from tb_ddp_doctor.trace.model import Ints, RankTrace

#: In place of a device's number.
_NO_DEVICE = -1


class _HostRank(msgspec.Struct, frozen=True, eq=False):
    """What several parts of the digest are made from: what the host does in the steps, made once."""

    host: HostCalls
    #: No event.
    device: DeviceEvents
    steps: model.Steps
    #: Which calls compute, and which call or are collectives.
    operators: owners.HostOperators
    #: When something runs that may own the rank's time.
    layers: owners.Layers
    #: Each owner's time in each step, shape (S, len(RankOwner)), and the pieces of steps that are kept.
    owner_ns: Ints
    pieces: model.Pieces
    #: When the host is in which phase.
    phases: HostPhases

    @classmethod
    def of(cls, host: HostCalls, steps: model.Steps) -> _HostRank:
        device = DeviceEvents.of(host, _NO_DEVICE, DeviceRows.none(host.trace.events))
        calls = owners.host_operators(host)
        layers = owners.host_layers(host, calls)
        owner_ns, pieces = owners.cut(layers, steps)
        return cls(host, device, steps, calls, layers, owner_ns, pieces, host_phases(host, device))


def digest_host(host: HostCalls, *, is_one_step: bool = False) -> model.RankDigest:
    """The digest of a rank without kernels of a device; whatever is marked in it, it `is_one_step` where so told.

    Names are numbered in the order in which the parts ask for them.
    """
    trace, words = host.trace, Vocabulary()
    contents, (number, start, end) = contents_and_rounds(host, None) if is_one_step else contents_and_steps(host)
    keep = (end > start) & (number != NO_STEP)
    steps = model.Steps(number[keep], start[keep], end[keep], start[keep], end[keep])
    rank = _HostRank.of(host, steps)
    device, pieces, allocations = rank.device, rank.pieces, Allocations.of(trace, ON_CPU, steps)
    collectives = host_collectives(host, steps, end.max(initial=0), words)
    return model.RankDigest(
        file=trace.file,
        header=trace.header,
        has_device=False,
        device="",
        device_number=_NO_DEVICE,
        device_bytes=0,
        has_launches=False,
        earlier_kernels=0,
        has_steps=contents.steps_from != "",
        pid=host.training_process(),
        loader=loader_kind(trace),
        lost_kernels=without_device(number[number != NO_STEP]),
        steps=steps,
        work=_step_work(rank),
        pieces=pieces,
        collectives=collectives,
        messages=messages(trace, steps),
        message_ends=empty(model.MessageEnds),
        host_meetings=empty(model.HostMeetings),
        kernels=operators_as_kernels(host, rank.operators.computing, steps, words),
        operators=operators(host, device, steps, words),
        blocking=empty(model.Blocking),
        stalled=stalled(host, pieces, words),
        gap_ops=gap_ops(host, device, pieces, words),
        code=code(host, device, np.empty(0, np.int64), np.empty(0, np.int64), words),
        op_stalls=empty(model.OpStalls),
        memory=memory(host, ON_CPU, allocations, steps, rank.phases, collectives, words),
        track=empty(model.Track),
        roofline=empty(model.Roofline),
        gradients=empty(model.Gradients),
        modules=host_modules(host, steps, rank.layers, rank.operators, rank.phases, allocations, words),
        contents=contents,
        warnings=(*trace.warnings, *_group_warnings(trace, collectives)),
        strings=words.strings(),
    )


def _step_work(rank: _HostRank) -> model.StepWork:
    """What each step did; nothing in the tables on a device's work."""
    host, steps = rank.host, rank.steps
    phase_ns = rank.phases.measure(steps)
    return model.StepWork(
        owner_ns=rank.owner_ns,
        phases=model.PhaseWork(
            host_ns=phase_ns,
            device_ns=phase_ns,
            exposed_ns=exposed_on_host(rank.phases, rank.pieces, steps),
            stalled_ns=stalled_phases(rank.phases, rank.pieces, steps),
        ),
        kernels=model.zeros(model.KernelWork, len(steps)),
        loader_ns=rank.layers.input.measure(steps.start_ns, steps.end_ns),
        copies=model.zeros(model.CopyWork, len(steps)),
        gemms=model.zeros(model.GemmWork, len(steps)),
        flops=model.zeros(model.FlopWork, len(steps)),
        optimizer=model.zeros(model.OptimizerWork, len(steps)),
        attention=model.zeros(model.AttentionWork, len(steps)),
        redundant=model.zeros(model.RedundantWork, len(steps)),
        recording_ns=recording(host, rank.device, steps),
        graph_walks=graph_walks(host, steps),
        serving=serving_work(host, steps, EMPTY, (steps.number * 0, steps.number * 0)),
        compiled=compiled_work(host, steps, rank.phases, np.zeros(len(steps), np.int64)),
        late_launch_ns=np.zeros((len(steps), len(model.LaunchDelay)), np.int64),
    )


def _group_warnings(trace: RankTrace, collectives: model.Collectives) -> list[FileWarning]:
    """Gloo's events do not name their process group, so with several groups a match is a guess."""
    groups = sum(len(ranks) > 1 for ranks in trace.header.groups.values())
    unnamed = int((collectives.group_size < 0).sum())
    if groups < 2 or not unnamed:
        return []
    return [
        FileWarning(
            trace.file,
            f"This rank is in {groups} process groups, and {unnamed} collectives do not name theirs: some may be "
            "matched with ranks outside their group.",
        )
    ]
