"""The iterations of a server that nothing marks: the tokens that an iteration samples go back to the CPU.

    copies to the GPU     [in][in]                 [in][in]                 [in][in]
    kernels                       [forward][sample]        [forward][sample]        [forward]...
    copies to the CPU                             [out]                    [out]
                          |0                       |1                       |2

In the order of launches an iteration begins with the first copy to the GPU (positions, slots of the cache, sampling's
parameters) after a copy to the CPU. Copies to the CPU within the model, as those of the sizes of experts' batches, have
no copy to the GPU between them, and make no iteration. Each iteration launches about as many kernels, of prompts or of
answers: a layer launches the same ones. What launches far fewer is a part of the iteration after it.

Not seen are servers that keep tokens on the GPU for many iterations, and ranks that read none, as the first stages of a
pipeline.
"""

from __future__ import annotations

import numpy as np

from tb_ddp_doctor.digest.launches import DeviceRows
from tb_ddp_doctor.trace import names
from tb_ddp_doctor.trace.model import Category, Ints, RankTrace

#: What serves as the mark of an iteration.
ROUND_TRIP = "round trip of copies (inputs to the GPU, tokens back)"
#: Fewer iterations are no pattern.
_LEAST_ITERATIONS = 3
#: An iteration launches between half and twice as many kernels as the median one.
_MOST_UNEVEN = 2.0


def round_trips(trace: RankTrace) -> tuple[Ints, Ints, Ints] | None:
    """Numbers, starts and ends (ns) of the iterations, by time; None where nothing repeats so.

    What comes before the first copy to the CPU, and the last iteration, whose end is not seen, are of none.
    """
    events, rows = trace.events, DeviceRows.of(trace.events)
    launched = rows.row[rows.launch >= 0]
    launch_ns = events.start_ns[rows.launch[rows.launch >= 0]]
    order = np.argsort(launch_ns, kind="stable")
    launched, launch_ns = launched[order], launch_ns[order]
    texts = {name: trace.strings[name] for name in np.unique(events.name[launched]).tolist()}
    into, back = (
        np.isin(events.name[launched], [name for name, text in texts.items() if test(text)])
        & (events.category[launched] == Category.MEMCPY)
        for test in (names.is_to_device, names.is_to_host)
    )
    copies = np.flatnonzero(into | back)
    starts = copies[1:][into[copies[1:]] & back[copies[:-1]]]
    kernels = np.cumsum(events.category[launched] == Category.KERNEL)[starts] if len(starts) else starts
    starts = _of_whole_iterations(starts, kernels)
    if len(starts) <= _LEAST_ITERATIONS:
        return None
    begins = launch_ns[starts]
    return np.arange(len(begins) - 1), begins[:-1], begins[1:]


def _of_whole_iterations(starts: Ints, kernels: Ints) -> Ints:
    """The starts of iterations that launch about as many kernels as the median one; none where some launch far more.

    `kernels` are how many are launched up to each start.
    """
    launches = np.diff(kernels)
    launches = launches[launches > 0]
    if not len(launches):
        return starts[:0]
    median = float(np.median(launches))
    kept = [0]
    for index in range(1, len(starts)):
        if kernels[index] - kernels[kept[-1]] >= median / _MOST_UNEVEN:
            kept.append(index)
    far_more = np.diff(kernels[kept]) > median * _MOST_UNEVEN
    return starts[:0] if far_more.any() else starts[kept]
