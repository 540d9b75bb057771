"""What could be better about each dimension of parallelism, in sentences: tensor, pipeline, experts and shards.

What costs time though nothing is wrong is no finding. It is said here beside what the dimension takes: tensor
parallelism across nodes with what another mesh is predicted to take, the bubble that more micro-batches would save,
tokens that are padded or dropped, the stage of ZeRO.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import msgspec
import numpy as np
from msgspec.structs import replace

from tb_ddp_doctor import findings, wording
from tb_ddp_doctor.account.expert_tokens import expert_tokens
from tb_ddp_doctor.digest.model import RankDigest
from tb_ddp_doctor.facts import Facts, MissingFactError
from tb_ddp_doctor.facts.arrivals import stages
from tb_ddp_doctor.facts.exchanges import exchanges
from tb_ddp_doctor.facts.frame import frame
from tb_ddp_doctor.facts.modules import module_tree
from tb_ddp_doctor.facts.traffic import Traffic, dimensions_of_traffic
from tb_ddp_doctor.facts.without_faults import whatif
from tb_ddp_doctor.mesh.homes import homes
from tb_ddp_doctor.mesh.mesh import Mesh
from tb_ddp_doctor.planning.fact import plans
from tb_ddp_doctor.planning.mesh.sizes import recorded, written
from tb_ddp_doctor.planning.model import Question
from tb_ddp_doctor.planning.refusal import CannotPlanError
from tb_ddp_doctor.replay.change import Change
from tb_ddp_doctor.rules.support import stage_layers

#: With 8 ranks of tensor parallelism on one machine Megatron-LM kept 77 % of linear scaling (Shoeybi et al. 2019,
#: arXiv 1909.08053, section 5.1): communication of a larger share of the step than the rest is more than that.
_MOST_TENSOR = 0.23
#: Kernels of what sequence parallelism splits: norms of layers, forward and backward, and dropout. Norms of gradients
#: and those over batches or groups of channels are others.
_OF_SEQUENCE = re.compile(r"layer_?norm|rms_?norm|(?<![a-z])ln_(fwd|bwd)|GammaBeta|dropout", re.IGNORECASE)
#: Only this many letters of a name are searched, since a name may have millions.
_LETTERS = 1024
#: This many exchanges of different sizes are needed to tell whether a capacity caps their largest parts.
_SEVERAL = 4


class _Dimension(msgspec.Struct, frozen=True):
    """A dimension of a job, and how many collectives of each kind a group of it has in a step."""

    facts: Facts
    mesh: Mesh
    row: findings.MeshDimension
    kinds: Counter[str]


def with_advice(facts: Facts, mesh: Mesh, table: findings.MeshTable, traffic: Sequence[Traffic]) -> findings.MeshTable:
    """The dimensions with what could be better about each."""
    kinds = _kinds(facts, mesh, traffic)
    says = {"tp": _tensor, "pp": _pipeline, "ep": _experts}
    return replace(
        table,
        dimensions=tuple(
            replace(one, advice=tuple(says.get(one.name, _data)(_Dimension(facts, mesh, one, kinds[one.name]))))
            for one in table.dimensions
        ),
    )


def _kinds(facts: Facts, mesh: Mesh, traffic: Sequence[Traffic]) -> Mapping[str, Counter[str]]:
    """How many collectives of each kind a group of a dimension has in a step, the most of any group."""
    its, kinds = homes(mesh), {one.name: Counter[str]() for one in mesh.dimensions}
    for one in traffic:
        for name in dimensions_of_traffic(facts.job, its, one):
            kinds[name][one.kind] = max(kinds[name][one.kind], round(one.calls))
    return kinds


def _tensor(of: _Dimension) -> Iterator[str]:
    if not of.facts.get(frame).trains or of.row.exposed_ms is None or of.row.share is None:
        return
    is_apart, is_large = of.row.within_node is False, of.row.share > _MOST_TENSOR
    if is_apart:
        yield (
            f"tp goes across nodes, and {wording.duration(of.row.exposed_ms)} of it a step are exposed on links "
            "between nodes: tensor parallelism belongs within a node, pipelines and data parallelism across nodes "
            "(arXiv 2104.04473, section 3)."
        )
    if is_large:
        yield (
            f"tp exposes {wording.percent(of.row.share)} of the step: with 8 ranks on a node Megatron-LM lost "
            f"{wording.percent(_MOST_TENSOR)} (arXiv 1909.08053, section 5.1)."
        )
    if is_apart or is_large:
        yield from _other_meshes(of.facts, of.mesh, of.row.size, is_apart=is_apart)
    if of.kinds["all_reduce"] and not of.kinds["all_gather"] and not of.kinds["reduce_scatter"]:
        yield (
            "tp reduces whole activations: with sequence parallelism (all-gathers and reduce-scatters of as many bytes)"
            f" each rank computes norms and dropout for 1 / {of.row.size} of the sequence, and has as much less of "
            f"their activations; a layer was 3 % faster (arXiv 2205.05198, table 4). {_of_sequence(of)}"
        )


def _of_sequence(of: _Dimension) -> str:
    """A sentence on sequence parallelism: how long the kernels that it would split take, and what it would save."""
    digests, played = of.facts.job.digests, of.facts.get(whatif)
    each = [_split_by_sequence_ns(one) for one in digests]
    if not any(each):
        return "No kernel here has the name of a layer's norm or of dropout, so what that saves here is not known."
    saved = np.rint(np.array(each) * (1 - 1 / of.row.size)).astype(np.int64)
    cost = played.cost_ns(Change(device_ns=np.repeat(saved[:, None], played.shape[1], axis=1)))
    return (
        f"Kernels of norms and dropout take {wording.ms(float(np.mean(each)))} of a step here: without "
        f"{of.row.size - 1} / {of.row.size} of that it is predicted to be {wording.ms(cost)} shorter."
    )


def _split_by_sequence_ns(digest: RankDigest) -> float:
    """How long kernels of norms and dropout run in a step, mean over steps, ns."""
    names, which = np.unique(digest.kernels.name, return_inverse=True)
    split = [bool(_OF_SEQUENCE.search(digest.strings[name][:_LETTERS])) for name in names.tolist()]
    return float(digest.kernels.total_ns[np.array(split, np.bool_)[which]].sum()) / max(len(digest.steps), 1)


def _other_meshes(facts: Facts, mesh: Mesh, tensor: int, *, is_apart: bool) -> Iterator[str]:
    """What meshes with less tensor parallelism are predicted to take."""
    try:
        now = recorded(mesh, facts.job.world_size)
    except CannotPlanError as error:
        yield f"Another mesh is not predicted: {error}"
        return
    on_node = max(Counter(filter(None, facts.job.nodes)).values(), default=tensor)
    fewer = [size for size in range(1, tensor) if tensor % size == 0 and (size <= on_node or not is_apart)]
    if not fewer:
        return
    times = tensor // fewer[-1]
    for name in ("dp", "pp"):
        if now[name] == 1:
            continue
        asked = written({**{each: now[each] for each in ("dp", "tp", "pp")}, "tp": fewer[-1], name: now[name] * times})
        prediction = facts.get(plans).predict(Question(mesh=asked))
        if prediction is None:
            yield f"Mesh {asked} is not predicted: ddp-doctor plan --mesh {asked} says why."
            continue
        assumed = any("GB/s that" in each.detail for each in prediction.rests)
        yield (
            f"Mesh {asked} is predicted to take {wording.decimals(prediction.step_ms, 1)} ms a step "
            f"({wording.decimals(prediction.low_ms, 1)} to {wording.decimals(prediction.high_ms, 1)}), now "
            f"{wording.decimals(facts.job.step_ns / 1e6, 1)}{', by the data sheet of its links' if assumed else ''}."
        )


def _pipeline(of: _Dimension) -> Iterator[str]:
    try:
        pipe = of.facts.get(stages)
    except MissingFactError:
        return
    if pipe is None or pipe.stages < 2:
        return
    compute, ranks = pipe.of_stages(of.facts.job.budget.of("compute"))
    must = pipe.bubble_ns(float(compute.mean()))
    yield (
        f"pp has {pipe.shape}: its bubble, {pipe.formula} of what a stage computes, is {wording.ms(must)}, of which "
        f"twice the micro-batches would save {wording.ms(must / 2)}. Sends and receives have nothing beside them for "
        f"{wording.ms(float(pipe.exposed_ns.mean()))}, in {wording.ms(float(pipe.moving_ns.mean()))} of which data "
        "moves: that is not overlapped."
    )
    if split := stage_layers.said(of.facts.get(module_tree), ranks).strip():
        yield split


def _experts(of: _Dimension) -> Iterator[str]:
    exchanged = exchanges(of.facts.job)
    if exchanged.of:
        return
    job = of.facts.job
    tokens = expert_tokens(job.digests, of.row.size, whole=not len(job.missing_ranks))
    unknown = "" if tokens else "; how many of each is not in the sizes"
    matched, sends = job.matched, 0.0
    elements = job.calls.column("elements")[matched.call]
    segments, part = matched.segments.select(exchanged.row)
    largest = segments.max(elements[part])
    if len(exchanged.row) < _SEVERAL:
        pass
    elif len(np.unique(elements[part])) == 1:
        sends = int(largest[0]) / tokens.hidden if tokens else 0.0
        yield (
            f"All parts of AllToAlls have {int(largest[0]):,} elements, as where tokens are padded to a capacity, and "
            f"dropped beyond it{unknown}."
        )
    elif len(np.unique(largest)) == 1 and not (tokens and tokens.all_sent):
        capped = segments.each(largest) == elements[part]
        yield (
            f"No part of an AllToAll has more than {int(largest[0]):,} elements, which "
            f"{wording.percent(capped.mean())} of the parts have: a capacity drops the tokens beyond "
            f"it{unknown and '; how many is not in the sizes'}."
        )
    if tokens:
        yield from tokens.said(sends)


def _data(of: _Dimension) -> Iterator[str]:
    """The stage of ZeRO of data parallelism that shards."""
    if (
        not {"dp", "dp_shard"} & {*of.row.name.split("+")}
        or not of.kinds["all_gather"]
        or not of.facts.get(frame).trains
    ):
        return
    fsdp = of.facts.get(plans).sharded
    if fsdp is not None:
        again = (
            "backward gathers parameters again" if fsdp.stage == "zero3" else "parameters stay gathered after forward"
        )
        yield (
            f"{of.row.name} shards as ZeRO stage {fsdp.stage[-1]}: {again}, in {fsdp.units} units; forward gathers "
            f"{fsdp.ahead_forward} ahead{f', backward {fsdp.ahead_backward}' if fsdp.stage == 'zero3' else ''}."
        )
    elif of.kinds["all_reduce"] or of.kinds["reduce_scatter"]:
        sent = "reduce-scatters" if of.kinds["reduce_scatter"] else "AllReduces"
        if of.kinds["all_gather"] <= max(of.kinds["all_reduce"], of.kinds["reduce_scatter"]):
            yield (
                f"{of.row.name} shards the optimizer's states, as ZeRO stage 1 does (a distributed optimizer): "
                f"gradients go by {sent}, updated parameters by all-gathers, {of.kinds['all_gather']} a step."
            )
