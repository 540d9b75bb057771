"""Sources of the frontend that are made from Python, for `generate.py`."""

from __future__ import annotations

import json
from collections.abc import Mapping

from tb_ddp_doctor.step_parts import OWNERS, PHASES

_MADE = "// Made from tb_ddp_doctor/{source} by `python tests/generate.py`."
_TYPES = """\
/**
 * @typedef {object} Owner
 * @property {string} name
 * @property {string} when a nanosecond belongs to it
 * @property {string} light its colour in the light theme
 * @property {string} dark
 * @property {string} ink of numbers on it
 */

/**
 * @typedef {object} Phase
 * @property {string} name
 * @property {string} when
 * @property {string} colour the owner's whose it has
 */
"""


def step_parts() -> str:
    """`step_parts.js`: owners and phases, their words and colours."""
    owners = {
        name: {"name": owner.title, "when": owner.when, "light": owner.light, "dark": owner.dark, "ink": owner.ink}
        for name, owner in OWNERS.items()
    }
    phases = {name: {"name": name, "when": phase.when, "colour": phase.colour} for name, phase in PHASES.items()}
    head = _MADE.format(source="step_parts.py")
    return "\n".join(
        [
            f"{head} The parts of a step, in their order.\n",
            _TYPES,
            "/** @type {Map<string, Owner>} */",
            _map("OWNERS", owners),
            "/** @type {Map<string, Phase>} */",
            _map("PHASES", phases).rstrip("\n"),
            "",
        ]
    )


def _map(name: str, entries: Mapping[str, Mapping[str, str]]) -> str:
    rows = "".join(f"  [{json.dumps(key)}, {_object(entry)}],\n" for key, entry in entries.items())
    return f"export const {name} = new Map([\n{rows}]);\n"


def _object(entry: Mapping[str, str]) -> str:
    return "{ " + ", ".join(f"{key}: {json.dumps(value)}" for key, value in entry.items()) + " }"
