"""Sentences of findings about stuck jobs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timezone

from tb_ddp_doctor import wording
from tb_ddp_doctor.stuck.calls import Came, Op
from tb_ddp_doctor.stuck.roots import Root

#: Ranks in a sentence: more are counted.
_MOST_NAMED = 12


def ranks(numbers: Sequence[int]) -> str:
    """As "rank 3", "ranks 0, 1 and 4-7"."""
    ordered = sorted(set(numbers))
    parts = wording.short_ranges(ordered)
    if len(parts) > _MOST_NAMED:
        return f"{len(ordered)} ranks ({', '.join(parts[:_MOST_NAMED])} ...)"
    listed = " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1]))) if parts else "none"
    return f"rank{'' if len(ordered) == 1 else 's'} {listed}"


def time(ns: int) -> str:
    """As "06:55:05.927 UTC"."""
    return f"{datetime.fromtimestamp(ns // 10**9, timezone.utc):%H:%M:%S}.{ns // 10**6 % 1000:03d} UTC"


def seconds(value: float) -> str:
    """As "180 s", "0.4 s", "120 min"."""
    if value >= 3600:
        return f"{wording.whole(value / 60)} min"
    return f"{wording.decimals(value, 0)} s" if value >= 10 else f"{wording.decimals(value, 1)} s"


def kind(op: Op) -> str:
    """As "all_to_all", "send"."""
    return {"recv": "receive"}.get(op.operation.kind, op.operation.kind)


def called(op: Op) -> str:
    """As "all_to_all 20947", "send 11981 to rank 12"."""
    way = {"send": f" to rank {op.partner}", "recv": f" from rank {op.partner}"}.get(op.operation.kind, "")
    return f"{kind(op)} {op.sequence}{way}"


def group(op: Op) -> str:
    """As "EXPERT_MODEL_PARALLEL_GROUP (group 74: ranks 12-15)"."""
    return f"{op.group.description or 'process group'} (group {op.group.name}: {ranks(op.group.ranks)})"


def what(op: Op) -> str:
    """As "all_to_all 20947 of EXPERT_MODEL_PARALLEL_GROUP"."""
    return f"{called(op)} {'in' if op.is_p2p else 'of'} {op.group.description or f'group {op.group.name}'}"


def size(op: Op) -> str:
    """As "4096x5120 BFloat16"; "" where it has no tensors."""
    sizes = op.shape.inputs or op.shape.outputs
    dtypes = dict.fromkeys(op.shape.input_dtypes or op.shape.output_dtypes)
    shown = " + ".join("x".join(map(str, one)) for one in sizes[:3]) + (" ..." if len(sizes) > 3 else "")
    return " ".join(filter(None, (shown, ", ".join(dtypes))))


def title(root: Root) -> str:
    """One sentence that names the ranks and the call."""
    who = ranks(root.ranks)
    return f"{who[0].upper()}{who[1:]} {_did(root)}."


def _did(root: Root) -> str:
    op = root.op
    of = op.group.description or f"group {op.group.name}"
    call = what(op)
    one = len(root.ranks) == 1
    if root.cause == "missing" and root.call is None:
        return f"never {'receives from' if op.operation.kind == 'send' else 'sends to'} rank {op.rank} in {of}"
    if root.cause == "wrong-order" and root.mismatch:
        return f"came to the collectives of {of} in another order"
    return {
        "missing": f"never came to {call}",
        "no-dump": f"left no dump{'' if one else 's'}, and the job waits for {'it' if one else 'them'} in {of}",
        "not-completed": f"launched {call} and never completed it, though partners did",
        "not-started": f"launched {call}, and its kernel never started there",
        "mismatch": f"came to {call} with another {_difference(root)}",
        "wrong-order": "wait for each other: they call the collectives of their groups in different order",
        "p2p-in-collective": f"wait{'s' if one else ''} in a send or receive of {of}, where others wait in {call}",
        "p2p-circle": "wait for each other in sends and receives: none can go on",
        "stalled": f"all came to {call}, and none completed it",
    }[root.cause]


def _difference(root: Root) -> str:
    return {"collective": "collective", "size": "size", "dtype": "element type"}[
        root.mismatch.difference if root.mismatch else "collective"
    ]


def why(root: Root, waiting: Sequence[int], world_size: int, oldest: Op, waited_s: float | None) -> str:
    """What was seen: the evidence, who waits, and since when."""
    it = "it" if len(root.ranks) == 1 else "them"
    parts = [_seen(root)]
    if root.cause != "stalled" and waiting:
        parts.append(
            f"{len(waiting)} of {world_size} ranks {_wait(waiting)} for {it}, directly or through other groups: "
            f"{ranks(waiting)}."
        )
    return " ".join(filter(None, (*parts, _when(oldest, waited_s))))


def _wait(ranks: Sequence[int]) -> str:
    return "waits" if len(ranks) == 1 else "wait"


def _when(oldest: Op, waited_s: float | None) -> str:
    limit = f"the timeout is {seconds(oldest.timeout_ms / 1e3)}" if oldest.timeout_ms > 0 else ""
    if oldest.created_ns <= 0:
        return f"{limit[:1].upper()}{limit[1:]}." if limit else ""
    begun = f"Rank {oldest.rank} enqueued its part at {time(oldest.created_ns)} (its own clock)"
    written = f"its dump was written at most {seconds(waited_s)} later" if waited_s is not None else ""
    return f"{'; '.join(filter(None, (begun, written, limit)))}."


def _seen(root: Root) -> str:
    call, op = root.call, root.op
    here = f"{group(op)}, {size(op)}" if size(op) else group(op)
    match root.cause:
        case "missing" | "no-dump" if call is None:
            return f"{ranks([op.rank]).capitalize()} waits in {called(op)} in {here}."
        case "missing" | "no-dump" if call is not None:
            came = call.of(Came.ENQUEUED)
            return f"{ranks(came).capitalize()} enqueued it in {here}, and {_wait(came)}."
        case "not-completed" if call is not None:
            done = ranks(call.of(Came.COMPLETED)).capitalize()
            needs = (
                "It needs data of every rank, so all ranks launched it"
                if root.is_sure
                else "It likely needs data of every rank, so all ranks likely launched it"
            )
            stopped = f"the GPU of {ranks(root.ranks)} stopped, or torch did not see it end"
            return f"{done} completed it in {here}. {needs}: {stopped}."
        case "not-started":
            return f"All ranks of {here} enqueued it, and its kernel runs on the others."
        case "mismatch" | "wrong-order" if root.mismatch is not None:
            sides = "; ".join(f"{ranks(side)}: {text}" for side, text in root.mismatch.sides)
            return f"In {here}: {sides}."
        case "stalled":
            return f"In {here}. The dumps do not tell which rank or link stopped it."
        case "p2p-in-collective" if call is not None:
            return f"{ranks(call.of(Came.ENQUEUED)).capitalize()} enqueued {op.operation.kind} {op.sequence} in {here}."
        case _:
            steps = (f"rank {wait.op.rank} for {ranks(wait.targets)} ({what(wait.op)})" for wait in root.circle)
            return f"They wait in a circle: {'; '.join(steps)}."


def fix(root: Root, hosts: Sequence[str]) -> str:
    """What to do, and on which hosts: advice, an empty line, the command."""
    on = f" on {', '.join(hosts)}" if hosts else ""
    return _filled(*_advice(root), root.ranks, on)


def advice(cause: str, numbers: Sequence[int]) -> str:
    """What to do about ranks of which nothing but their cause is known."""
    return _filled(*_FIXES[cause], numbers, "")


#: "[is|are]" in an advice: of one rank, of several.
_NUMBER = re.compile(r"\[([^|\]]*)\|([^\]]*)\]")


def _filled(said: str, command: str, numbers: Sequence[int], on: str) -> str:
    """Advice, an empty line and the command, with the ranks that they are about."""
    said = _NUMBER.sub(r"\1" if len(numbers) == 1 else r"\2", said).format(who=f"{ranks(numbers)}{on}")
    command = command.format(ranks=" ".join(f"-e RANK={rank}" for rank in sorted(numbers)[:_MOST_NAMED]))
    return f"{said}\n\n{command}" if command else said


def _advice(root: Root) -> tuple[str, str]:
    """Advice and command for a cause: by what the ranks differ in, and by what carries the call out."""
    if root.mismatch is not None and root.cause == "mismatch" and root.mismatch.difference == "collective":
        return _OTHER_COLLECTIVE
    if root.op.operation.backend == "gloo":
        return _OF_GLOO.get(root.cause, _FIXES[root.cause])
    return _FIXES[root.cause]


_OTHER_COLLECTIVE = (
    "Make all ranks call the same collective there: look for a branch on the rank or on data around the call, for a "
    "call that only some ranks skip, and for several threads that use one group. With this variable torch checks each "
    "call, slowly.",
    "TORCH_DISTRIBUTED_DEBUG=DETAIL",
)
#: Runs a command for each process of some ranks on a machine: launchers set RANK in their environment.
_EACH_PROCESS = "for pid in $(grep -lzx {{ranks}} /proc/[0-9]*/environ 2>/dev/null | cut -d/ -f3); do\n{}\ndone"
_CPU_FAULT = (
    "Look at the [process|processes] of {who} and at the network between the hosts: gloo moves data in threads of the "
    "ranks, so a stopped process, a lost connection or a core that nobody gets look the same.",
    _EACH_PROCESS.format("  py-spy dump --native --pid $pid; ss -tnp | grep pid=$pid,"),
)
#: Where the CPU carries the collective out, there is no GPU to look at.
_OF_GLOO = {"not-completed": _CPU_FAULT, "not-started": _CPU_FAULT, "stalled": _CPU_FAULT}
_GPU_FAULT = (
    "Look for GPU faults of {who}: Xid errors, ECC errors, a GPU fallen off the bus, a kernel that never ends. "
    "Take the node out of the job if there are any.",
    "dmesg -T | grep -i xid\nnvidia-smi -q | grep -iE -A4 'ecc errors|retired|remapped'",
)
_FIXES = {
    "missing": (
        "Look at what {who} [does: it waits|do: they wait] in no collective. "
        "[Its Python stack shows whether it is|Their Python stacks show whether they are] in the input pipeline, in a "
        "checkpoint, in code that only some ranks run, or stopped (GIL, SIGSTOP); "
        "[its log, whether it|their logs, whether they] raised an exception.",
        _EACH_PROCESS.format("  py-spy dump --native --pid $pid"),
    ),
    "no-dump": (
        "Look whether the [process of {who} still runs, and how it|processes of {who} still run, and how they] ended: "
        "[its log, its exit code|their logs, their exit codes] in the launcher's log, and the kernel's log for the OOM "
        "killer.",
        "dmesg -T | grep -iE 'out of memory|oom|xid'",
    ),
    "not-completed": _GPU_FAULT,
    "not-started": _GPU_FAULT,
    "mismatch": (
        "Make all ranks call it with the same sizes and types: uneven last batches, another configuration on some "
        "ranks and padding to a local length are the usual reasons. With this variable torch checks each call, slowly.",
        "TORCH_DISTRIBUTED_DEBUG=DETAIL",
    ),
    "wrong-order": (
        "Make all ranks call collectives in the same order: look for branches on the rank or on data, and for several "
        "threads that call them. With this variable torch checks each call, slowly.",
        "TORCH_DISTRIBUTED_DEBUG=DETAIL",
    ),
    "p2p-in-collective": (
        "Look for a branch on the rank: {who} [sends or receives|send or receive] where the other ranks call a "
        "collective.",
        "",
    ),
    "p2p-circle": (
        "Order the sends and receives so that one side receives first, or post them together.",
        "torch.distributed.batch_isend_irecv([P2POp(isend, ...), P2POp(irecv, ...)])",
    ),
    "stalled": (
        "Look for faults of the GPUs and of the network between {who}. With timing, the dumps tell on which ranks the "
        "kernel started.",
        "TORCH_NCCL_ENABLE_TIMING=1 NCCL_DEBUG=INFO",
    ),
}
