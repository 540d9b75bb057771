"""What could not be read of a file: one warning per kind, with where it began and how much it cost."""

from __future__ import annotations

from enum import Enum

import msgspec

from tb_ddp_doctor.findings import FileWarning, WarningKind


class Loss(Enum):
    """A kind of loss, and the sentence that tells it."""

    BROKEN = "{count} skipped from byte {position} on: {detail}"
    MISTYPED = "{count} skipped from byte {position} on, whose fields have the wrong types: {detail}"
    TIMES = "{count} skipped from byte {position} on: no usable time ({detail})"
    TEXT = "{count} kept from byte {position} on with text that is not valid JSON replaced: {detail}"
    ARGUMENTS = "{count} from byte {position} on have arguments of the wrong type, which were ignored ({detail})"
    CUT = "cut off at byte {position}: what follows is missing ({detail})"
    STREAM = "{detail}, at byte {position} of the JSON"
    HEADER = "metadata at byte {position} was ignored: {detail}"
    AFTER_END = "what follows the end of the JSON at byte {position} was ignored: {detail}"
    IMPOSSIBLE = "{count} with impossible times left out: {detail}"
    DOUBLED = "{count} left out that the file holds twice: {detail}"


#: Kinds that take events away.
_TAKING = (Loss.BROKEN, Loss.MISTYPED, Loss.TIMES, Loss.CUT, Loss.STREAM, Loss.IMPOSSIBLE)
#: Kinds that a file shows which is not written to its end: space that is set aside for it reads as zeros.
_ENDLESS = (Loss.BROKEN, Loss.CUT, Loss.STREAM)


def _kind(loss: Loss) -> WarningKind:
    if loss in _ENDLESS:
        return "lost-end"
    return "lost-events" if loss in _TAKING else "note"


class _Entry(msgspec.Struct):
    position: int
    detail: str
    count: int


class Losses:
    """Collects losses while a file is read; the first of each kind gives the position and the detail."""

    def __init__(self) -> None:
        self._entries: dict[Loss, _Entry] = {}

    def add(self, kind: Loss, position: int, detail: str, count: int = 1) -> None:
        """Note `count` events lost, the first at byte `position` of the decompressed JSON."""
        entry = self._entries.get(kind)
        if entry:
            entry.count += count
        else:
            self._entries[kind] = _Entry(position, detail, count)

    def warnings(self, file: str) -> tuple[FileWarning, ...]:
        """One sentence per kind."""
        return tuple(
            FileWarning(
                file,
                kind.value.format(
                    count=f"{entry.count:,} event{'s'[: entry.count != 1]}",
                    position=f"{entry.position:,}",
                    detail=entry.detail,
                ),
                _kind(kind),
            )
            for kind, entry in self._entries.items()
        )
