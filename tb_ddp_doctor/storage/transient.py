"""Whether something was not read for a reason that may pass: a dead mount, a lack of memory, a permission.

What was found then is not what will be found next, so it is not kept (`commands.answers`).
"""

from __future__ import annotations

_notes = 0


def note() -> None:
    """Something was not read that may be read another time."""
    global _notes  # noqa: PLW0603 - of the whole process, whichever thread it was
    _notes += 1


class Since:
    """What is noted from now on, in any thread of this process."""

    def __init__(self) -> None:
        self._before = _notes

    def noted(self) -> bool:
        """Whether anything was."""
        return _notes != self._before
