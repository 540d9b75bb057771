"""Where torch-tb-profiler (0.4.3, the last one) keeps a rank's trace, in the words of its menus.

It makes a run of each folder below the log directory that holds files of torch's own names, and numbers the spans of
a worker by the text of their time stamps, from 1 on.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from pathlib import Path

import msgspec

from tb_ddp_doctor.discover.names import TORCH_NAME
from tb_ddp_doctor.slices.words import encodable
from tb_ddp_doctor.storage.paths import FilePath

#: Its name among TensorBoard's plugins.
PLUGIN = "pytorch_profiler"


class Place(msgspec.Struct, frozen=True):
    """What to choose in its menus; its view is always "Trace"."""

    run: str
    worker: str
    span: str
    #: How many spans the worker has: it hides the menu of one.
    spans: int
    #: What is added to the file's own times, as text: JavaScript's numbers do not hold it.
    base_ns: str


def place(logdir: str, path: FilePath, base_ns: int) -> Place | None:
    """Where it shows a trace whose times count from `base_ns`; None where it does not take the file."""
    found = TORCH_NAME.fullmatch(path.name)
    if not found or not logdir or not isinstance(path, Path):
        return None
    root, folder = Path(logdir).expanduser().absolute(), path.parent.absolute()
    if not folder.is_relative_to(root):
        return None
    run = root.name if folder == root else str(folder.relative_to(root))
    try:
        others = [TORCH_NAME.fullmatch(name) for name in os.listdir(folder)]
    except OSError:
        return None
    spans = sorted(other["span"] or "" for other in others if other and other["worker"] == found["worker"])
    number = bisect_right(spans, found["span"]) - spans.count("") if found["span"] else "default"
    return Place(encodable(run), encodable(found["worker"]), str(number), len(set(spans)), str(base_ns))
