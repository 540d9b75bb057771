"""What to do about a straggler, by its cause."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from tb_ddp_doctor import record_again, wording
from tb_ddp_doctor.facts.frame import Frame
from tb_ddp_doctor.rules.support import naming, stage_layers
from tb_ddp_doctor.rules.support.causal_split import CAUSAL_SPLIT
from tb_ddp_doctor.trace.program_names import Program

#: Goes before the fix where all traced ranks of a node are slow.
_NODE = """\
All traced ranks of a node are slow: look first at what they share, its power and cooling, its cores and their \
governor, its storage and its network card. """

_BALANCED = """\
Look at the storage and the CPU load of that host, and at the samples of {ranks}: give every rank the same number \
(drop_last), and enough DataLoader workers.
"""
_FIXES = {
    "input": _BALANCED
    + """
loader = DataLoader(
    dataset,
    batch_size=batch_size,
    sampler=DistributedSampler(dataset, drop_last=True),
    num_workers=4,
    persistent_workers=True,
    pin_memory=True,
)""",
    "host": """\
Look for CPU work outside any op on {ranks} alone: logging, evaluating or saving on one rank, a lock, or \
another process on the same cores. Move it out of the training loop, or do it less often. While it trains, on that host:

py-spy dump --pid {pid}   # {at}
top -H -p {pid}""",
    "more_work": """\
Give every rank the same work: shard by size and not by count, bucket sequences by length, drop the incomplete last \
batch, and do no extra work on one rank (validation, metrics, a larger shard).

sampler = DistributedSampler(dataset, shuffle=True, drop_last=True)
for epoch in range(epochs):
    sampler.set_epoch(epoch)""",
    CAUSAL_SPLIT: """\
Split each sequence so that all ranks have the same share of causal attention: zig-zag gives rank i of n the parts i \
and 2 n - 1 - i of 2 n. Megatron-LM and torch's context_parallel split so by default; positions and labels move along.

parts = batch.chunk(2 * cp_size, dim=1)  # tokens, labels and positions alike
mine = torch.cat([parts[cp_rank], parts[2 * cp_size - 1 - cp_rank]], dim=1)""",
    "slow_device": """\
The GPU of {ranks} is slower: look for thermal or power throttling, another process on it, or a smaller share of it \
(MIG, MPS). On that host:

nvidia-smi -q -d PERFORMANCE,CLOCK,TEMPERATURE,POWER
nvidia-smi --query-compute-apps=pid,name,used_memory --format=csv""",
    "slow_link": """\
Measure the links of {ranks} and of other ranks without the job (nccl-tests) and compare; then look at what NCCL uses \
there, at cables, switch ports and link widths.

NCCL_DEBUG=INFO all_reduce_perf -b 8M -e 256M -f 2 -g 1
nvidia-smi topo -m; nvidia-smi nvlink --status; ibstat""",
    "slow_copies": """\
Look at how the GPU of {ranks} is attached: the generation and width of its PCIe link, other devices on it, and \
whether the process has cores and memory of the CPU that the GPU is attached to. On that host:

nvidia-smi --query-gpu=index,pcie.link.gen.current,pcie.link.width.current,pcie.link.width.max --format=csv
nvidia-smi topo -m
taskset -cp {pid}; numactl --hardware   # {at}""",
    "more_copies": """\
Give every rank as much to copy: find what {ranks} alone copies between CPU and GPU (logging of tensors, larger \
batches, offloading), and do it less often, or on a stream of its own from pinned memory.""",
    "unknown": """\
Compare {ranks} with another rank in the evidence windows; capture again with stacks and shapes to see more.

{again}""",
}


#: For ranks that compute on CPUs, where it is not the same.
_FIXES_OF_CPUS = {
    "input": _BALANCED
    + """
loader = DataLoader(
    dataset,
    batch_size=batch_size,
    sampler=DistributedSampler(dataset, drop_last=True),
    num_workers=4,  # the ranks of a host share its cores
    persistent_workers=True,
)""",
    "slow_device": """\
The CPU of {ranks} is slower: look for another process on its cores, more threads than cores, a CPU quota (cgroups), \
or a lower clock. Give each rank cores of its own. On that host:

top -H -p {pid}           # {at}
taskset -cp {pid}         # its cores; other ranks should have different ones
lscpu -e=CPU,CORE,MHZ
OMP_NUM_THREADS=<cores per rank> torchrun ...""",
}

#: For ranks whose collectives the CPU carries out.
_FIXES_OF_CPU_BACKENDS = {
    "slow_link": """\
Measure the collectives of {ranks} and of other ranks without the job, and compare; then look at the cores that their \
threads have, and at the network where they are on several hosts.

torchrun ... -m tb_ddp_doctor.check -o calibration.json
top -H -p {pid}           # {at}""",
}

#: For AMD's GPUs.
_FIXES_OF_AMD = {
    "slow_device": """\
The GPU of {ranks} is slower: look for thermal or power throttling, another process on it, or a smaller share of it. \
On that host:

rocm-smi --showclocks --showtemp --showpower --showperflevel
rocm-smi --showpids""",
    "slow_copies": """\
Look at how the GPU of {ranks} is attached: its link to the CPU, other devices on it, and whether the process has \
cores and memory of the CPU that the GPU is attached to. On that host:

rocm-smi --showbus --showtopo
taskset -cp {pid}; numactl --hardware   # {at}""",
}

#: For sharded embedding tables.
_FIXES_OF_RECOMMENDERS = {
    "more_work": """\
Give every rank as much to look up: tell the planner how many rows a sample looks up in each table, and shard the \
tables with most lookups by row or by column. Batches and dense layers should be of one size on all ranks.

from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints, Topology
constraints = {{"table": ParameterConstraints(pooling_factors=[20.0])}}  # rows of a sample, by feature
planner = EmbeddingShardingPlanner(topology=Topology(world_size, "cuda"), constraints=constraints)
plan = planner.collective_plan(model, sharders, process_group)""",
}

#: For programs that do not train.
_FIXES_OF_INFERENCE = {
    "host": """\
Look for CPU work outside any op on {ranks} alone: scheduling, tokenizing, logging or answering on one rank, a lock, \
or another process on the same cores. Move it out of the iteration loop. While it runs, on that host:

py-spy dump --pid {pid}   # {at}
top -H -p {pid}""",
    "more_work": """\
Give every rank the same work: balance requests or samples by their length and not by their number, and experts by how \
often they are chosen; do no extra work on one rank.""",
}


def fix(cause: str, stragglers: Sequence[int], frame: Frame) -> str:
    """The fix for ranks (indices, slowest first); what a trace says goes into a command only where it is harmless."""
    pid, node = frame.pids[stragglers[0]], frame.nodes[stragglers[0]]
    at = f"rank {frame.ranks[stragglers[0]]}" + (f", on {node}" if re.fullmatch(r"[\w.-]+", node) else "")
    pid = pid if re.fullmatch(r"\d+", pid, re.ASCII) else "<pid of the rank>"
    setting = frame.setting
    fixes = _FIXES | ({} if setting.uses_nccl else _FIXES_OF_CPU_BACKENDS) | ({} if setting.has_gpu else _FIXES_OF_CPUS)
    program = frame.program_of(np.array(stragglers))
    fixes |= {} if frame.trains and program == frame.program else _FIXES_OF_INFERENCE
    if setting.device == "rocm":
        fixes |= _FIXES_OF_AMD
    if frame.program == Program.RECOMMENDER.value:
        fixes |= _FIXES_OF_RECOMMENDERS
    if cause == "more_work" and _is_stage(stragglers, frame):
        return stage_layers.BALANCED
    shared = _NODE if naming.whole_nodes(stragglers, frame) else ""
    numbers = sorted(frame.rank_numbers(np.array(stragglers)))
    again = record_again.with_stacks(setting, shapes=True, serves=program == Program.SERVING.value)
    return shared + fixes[cause].format(ranks=wording.ranks(numbers), pid=pid, at=at, again=again)


def _is_stage(ranks: Sequence[int], frame: Frame) -> bool:
    """Whether these ranks (indices) are all ranks of one stage of pipelines, and others are of other stages."""
    column = next((i for i, one in enumerate(frame.mesh.dimensions) if one.name == "pp"), None)
    if column is None:
        return False
    stage = frame.mesh.coordinates[:, column]
    same = np.flatnonzero(stage == stage[ranks[0]])
    return len(same) < len(stage) and set(same.tolist()) == set(ranks)
