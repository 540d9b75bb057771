"""What another mesh changes in sizes: how much of the model and of the batch each rank has.

A rank of 16 with dp 2, tp 4, pp 2 has a quarter of each layer, half of the layers, and half of the batch. With dp 4,
tp 2, pp 2 it has half of each layer and a quarter of the batch:

    what one of its collectives sends        tp 4 -> 2, dp 2 -> 4
    activations within tp                    the same, half as often: half the micro-batches
    gradients within dp                      twice as much: half of each layer instead of a quarter
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import msgspec

from tb_ddp_doctor import wording
from tb_ddp_doctor.mesh.mesh import Mesh
from tb_ddp_doctor.planning.refusal import CannotPlanError

#: What a question may change; the sizes of other dimensions stay as recorded.
CHANGED = ("dp", "tp", "pp")
#: Dimensions that a mesh may name, in any size for those above, else in the recorded one.
DIMENSIONS = (*CHANGED, "cp", "ep")
#: A larger size is refused as a mistake.
_MOST = 1 << 20


class MeshSizes(msgspec.Struct, frozen=True):
    """The recorded mesh and another one, by dimension."""

    now: Mapping[str, int]
    then: Mapping[str, int]
    #: Whether the ranks of the other mesh together have as much work as those of the record, not each as much.
    strong: bool
    #: Micro-batches of a pipeline in the record; 1 without one.
    recorded_micro_batches: int

    @property
    def ranks(self) -> tuple[int, int]:
        """Ranks of both meshes; experts are spread over ranks of other dimensions."""
        now, then = (prod(size for name, size in sizes.items() if name != "ep") for sizes in (self.now, self.then))
        return now, then

    @property
    def work(self) -> float:
        """How many times as much each rank computes."""
        now, then = self.ranks
        return now / then if self.strong else 1.0

    @property
    def batch(self) -> float:
        """How many times as much of the batch each replica of the model gets."""
        now, then = self.ranks
        return (1.0 if self.strong else then / now) * self.now["dp"] / self.then["dp"]

    @property
    def micro_batches(self) -> int:
        """Micro-batches of the other mesh: of the recorded size, as far as that can be."""
        return max(round(self.recorded_micro_batches * self.batch), 1)

    @property
    def calls(self) -> float:
        """How many times as many collectives each rank's layers launch, by its layers and micro-batches."""
        return self.now["pp"] / self.then["pp"] * self.micro_batches / self.recorded_micro_batches

    @property
    def activations(self) -> float:
        """How many times as large the activations of a micro-batch are."""
        return self.batch * self.recorded_micro_batches / self.micro_batches

    @property
    def parameters(self) -> float:
        """How many times as many parameters each rank has."""
        return prod(self.now[name] / self.then[name] for name in ("tp", "pp"))


def parsed(text: str) -> dict[str, int]:
    """The sizes that "dp=16,tp=4,pp=4" says. Raises ValueError."""
    sizes: dict[str, int] = {}
    for part in text.split(","):
        name, _, size = (one.strip().casefold() for one in part.partition("="))
        if name not in DIMENSIONS or name in sizes or not size.isdecimal() or not 1 <= int(size) < _MOST:
            raise ValueError(text)
        sizes[name] = int(size)
    return sizes


def written(sizes: Mapping[str, int]) -> str:
    """Sizes as text, "dp=16,tp=4,pp=4"."""
    return ",".join(f"{name}={size}" for name, size in sizes.items())


def recorded(mesh: Mesh, world_size: int) -> dict[str, int]:
    """The sizes of the recorded mesh by the names that a question may use. Raises CannotPlanError."""
    sizes = {one.name: one.size for one in mesh.dimensions}
    unknown = sorted(set(sizes) - {*DIMENSIONS, "cp+dp", "dp+cp"})
    if unknown:
        raise CannotPlanError(
            f"What another mesh would take is only known for {wording.listing(DIMENSIONS)}; this job has "
            f"{wording.listing(unknown)} too."
        )
    joined = sizes.pop("cp+dp", 0) or sizes.pop("dp+cp", 0)
    if joined:
        sizes.setdefault("dp", joined // sizes.get("cp", 1))
    sizes = {name: sizes.get(name, 1) for name in DIMENSIONS}
    ranks = prod(size for name, size in sizes.items() if name != "ep")
    if ranks != world_size:
        raise CannotPlanError(
            f"The groups of this record show the mesh {written({k: v for k, v in sizes.items() if v > 1}) or 'of none'}"
            f", of {ranks} ranks, but the job has {world_size}: which ranks the other dimensions divide is not known."
        )
    return sizes


def changed(now: Mapping[str, int], asked: Mapping[str, int], *, strong: bool, micro_batches: int) -> MeshSizes:
    """The recorded mesh with the sizes that are asked for. Raises CannotPlanError where the record cannot tell."""
    then = {**now, **asked}
    for name in ("cp", "ep"):
        if then[name] != now[name]:
            raise CannotPlanError(
                f"This job has {name}={now[name]}: what attention or experts take with {name}={then[name]} cannot be "
                "told from it. Record a job of that size."
            )
    for name, lacks in _LACKS.items():
        if now[name] == 1 < then[name]:
            raise CannotPlanError(f"This job has {name}=1: {lacks} Record a few steps with {name}=2.")
    if now["ep"] > 1 and (then["tp"] != now["tp"] or then["dp"] % now["ep"]):
        raise CannotPlanError(
            f"Experts are spread over {now['ep']} ranks of dp: with another tp, or a dp that is no multiple of that, "
            "which tokens an AllToAll exchanges cannot be told from the record."
        )
    sizes = MeshSizes(now, then, strong, micro_batches)
    if micro_batches > 1 and micro_batches * sizes.batch < 1:
        raise CannotPlanError(
            f"Each replica has {micro_batches} micro-batches now, and would have less than one: take a smaller dp."
        )
    return sizes


#: What a record without a dimension lacks.
_LACKS = {
    "tp": "how large the activations are that its ranks would reduce, and how often, is not in the record.",
    "pp": "what its stages would send is not in the record.",
    "dp": "no gradients are reduced between replicas, so what that would take is not in the record.",
}
