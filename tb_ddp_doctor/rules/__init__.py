"""The rules, one file each, named for the fault."""

from tb_ddp_doctor.rules.allocator_churn import AllocatorChurn
from tb_ddp_doctor.rules.communication_bound import CommunicationBound
from tb_ddp_doctor.rules.dataloader_stall import DataloaderStall
from tb_ddp_doctor.rules.find_unused_parameters import FindUnusedParameters
from tb_ddp_doctor.rules.host_stall import HostStall
from tb_ddp_doctor.rules.host_sync import HostSync
from tb_ddp_doctor.rules.launch_bound import LaunchBound
from tb_ddp_doctor.rules.load_imbalance import LoadImbalance
from tb_ddp_doctor.rules.low_mfu import LowMfu
from tb_ddp_doctor.rules.low_occupancy import LowOccupancy
from tb_ddp_doctor.rules.memory_fragmentation import MemoryFragmentation
from tb_ddp_doctor.rules.missing_straggler import MissingStraggler
from tb_ddp_doctor.rules.no_overlap import NoOverlap
from tb_ddp_doctor.rules.no_tensor_cores import NoTensorCores
from tb_ddp_doctor.rules.op_stall import OpStall
from tb_ddp_doctor.rules.pageable_memcpy import PageableMemcpy
from tb_ddp_doctor.rules.pipeline_bubble import PipelineBubble
from tb_ddp_doctor.rules.profiler_overhead import ProfilerOverhead
from tb_ddp_doctor.rules.redundant_allreduce import RedundantAllreduce
from tb_ddp_doctor.rules.sharding_wait import ShardingWait
from tb_ddp_doctor.rules.slow_link import SlowLink
from tb_ddp_doctor.rules.slow_step import SlowStep
from tb_ddp_doctor.rules.small_collectives import SmallCollectives
from tb_ddp_doctor.rules.straggler import Straggler
from tb_ddp_doctor.rules.support.base import Rule
from tb_ddp_doctor.rules.trace_quality import TraceQuality
from tb_ddp_doctor.rules.unfused_attention import UnfusedAttention
from tb_ddp_doctor.rules.unfused_optimizer import UnfusedOptimizer
from tb_ddp_doctor.rules.variable_transfers import VariableTransfers

#: Rules that hold where the device's work cannot be seen: without it, a host that waits for its device looks idle.
OF_EVERY_DEVICE = frozenset({"memory-fragmentation", "trace-quality"})

#: Rules that hold for every program: a loader that is seen feeds forward passes as it does training. The others advise
#: a training loop, which a server of requests does not have.
OF_EVERY_PROGRAM = frozenset(
    {
        "dataloader-stall",
        "launch-bound",
        "low-occupancy",
        "missing-straggler",
        "op-stall",
        "profiler-overhead",
        "slow-link",
        "straggler",
        "trace-quality",
        "unfused-attention",
        "variable-transfers",
    }
)

#: Every rule with its thresholds as shipped, by id.
CATALOGUE: dict[str, Rule] = {
    rule.id: rule
    for rule in (
        AllocatorChurn(),
        CommunicationBound(),
        DataloaderStall(),
        FindUnusedParameters(),
        HostStall(),
        HostSync(),
        LaunchBound(),
        LoadImbalance(),
        LowMfu(),
        LowOccupancy(),
        MemoryFragmentation(),
        MissingStraggler(),
        NoOverlap(),
        NoTensorCores(),
        OpStall(),
        PageableMemcpy(),
        PipelineBubble(),
        ProfilerOverhead(),
        RedundantAllreduce(),
        ShardingWait(),
        SlowLink(),
        SlowStep(),
        SmallCollectives(),
        Straggler(),
        TraceQuality(),
        UnfusedAttention(),
        UnfusedOptimizer(),
        VariableTransfers(),
    )
}


def is_name(name: str) -> bool:
    """Whether findings may be named so: by a rule, or by an id that one of its findings can have."""
    rule, _, number = name.partition(":")
    return rule in CATALOGUE and (name == rule or number.isdecimal())
