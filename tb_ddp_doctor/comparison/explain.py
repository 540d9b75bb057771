"""A comparison in sentences: the step time, what made the difference, and what else sets the two runs apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator

from tb_ddp_doctor import kernel_names, wording
from tb_ddp_doctor.comparison.model import ComparedAmount, Comparison, FindingChange, StepTime
from tb_ddp_doctor.comparison.significance import TELLING
from tb_ddp_doctor.digest.operators import STEP
from tb_ddp_doctor.engine import Result
from tb_ddp_doctor.step_parts import OWNERS
from tb_ddp_doctor.trace import names

#: Where the step time does not change significantly, owners and findings must change by this share of it.
_SHIFTED = 0.1
#: Copies of less time in a step, and a smaller change of the share of it that is hidden, are not reported.
_COPIES_MS = 0.05
_OVERLAP = 0.25
#: An operator with less of a change of compute is not named; nor are any that together make less than half of it.
_LARGE_PART, _MOST_OF_IT = 0.15, 0.5

#: Kernels that are named as slower against their attainable speed.
_SLOWER = 3

#: Where a DataLoader makes its batches, by `RankDigest.loader`.
_LOADERS = {"single_process": "in the training process (num_workers=0)", "workers": "in worker processes"}


def headline(before: str, after: str, step: StepTime) -> str:
    """What became of the step time."""
    if before == after:
        before, after = "the earlier run", "The later run"
    times = f"{after} takes {wording.duration(step.after_ms)} a step, {before} {wording.duration(step.before_ms)}"
    if abs(step.change) < TELLING:
        return f"No significant difference: {times}."
    change = _longer(step.change)
    if step.interval is None:
        return f"{times}: {change}, but one step cannot show whether this is noise."
    low, high = step.interval
    if not step.tells:
        return (
            f"{times}: {change}, which may be noise ({wording.decimals(low * 100, 0, '+')} to "
            f"{wording.decimals(high * 100, 0, '+')} % with 95 % confidence)."
        )
    if step.change >= 1:
        return (
            f"{times}: {change} ({wording.decimals(1 + low, 1)} to {wording.decimals(1 + high, 1)} with 95 % "
            "confidence)."
        )
    least, most = sorted((abs(low), abs(high)))
    return f"{times}: {change} ({wording.percents(least, most)} with 95 % confidence)."


def _longer(change: float) -> str:
    """As in "14 % less", "14 % more", "2.4 times as long"."""
    if change >= 1:
        return f"{wording.decimals(1 + change, 1)} times as long"
    return f"{wording.percent(abs(change))} {'less' if change < 0 else 'more'}"


def story(comparison: Comparison, certain: Collection[str], loaders: tuple[str, str]) -> Iterator[str]:
    """What made the difference.

    Without a significant change of the step time, only large changes are reported, of the owners and rules that are
    `certain`: whose own change is significant. `loaders` are how both runs' DataLoaders work, as `RankDigest.loader`
    has it.
    """
    step = comparison.step
    least = (TELLING if step.tells else _SHIFTED) * step.before_ms

    def matters(name: str, change_ms: float) -> bool:
        return abs(change_ms) >= least and (step.tells or name in certain)

    for owner in sorted(comparison.owners, key=lambda owner: -abs(owner.change_ms)):
        if not matters(owner.name, owner.change_ms):
            continue
        yield _owner(owner, step)
        if owner.name == "input":
            yield from _loader(*loaders)
        if owner.name == "compute":
            yield from _operators(comparison, owner.change_ms)
            yield from _slower(comparison, least)
    if step.tells:
        yield from _copies(comparison.copies, comparison.exposed_copies, comparison.blocking_copies)
    for finding in comparison.findings:
        if finding.fate != "same" and matters(finding.rule, finding.after_ms - finding.before_ms):
            yield _finding(finding)
    if step.doubt:
        yield step.doubt


def _owner(owner: ComparedAmount, step: StepTime) -> str:
    went = "fell" if owner.change_ms < 0 else "rose"
    change = step.after_ms - step.before_ms
    # Owners sum to the step, so that their changes sum to its change.
    share = owner.change_ms / change if step.tells else 0.0
    part = f", {wording.percent(share)} of the difference" if 0.05 <= share <= 1 else ""
    return (
        f"{OWNERS[owner.name].spent} {went} from {wording.decimals(owner.before_ms, 1)} to "
        f"{wording.decimals(owner.after_ms, 1)} ms a step{part}."
    )


def _loader(was: str, now: str) -> Iterator[str]:
    if was != now and was in _LOADERS and now in _LOADERS:
        yield f"Batches are now loaded {_LOADERS[now]}; before, {_LOADERS[was]}."


def _operators(comparison: Comparison, change_ms: float) -> Iterator[str]:
    """The operators that launch what made most of a change of compute."""
    listed = [each for each in comparison.operators if each.name not in ("", STEP)]
    on_device = any(each.before_device_ms or each.after_device_ms for each in comparison.operators)
    changes = {
        each.name: each.after_device_ms - each.before_device_ms
        if on_device
        else each.after_host_ms - each.before_host_ms
        for each in listed
        if not names.launches_collective(each.name)
    }
    # Measured against the change itself, so that those that went the other way are none of them.
    large = [name for name, change in changes.items() if change / change_ms >= _LARGE_PART]
    large.sort(key=lambda name: (-abs(changes[name]), name))
    if sum(changes[name] for name in large) / change_ms >= _MOST_OF_IT:
        named = wording.listing(
            [f"{kernel_names.short(name)} ({wording.decimals(changes[name], 1, '+')} ms)" for name in large]
        )
        place = "device" if on_device else "host"
        yield f"On the {place} {'more' if change_ms > 0 else 'less'} goes to {named}."


def _slower(comparison: Comparison, least_ms: float) -> Iterator[str]:
    """The calls that fell behind their attainable speed, if that lengthens the step as much as is worth a sentence."""
    slower = [one for one in comparison.roofs if one.lost_ms > 0]
    if sum(one.lost_ms for one in slower) < least_ms:
        return
    named = wording.listing(
        [
            f"{one.operator.rpartition('::')[2]} of {one.inputs} ({wording.percent(one.after_share)} of it, "
            f"{wording.percent(one.before_share)} before)"
            for one in slower[:_SLOWER]
        ]
    )
    lost = wording.duration(sum(one.lost_ms for one in slower))
    yield f"Slower against their attainable speed, which takes {lost} a step: {named}."


def _copies(taken: ComparedAmount, exposed: ComparedAmount, blocking: ComparedAmount) -> Iterator[str]:
    if min(taken.before_ms, taken.after_ms) < _COPIES_MS:
        return
    if max(blocking.before_ms, blocking.after_ms) >= _COPIES_MS and min(blocking.before_ms, blocking.after_ms) == 0:
        yield (
            f"Copies {'no longer block the CPU' if blocking.before_ms else 'now block the CPU'}: "
            f"{wording.decimals(blocking.after_ms, 2)} ms a step now, {wording.decimals(blocking.before_ms, 2)} ms "
            "before. On the GPU they take "
            f"{wording.decimals(taken.after_ms, 2)} ms instead of {wording.decimals(taken.before_ms, 2)} ms."
        )
    was, now = exposed.before_ms / taken.before_ms, exposed.after_ms / taken.after_ms
    if abs(was - now) >= _OVERLAP:
        yield (
            f"Copies {'now overlap' if now < was else 'no longer overlap'} with kernels: "
            f"{wording.decimals(exposed.after_ms, 2)} of {wording.decimals(taken.after_ms, 2)} ms are exposed, "
            f"{wording.decimals(exposed.before_ms, 2)} of {wording.decimals(taken.before_ms, 2)} ms before."
        )


def _finding(finding: FindingChange) -> str:
    if finding.fate == "new":
        return f"{finding.rule} is new: it costs {wording.duration(finding.after_ms)} a step."
    if finding.fate == "fixed":
        return f"{finding.rule} is fixed: it cost {wording.duration(finding.before_ms)} a step."
    costs = f"it cost {wording.duration(finding.before_ms)} a step, and now {wording.duration(finding.after_ms)}"
    return f"{finding.rule} is {finding.fate}: {costs}."


def unlike(before: Result, after: Result) -> Iterator[str]:
    """What makes the two hard to compare, beside how fast they are."""
    for diagnosis in (before.diagnosis, after.diagnosis):
        if cut := len(diagnosis.incomplete):
            yield f"{diagnosis.name}: {cut} {'file is' if cut == 1 else 'files are'} missing or incomplete here."
        if missing := len(diagnosis.missing_ranks):
            are = "is" if missing == 1 else "are"
            yield (
                f"{diagnosis.name}: {missing} of {diagnosis.world_size} ranks {are} missing here; "
                "straggler wait for them is not seen."
            )
    worlds = before.diagnosis.world_size, after.diagnosis.world_size
    if worlds[0] != worlds[1]:
        yield (
            f"{after.diagnosis.name} ran on {_ranks(worlds[1])}, {before.diagnosis.name} on {_ranks(worlds[0])}: "
            "all times are per rank and step, and do not account for the batch size."
        )
    trains = _trains(before), _trains(after)
    if trains[0] != trains[1]:
        with_, without = (before, after) if trains[0] else (after, before)
        yield (
            f"{without.diagnosis.name} shows no backward pass, which {with_.diagnosis.name} does: "
            "their steps may do different work."
        )
    ranges = _step_range(before), _step_range(after)
    if ranges[0] != ranges[1] and all(ranges):
        yield (
            f"Steps are the NVTX range {wording.encodable(ranges[1])!r} after, {wording.encodable(ranges[0])!r} "
            "before: they may do different work. --step-range NAME chooses one of both."
        )
    on_device = before.job.has_device, after.job.has_device
    if on_device[0] != on_device[1]:
        name = (after if on_device[0] else before).diagnosis.name
        yield f"{name} has no GPU events: its steps are those of the CPU."
    devices = before.job.device, after.job.device
    if devices[0] != devices[1] and all(devices):
        yield f"The GPUs differ: {wording.encodable(devices[1])} after, {wording.encodable(devices[0])} before."


def _step_range(result: Result) -> str:
    """The NVTX range that the steps of most ranks are; "" where none was chosen."""
    named = Counter(digest.header.step_range for digest in result.job.digests)
    return named.most_common(1)[0][0] if named else ""


def _ranks(count: int) -> str:
    return f"{count} rank{'' if count == 1 else 's'}"


def _trains(result: Result) -> bool:
    """Whether a backward pass is seen."""
    return any(phases["backward"] > 0 for phases in result.diagnosis.host_phases_ms.values())
