"""One rank of a check: the phases that all ranks go through together, and what happens when one does not answer.

A phase begins when all ranks have arrived at it, by the store. A rank that does not arrive is named, by those that did;
they then stop, since no collective can go on without it, and give what was found until then. Nothing waits for ever:
phases and collectives have a patience, and each process ends by itself when the whole time is over, whatever hangs.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import faulthandler
import functools
import logging
import math
import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

import msgspec
import numpy as np
import torch
from torch import distributed

from tb_ddp_doctor.calibration.model import Calibration, MeasureKind, NoAnswer, Pair
from tb_ddp_doctor.check import core_share, outliers
from tb_ddp_doctor.check.collectives import KINDS, largest, ping_pong, timed
from tb_ddp_doctor.check.cores import allowed, compact, expanded, quota
from tb_ddp_doctor.check.device import Device
from tb_ddp_doctor.check.measures import plans, throttled
from tb_ddp_doctor.check.pairs import schedule
from tb_ddp_doctor.check.repeats import Floats, LocalRanks, longest_s, repeated
from tb_ddp_doctor.check.results import Host, RankCurve, RankResults, assemble, node_names
from tb_ddp_doctor.check.store import Board, NotAllAnsweredError
from tb_ddp_doctor.check.turns import at_once
from tb_ddp_doctor.known_type import known

T = TypeVar("T")
_log = logging.getLogger(__name__)

#: Of the time that is given for collectives and pairs, pairs take this share.
_PAIRS_SHARE = 0.25
#: Large enough for bandwidth.
_GPU_PAIR_BYTES, _CPU_PAIR_BYTES = 64 << 20, 4 << 20
#: After the whole time is over, so long is left to name who does not answer, s.
_LAST_WORDS_S = 10
_ROLL_CALL_S = 5.0
#: Until all have started, patience is so many times as long: torch is slow to import from a shared file system.
_START_TIMES = 4
#: That are repeated, of a GPU and of its CPU.
_MEASURES = 11
#: As torchrun's.
_PORT = 29500
#: What launchers call rank, world size, local rank and node, those of torchrun first.
_LAUNCHERS = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_NODE_RANK"),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NODEID"),
)


class Options(msgspec.Struct, frozen=True):
    """What is measured, and for how long."""

    #: None takes nccl where there are GPUs, else gloo.
    backend: str | None = None
    cpu: bool = False
    #: For the collectives and pairs, s.
    seconds: float = 30.0
    #: A rank that is silent for so long does not answer, s.
    patience_s: float = 30.0
    most_bytes: int = 1 << 30
    #: Of one repeat of a rank's measures, s: two periods of a control group's quota, dozens of the scheduler's slices.
    window_s: float = 0.2


class LaunchedProcess(msgspec.Struct, frozen=True):
    """This process's place in the job."""

    rank: int
    world_size: int
    local_rank: int
    place: str

    @classmethod
    def here(cls, environment: Mapping[str, str]) -> LaunchedProcess:
        """As the launcher says; one rank where there is none."""
        for rank, world, local, node in _LAUNCHERS:
            if rank in environment and world in environment:
                return cls(
                    int(environment[rank]),
                    int(environment[world]),
                    int(environment.get(local, 0)),
                    environment.get(node, ""),
                )
        return cls(0, 1, 0, "")


class Check:
    """One rank of a check."""

    def __init__(self, launched: LaunchedProcess, options: Options) -> None:
        self._launched = launched
        self._options = options
        self._device = Device(launched.local_rank, cpu=options.cpu)
        self._backend = options.backend or ("nccl" if self._device.is_gpu else "gloo")
        for named in self._backend.split(","):
            if not distributed.is_backend_available(named.rpartition(":")[2]):
                raise ValueError(f"--backend: torch has no {named!r} here. gloo works on CPUs, nccl on GPUs.")
        self._board = Board(
            _store(launched, os.environ, _START_TIMES * options.patience_s), launched.rank, launched.world_size
        )
        limit = quota()
        host = Host(
            socket.gethostname(),
            launched.place,
            self._device.name,
            self._device.is_gpu,
            compact(allowed()),
            None if math.isinf(limit) else limit,
            torch.get_num_threads(),
        )
        self._found = RankResults(host)
        self._hosts: list[Host | None] = [None] * launched.world_size
        self._phase = "start"
        self._reported = threading.Lock()

    def run(self) -> Calibration | None:
        """Go through all phases; the calibration on the lowest rank that answers, None on the others."""
        try:
            self._measure_all()
        except NotAllAnsweredError as error:
            return self._report(error.phase, error.ranks)
        except (RuntimeError, distributed.DistError) as error:
            _log.debug("rank %d fails in %s", self._launched.rank, self._phase, exc_info=True)
            self._found.notes.append(f"rank {self._launched.rank} failed in {self._phase}: {_first_line(error)}")
            return self._report(self._phase, None)
        return self._report("end", ())

    def _measure_all(self) -> None:
        rank, world = self._launched.rank, self._launched.world_size
        with self._all("start", self._found.host):
            hosts = [msgspec.json.decode(self._board.read("start", other), type=known(Host)) for other in range(world)]
            self._hosts = [*hosts]
        nodes = node_names(hosts)
        if world > 1:
            # Its time-out, too, names nobody: the roll call does.
            os.environ.setdefault("TORCH_NCCL_BLOCKING_WAIT", "1")
            distributed.init_process_group(
                self._backend,
                store=distributed.PrefixStore("group", self._board.store),
                rank=rank,
                world_size=world,
                # Nodes of more ranks take more turns.
                timeout=dt.timedelta(seconds=self._options.patience_s + longest_s(self._options.window_s, 1)),
            )
        self._measures(self._node(hosts, nodes), hosts, nodes)
        if world > 1:
            self._pairs(nodes)
            self._curves(nodes)
            distributed.destroy_process_group()

    @contextlib.contextmanager
    def _all(self, phase: str, value: object = None) -> Iterator[None]:
        """A phase that begins when all ranks have arrived."""
        self._phase = phase
        if self._launched.world_size > 1 or phase == "start":
            patience_s = self._options.patience_s * (_START_TIMES if phase == "start" else 1)
            self._board.arrive(phase, patience_s, value)
        yield

    def _node(self, hosts: Sequence[Host], nodes: Sequence[str]) -> LocalRanks:
        rank = self._launched.rank
        ranks = [other for other, node in enumerate(nodes) if node == nodes[rank]]
        here = [hosts[other] for other in ranks]
        cpus = len({cpu for host in here for cpu in expanded(host.cpus)}) or os.cpu_count() or 1
        cores = min(float(cpus), max(host.quota or math.inf for host in here))
        together = len(ranks) if self._device.is_gpu else at_once(len(ranks), cores, max(host.threads for host in here))
        return LocalRanks(rank, tuple(ranks), together, self._options.window_s, self._gather)

    def _gather(self, values: Sequence[float]) -> Floats:
        own = torch.tensor(values, dtype=torch.float64)
        if self._launched.world_size == 1:
            return np.asarray(own[None].numpy())
        own = own.to(self._device.torch)
        every = [torch.empty_like(own) for _ in range(self._launched.world_size)]
        distributed.all_gather(every, own)
        return np.asarray(torch.stack(every).cpu().numpy())

    def _measures(self, node: LocalRanks, hosts: Sequence[Host], nodes: Sequence[str]) -> None:
        for plan in plans(self._device, self._options.window_s):
            with self._all(plan.name):
                take = self._guarded(plan.name, plan.prepare, lambda: math.nan)
                window = functools.partial(self._guarded, plan.name, take, math.nan)
                if plan.is_constant:
                    self._keep(plan, [window()])
                else:
                    self._repeat(node, plan, functools.partial(node.rounds, window))
        if len(set(nodes)) < len(nodes) and all(host.cpus for host in hosts):
            cpus = {rank: expanded(hosts[rank].cpus) for rank in node.ranks}
            with self._all(core_share.KIND.name):
                self._repeat(node, core_share.KIND, functools.partial(core_share.shares, node, cpus))
        self._found.throttled = list(throttled(self._device))

    def _repeat(self, node: LocalRanks, kind: MeasureKind, some: Callable[[int], Sequence[float]]) -> None:
        share = outliers.least(kind.name, is_gpu=self._device.is_gpu)
        is_clear = functools.partial(outliers.is_clear, more_is_better=bool(kind.more_is_better), least=share)
        self._keep(kind, repeated(node, some, is_clear))

    def _keep(self, kind: MeasureKind, values: Sequence[float]) -> None:
        self._found.repeats[kind.name] = [value if math.isfinite(value) else None for value in values]
        self._found.about[kind.name] = (kind.unit, kind.more_is_better)

    def _guarded(self, name: str, run: Callable[[], T], otherwise: T) -> T:
        """What a measure gives; where it fails, something else and a note: the other ranks count on this one."""
        try:
            return run()
        except RuntimeError as error:
            self._found.notes.append(f"rank {self._launched.rank}: no {name}: {_first_line(error)}")
            return otherwise

    def _pairs(self, nodes: Sequence[str]) -> None:
        rank = self._launched.rank
        size = _GPU_PAIR_BYTES if self._device.is_gpu else _CPU_PAIR_BYTES
        for number, pairs in enumerate(schedule(nodes)):
            with self._all(f"pairs of round {number + 1}"):
                for pair in pairs:
                    if rank in pair:
                        latency, gbs = ping_pong(
                            rank, sum(pair) - rank, self._device, min(size, self._options.most_bytes)
                        )
                        if rank == pair[0]:
                            within = nodes[pair[0]] == nodes[pair[1]]
                            self._found.pairs.append(Pair(ranks=pair, within_node=within, latency_us=latency, gbs=gbs))

    def _curves(self, nodes: Sequence[str]) -> None:
        world = list(range(len(nodes)))
        groups: list[tuple[str, list[int], distributed.ProcessGroup | None]] = [("world", world, None)]
        if len(set(nodes)) > 1:
            for node in dict.fromkeys(nodes):
                ranks = [rank for rank in world if nodes[rank] == node]
                group = distributed.new_group(ranks)
                if self._launched.rank in ranks and len(ranks) > 1:
                    groups.append(("node", ranks, group))
        scopes = 1 if len(set(nodes)) == 1 else 2
        budget = self._options.seconds * (1 - _PAIRS_SHARE) / len(KINDS) / scopes
        here = nodes[self._launched.rank]
        room = largest(self._device, nodes.count(here), self._options.most_bytes)
        least = torch.tensor([room], device=self._device.torch)
        distributed.all_reduce(least, op=distributed.ReduceOp.MIN)
        for scope in ("world", "node")[:scopes]:
            for kind in KINDS:
                with self._all(f"{kind} of {scope}"):
                    for _, ranks, group in [one for one in groups if one[0] == scope]:
                        self._curve(kind, scope, ranks, group, int(least.item()), budget)

    def _curve(
        self, kind: str, scope: str, ranks: list[int], group: distributed.ProcessGroup | None, most: int, budget: float
    ) -> None:
        curve = RankCurve(kind, scope, ranks, {})
        self._found.curves.append(curve)
        for one in timed(kind, group, self._device, most, budget):
            curve.times_s[one.bytes] = one.times_s

    def _report(self, phase: str, silent: Sequence[int] | None) -> Calibration | None:
        """Give what was found, and on the lowest rank that answers all of it, with who did not answer in which phase.

        `silent` has the ranks that are known not to; None asks who does.
        """
        if not self._reported.acquire(blocking=False):
            return None
        self._board.post("results", self._found)
        if silent is None:
            try:
                silent = self._board.wait_for("results", _ROLL_CALL_S)
            except (RuntimeError, distributed.DistError):
                # The first rank keeps the board: it had what was just posted, has reported, and has ended.
                return None
        answering = [rank for rank in range(self._launched.world_size) if rank not in silent]
        if self._launched.rank != min(answering, default=self._launched.rank):
            return None
        late = self._board.wait_for("results", _ROLL_CALL_S if silent else self._options.patience_s, answering)
        missing = sorted({*silent, *late})
        answers = {
            rank: msgspec.json.decode(self._board.read("results", rank), type=known(RankResults))
            for rank in answering
            if rank not in missing
        }
        hosts = [answers[rank].host if rank in answers else host for rank, host in enumerate(self._hosts)]
        return assemble(hosts, answers, self._backend, [NoAnswer(rank=rank, phase=phase) for rank in missing])

    def give_up(self, tell: Callable[[Calibration], int]) -> None:
        """End this process, with what was found until now; called when all time is over, on another thread."""
        status = 3
        try:
            calibration = self._report(self._phase, None)
            if calibration is not None:
                status = tell(calibration)
        finally:
            os._exit(status)


def _store(launched: LaunchedProcess, environment: Mapping[str, str], patience_s: float) -> distributed.Store:
    """The store of the job: torchrun's own, else one that the first rank keeps. Waits for no rank but the first."""
    if launched.world_size == 1:
        return distributed.HashStore()
    store = distributed.TCPStore(
        environment.get("MASTER_ADDR", "127.0.0.1"),
        int(environment.get("MASTER_PORT", _PORT)),
        launched.world_size,
        is_master=launched.rank == 0 and environment.get("TORCHELASTIC_USE_AGENT_STORE") != "True",
        timeout=dt.timedelta(seconds=patience_s),
        wait_for_workers=False,
    )
    return distributed.PrefixStore("ddp-doctor", store)


def run(launched: LaunchedProcess, options: Options, tell: Callable[[Calibration], int]) -> int:
    """Run this rank to its end; returns the exit status. `tell` is called on the one rank that reports."""
    check = Check(launched, options)
    # Each phase may take its patience once, in which case it is the last one.
    whole_s = (
        longest_s(options.window_s) * _MEASURES + options.seconds * 2 + options.patience_s * (_START_TIMES + 2) + 30
    )
    watch = threading.Timer(whole_s, check.give_up, [tell])
    watch.daemon = True
    watch.start()
    with open(os.devnull, "w") as nowhere:
        # It ends this process then, even where a native call holds the interpreter's lock.
        faulthandler.dump_traceback_later(whole_s + _LAST_WORDS_S * 2, exit=True, file=nowhere)
        calibration = check.run()
        status = 0 if calibration is None else tell(calibration)
        watch.cancel()
        faulthandler.cancel_dump_traceback_later()
    return status


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0][:200]
