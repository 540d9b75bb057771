"""What each block of memory is for, by the phases in which it is born and dies.

Phases come in runs: a forward pass, its backward pass, the optimizer's step. What is born and dies in one run is
temporary. What forward leaves behind is an activation, until the recording shows it to outlive its step; what backward
leaves is a gradient; what the optimizer leaves from its first step on is its state. What is never born and never dies
is persistent: `persistent` splits it by the bytes of the gradients.
"""

from __future__ import annotations

import msgspec
import numpy as np

from tb_ddp_doctor.digest.allocator import BEFORE, AllocatorEvents, Blocks
from tb_ddp_doctor.digest.columns import searchsorted
from tb_ddp_doctor.digest.model import MemoryCategory
from tb_ddp_doctor.digest.phases import HostPhases
from tb_ddp_doctor.digest.vocabulary import Mask
from tb_ddp_doctor.trace.model import Ints
from tb_ddp_doctor.trace.names import Phase

#: What forward leaves behind is kept if it is still there after so many updates, or dies after more than that: an
#: output lives until the next one takes its name, a batch that is loaded ahead until it was used.
_KEPT_UPDATES = 2
#: Parameters that are allocated while recording have the sizes of the gradients: nearly all of them, or none.
_MOST_MATCHED = 0.9
#: A pass that leaves this share of what the largest one leaves has all gradients: others only add to them.
_WHOLE_PASS = 0.5


class PhaseRuns(msgspec.Struct, frozen=True, eq=False):
    """The phases of a rank without what is other, so that neighbours differ; shape (runs,)."""

    #: A `Phase`.
    phase: Ints
    #: Updates of the parameters that have begun by the end of each; backward passes where no optimizer is seen.
    updates: Ints
    #: Of each allocator event: its run, -1 before the first; and its own phase, which may be other.
    of_event: Ints
    event_phase: Ints

    @classmethod
    def of(cls, phases: HostPhases, events: AllocatorEvents) -> PhaseRuns:
        """The runs of a rank's phases."""
        in_phase = np.flatnonzero(phases.phase != Phase.OTHER)
        phase = phases.phase[in_phase]
        starts = np.flatnonzero(np.diff(phase, prepend=-1))
        begins = np.zeros(len(phases.phase), np.int64)
        begins[in_phase[starts]] = 1
        of_piece = np.append(np.cumsum(begins) - 1, -1)
        piece = searchsorted(phases.start_ns, events.time_ns, side="right") - 1
        phase = phase[starts]
        backward = phase == Phase.BACKWARD
        updates = (phase == Phase.OPTIMIZER) & np.concatenate(([False], backward[:-1]))[: len(phase)]
        counted = np.cumsum(updates if updates.any() else backward)
        return cls(phase, counted, of_piece[piece], phases.at(events.time_ns))

    def at(self, event: Ints) -> Ints:
        """The run of each event; -1 for `BEFORE`, one more than the last for what is behind the last event."""
        runs = np.concatenate((self.of_event, [len(self.phase), -1]))
        return runs[event]

    def updates_until(self, run: Ints) -> Ints:
        """How many updates have begun by the end of each run."""
        total = self.updates[-1] if len(self.updates) else 0
        return np.concatenate((self.updates, [total, 0]))[run]

    def born_in(self, event: Ints) -> tuple[Ints, Ints]:
        """Phase of the run, OTHER before the first, and the own phase, of each event that allocates."""
        run = self.at(event)
        phase = np.append(self.phase, Phase.OTHER)[np.where(run >= 0, run, len(self.phase))]
        return phase, self.event_phase[event]


def categories(blocks: Blocks, runs: PhaseRuns, communicates: Mask) -> Ints:
    """The `MemoryCategory` of each block; `communicates` marks those that collectives fill or read, shape (blocks,)."""
    category = np.full(len(blocks), int(MemoryCategory.OTHER), np.int64)
    seen = blocks.born != BEFORE
    born, died = runs.at(blocks.born), runs.at(blocks.died)
    stays = blocks.died == len(runs.of_event)
    outlives = runs.updates_until(died) - runs.updates_until(born)
    phase, own = np.full(len(blocks), int(Phase.OTHER)), np.full(len(blocks), int(Phase.OTHER))
    phase[seen], own[seen] = runs.born_in(blocks.born[seen])

    is_temporary = seen & (born == died) & ~stays
    # What is released behind the last phase would have stayed, had the script gone on.
    ends = np.append(runs.event_phase, Phase.OTHER)[blocks.died] == Phase.OTHER
    stays |= ends & (died >= len(runs.phase) - 1) & ~is_temporary
    ahead = seen & ~is_temporary & np.isin(phase, (Phase.LOADING, Phase.FORWARD))
    kept = ahead & ((stays & (outlives >= _KEPT_UPDATES)) | (outlives > _KEPT_UPDATES))
    kept |= ahead & stays & np.isin(blocks.bytes, np.unique(blocks.bytes[kept & stays]))
    category[ahead & ~kept] = MemoryCategory.ACTIVATION

    remaining = seen & ~is_temporary & (own == Phase.BACKWARD)
    category[remaining & ~_leaked(blocks, remaining, born, stays, outlives)] = MemoryCategory.GRADIENT

    updating = seen & ~is_temporary & (own == Phase.OPTIMIZER)
    lasting = updating & (stays | (outlives > 0))
    if lasting.any():
        category[lasting & (born == born[lasting].min())] = MemoryCategory.OPTIMIZER_STATE
    is_temporary |= (updating & ~lasting) | (seen & ~ahead & (own == Phase.OTHER) & ~stays & (outlives == 0))
    category[is_temporary] = MemoryCategory.TEMPORARY
    category[communicates & (is_temporary | ahead)] = MemoryCategory.COMMUNICATION
    _categorise_earlier(category, blocks, runs, ~seen, died)
    _find_parameters(category, blocks, runs, born, stays)
    return category


def _leaked(blocks: Blocks, remaining: Mask, born: Ints, stays: Mask, outlives: Ints) -> Mask:
    """What backward leaves for good although most of what the same pass leaves is released."""
    lasting = remaining & stays & (outlives >= _KEPT_UPDATES)
    if not lasting.any():
        return lasting
    size = blocks.bytes.astype(np.float64)
    by_run = np.bincount(born[remaining], weights=size[remaining])
    lasting_by_run = np.bincount(born[lasting], weights=size[lasting], minlength=len(by_run))
    return lasting & (lasting_by_run < _WHOLE_PASS * by_run)[np.where(remaining, born, 0)]


def _categorise_earlier(category: Ints, blocks: Blocks, runs: PhaseRuns, earlier: Mask, died: Ints) -> None:
    """What was allocated before the recording and is released in it: gradients of the step before, or activations."""
    if not earlier.any():
        return
    first = np.flatnonzero(runs.phase == Phase.BACKWARD)
    before_backward = died < (first[0] if len(first) else len(runs.phase))
    phase = runs.event_phase[np.minimum(blocks.died[earlier], len(runs.event_phase) - 1)]
    gradients = np.unique(blocks.bytes[category == MemoryCategory.GRADIENT])
    by_size = np.isin(blocks.bytes[earlier], gradients)
    guessed = np.where(phase == Phase.BACKWARD, MemoryCategory.ACTIVATION, MemoryCategory.OTHER)
    early = before_backward[earlier] & (phase != Phase.BACKWARD)
    guessed[early] = np.where(
        by_size[early] | (phase[early] == Phase.OPTIMIZER), MemoryCategory.GRADIENT, MemoryCategory.ACTIVATION
    )
    category[earlier] = guessed


def _find_parameters(category: Ints, blocks: Blocks, runs: PhaseRuns, born: Ints, stays: Mask) -> None:
    """Parameters that are allocated while recording: what stays from before the first backward pass, by size."""
    size = gradient_blocks(category, blocks, born)
    passes = np.flatnonzero(runs.phase == Phase.BACKWARD)
    if not len(size) or not len(passes):
        return
    open_ = np.isin(category, (MemoryCategory.OTHER, MemoryCategory.ACTIVATION))
    candidates = np.flatnonzero(stays & (blocks.born != BEFORE) & (born < passes[0]) & open_)
    kinds, wanted = np.unique(size, return_counts=True)
    # The n-th candidate of a size, by birth, is a parameter if as many gradients have that size.
    order = candidates[np.argsort(blocks.bytes[candidates], kind="stable")]
    of = blocks.bytes[order]
    place = np.arange(len(order)) - searchsorted(of, of)
    at = np.minimum(searchsorted(kinds, of), len(kinds) - 1)
    parameters = order[(kinds[at] == of) & (place < wanted[at])]
    if blocks.bytes[parameters].sum() >= _MOST_MATCHED * size.sum():
        category[parameters] = MemoryCategory.PARAMETER


def gradient_blocks(category: Ints, blocks: Blocks, born: Ints) -> Ints:
    """Sizes of the gradients that one backward pass leaves, that of the median; empty where none is seen to."""
    gradients = (category == MemoryCategory.GRADIENT) & (blocks.born != BEFORE)
    if not gradients.any():
        return np.empty(0, np.int64)
    by_run = np.bincount(born[gradients], weights=blocks.bytes[gradients].astype(np.float64))
    whole = np.flatnonzero(by_run >= _WHOLE_PASS * by_run.max())
    median = whole[np.argsort(by_run[whole], kind="stable")[len(whole) // 2]]
    sizes: Ints = blocks.bytes[gradients & (born == median)]
    return sizes
