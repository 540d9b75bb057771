"""The long tail of generation in reinforcement learning: one rank's answers are longer than those of the others."""

from __future__ import annotations

from tb_ddp_doctor.facts.frame import Frame
from tb_ddp_doctor.job.rl_roles import MORE_KERNELS
from tb_ddp_doctor.trace.names import Phase
from tb_ddp_doctor.trace.program_names import Program, Role

#: The cause that a finding on it has.
CAUSE = "long_tail"


def is_of_rollouts(frame: Frame, phase: Phase | None, more_kernels: float) -> bool:
    """Whether what ranks differ in is their rollouts: all ranks do all roles in turn, mostly rollouts, the phase in
    which they differ is no backward pass and no optimizer's step, and slow ones launch so many times as many kernels.
    """
    generate = frame.program == Program.RL.value and set(frame.roles) == {Role.ROLLOUT.value}
    return generate and phase not in (Phase.BACKWARD, Phase.OPTIMIZER) and more_kernels > MORE_KERNELS


FIX = """\
Let long answers go on in the next step (partial rollouts), or generate for more prompts than needed and train on \
those that are done first; hand prompts to ranks as they become free, and not in equal shares.

# verl
python -m verl.experimental.fully_async_policy.fully_async_main ... async_training.partial_rollout=True
# slime
... --partial-rollout --over-sampling-batch-size 256"""
