"""What names say of the roles of reinforcement learning: marks of trainers, words of people, trainers' own functions.

Pure: names in, roles out. Callers ask once per name, never once per event.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from tb_ddp_doctor.trace.program_names import Role

#: What is looked at of a name: it says early what it is.
_LETTERS = 1024
#: Patterns of annotations, in lower case, with the trainers that have them in their code; the first that fits counts.
_MARKS = (
    (
        Role.WEIGHT_SYNC,
        re.compile(
            # vLLM's and SGLang's, so of all trainers with them: update_weights_from_distributed (AReaL, slime),
            # update_weights_via_ipc_zmq, stream_weights_via_http (NeMo-RL), sync_rollout_weights (verl).
            r"(sync|update|broadcast|load|send|recv|transfer|stream)_(\w{1,40}_)?weights?(?![a-z])|"
            r"weights?_(sync|update|transfer)|"
            # OpenRLHF.
            r"broadcast_to_(vllm|sglang)"
        ),
    ),
    (
        Role.ROLLOUT,
        re.compile(
            # verl: generate_sequences, rollout_generate; OpenRLHF: make_experience; AReaL: rollout_batch.
            r"rollout|generate_(sequences|samples)|make_experience|"
            # NeMo-RL: vllm_generation_worker/generate, megatron_policy_worker/generate; TRL: vLLM.generate.
            r"_worker(_v\d)?/generate(?![a-z])|(vllm|sglang|transformers)\.generate(?![a-z])"
        ),
    ),
    # verl: compute_rm_score.
    (Role.REWARD, re.compile(r"(?<![a-z])rewards?(?![a-z])|compute_rm_score")),
    (
        Role.LOG_PROB,
        re.compile(
            # verl: actor_compute_log_prob, ref_compute_log_prob, compute_values; slime: ref_log_probs; NeMo-RL:
            # get_reference_policy_logprobs; AReaL: compute_logp.
            r"log_?probs?(?![a-z])|logps(?![a-z])|(?<![a-z])logp(?![a-z])|compute_values|(?<![a-z])ref_log"
        ),
    ),
    (
        Role.UPDATE,
        re.compile(
            # verl: update_actor, actor_update, update_critic; slime: train_actor, actor_train; OpenRLHF: ppo_train;
            # AReaL: ppo_update; ROLL: actor_train_step.
            r"(update|train)_(actor|critic|policy)(?![a-z])|(actor|critic|policy)_(update|train)(?![a-z])|"
            r"ppo_(train|update|step)|"
            # NeMo-RL: dtensor_policy_worker_v2/train, policy_training.
            r"policy_training|policy_worker(_v\d)?/train(?![a-z])"
        ),
    ),
)
#: Whole names that stand for a rollout beside other roles alone (verl's timer is "gen"): inference has them, too.
_BARE_ROLLOUTS = frozenset(("gen", "generate", "generation"))
#: Roles that only reinforcement learning has.
_SURE = frozenset((Role.REWARD, Role.LOG_PROB, Role.UPDATE))
#: Functions of trainers that mark nothing, by the trainer's package in the path of their file: they are seen with
#: stacks. One with a file's name before it is of that file alone. None calls one of another role.
_FUNCTION = re.compile(r"(?:^|[/\\])(openrlhf|slime|verl)[/\\](?:[^:]{0,400}[/\\])?(\w{1,80})\.py\(\d+\): (\w{1,80})$")
_FUNCTIONS = {
    # openrlhf/trainer/ray/ppo_actor.py.
    "openrlhf": {"ppo_train": Role.UPDATE, "broadcast_to_vllm": Role.WEIGHT_SYNC},
    # slime/backends/megatron_utils: train_actor is not here, since it calls both of the first.
    "slime": {
        "actor.compute_log_prob": Role.LOG_PROB,
        "model.train": Role.UPDATE,
        "actor.update_weights": Role.WEIGHT_SYNC,
    },
    # verl/workers/fsdp_workers.py, megatron_workers.py.
    "verl": {
        "generate_sequences": Role.ROLLOUT,
        "compute_rm_score": Role.REWARD,
        "compute_log_prob": Role.LOG_PROB,
        "compute_ref_log_prob": Role.LOG_PROB,
        "compute_values": Role.LOG_PROB,
        "update_actor": Role.UPDATE,
        "update_critic": Role.UPDATE,
    },
}


def role(annotation: str) -> Role | None:
    """What an annotation stands for in reinforcement learning; None for every other annotation."""
    lowered = annotation[:_LETTERS].lower()
    return next((kind for kind, pattern in _MARKS if pattern.search(lowered)), None)


def roles(annotations: Iterable[str]) -> dict[str, Role]:
    """What each of a trace's annotations stands for, those that stand for a role: some do beside others alone."""
    different = set(annotations)
    named = {name: known for name in different if (known := role(name)) is not None}
    if _SURE.isdisjoint(named.values()):
        return named
    bare = {name for name in different if name.lower().strip("# ") in _BARE_ROLLOUTS}
    return named | dict.fromkeys(bare, Role.ROLLOUT)


def role_of_function(name: str) -> Role | None:
    """What a trainer's own Python function does, by its name in stacks; None for every other one."""
    call = _FUNCTION.search(name[:_LETTERS])
    if call is None:
        return None
    package, file, function = call.groups()
    known = _FUNCTIONS[package]
    return known.get(function) or known.get(f"{file}.{function}")
