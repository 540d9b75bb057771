"""Every figure that is shown: what it is, of which ranks and steps, and where its cell is.

`quantities.toml` has the definitions. The tab's "?", `ddp-doctor explain` and docs/quantities.md are made from this
table, so a figure has one definition. What a term of docs/glossary.md defines already is not said again: `meaning` is
"" then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from tb_ddp_doctor.known_type import known
from tb_ddp_doctor.step_parts import MEMORY, OWNERS, PHASES


class Quantity(msgspec.Struct, frozen=True, kw_only=True):
    """What a figure is."""

    #: Its definition or formula; "" where the glossary's term of the same name has it.
    meaning: str = ""
    #: Of which ranks and steps it is, and whether it is a mean, a median or a sum; ends without a full stop.
    over: str
    #: The view of the tab that has its cell (frontend/src/views), and the field of the JSON; "" where there is none.
    view: str
    field: str = ""
    #: Headings of tables that mean it, beside its name, with the unit where they have one: "step, ms".
    heads: tuple[str, ...] = ()


class _Entry(Quantity, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An entry of the file: a quantity, or one for each of some parts of a step."""

    name: str
    of_owners: tuple[str, ...] = ()
    of_phases: tuple[str, ...] = ()
    of_memory: tuple[str, ...] = ()


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    quantities: tuple[_Entry, ...]
    #: Texts that several have as `over`, by the key that they have instead.
    over: dict[str, str]


def _quantities(file: _File) -> Iterator[tuple[str, Quantity]]:
    """The quantities by name."""
    for one in file.quantities:
        parts = [{"name": part, "title": OWNERS[part].title, "when": OWNERS[part].when} for part in one.of_owners]
        parts += [{"name": part, "when": PHASES[part].when} for part in one.of_phases]
        parts += [{"title": MEMORY[part].title, "when": MEMORY[part].when} for part in one.of_memory]
        for words in parts or [{}]:
            yield (
                one.name.format(**words),
                Quantity(
                    meaning=one.meaning.format(**words),
                    over=file.over.get(one.over, one.over),
                    view=one.view,
                    field=one.field.format(**words),
                    heads=tuple(head.format(**words) for head in one.heads),
                ),
            )


#: By name.
QUANTITIES: Mapping[str, Quantity] = dict(
    _quantities(msgspec.toml.decode(Path(__file__).with_suffix(".toml").read_bytes(), type=known(_File)))
)
