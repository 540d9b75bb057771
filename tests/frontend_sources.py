"""Sources of the frontend that are made from Python, for `generate.py`; and the types that are written by hand."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from tb_ddp_doctor import findings, wording
from tb_ddp_doctor.comparison import model as comparison
from tb_ddp_doctor.planning import model as plans
from tb_ddp_doctor.quantities import QUANTITIES
from tb_ddp_doctor.step_parts import IDLE, MEMORY, OWNERS, PHASES
from tb_ddp_doctor.view import answer, commands, gaps, views

FRONTEND = Path(__file__).parents[1] / "frontend" / "src"
_MADE = "// Made from {source} by `python tests/generate.py`."
#: What the routes answer that is made of structs, and the modules that these are in: later ones have those that count.
_ANSWERS = (answer.RunAnswer, comparison.Comparison, findings.Prospect, findings.MemoryRun, plans.PlanAnswer)
_MODULES: tuple[ModuleType, ...] = (findings, comparison, gaps, views, commands, plans, answer)
_TYPES = """\
/**
 * @typedef {object} Owner
 * @property {string} name
 * @property {string} when a nanosecond belongs to it
 * @property {string} whenOnCpu the same in a job without a GPU
 * @property {string} light its colour in the light theme
 * @property {string} dark
 * @property {string} ink of numbers on it
 */

/**
 * @typedef {object} Phase
 * @property {string} name
 * @property {string} when
 * @property {string} whenOnCpu the same in a job without a GPU
 * @property {string} colour the owner's whose it has
 */

/**
 * @typedef {object} MemoryPart
 * @property {string} name
 * @property {string} when memory is of it
 * @property {string} colour the owner's whose it has
 */
"""


def glossary() -> str:
    """`glossary.js`: what terms mean, for the tab, which has no page to read them from."""
    entries = "".join(f"  {json.dumps([term, meaning], ensure_ascii=False)},\n" for term, meaning in _terms())
    return (
        f"{_MADE.format(source='docs/glossary.md')}\n\n"
        "/** What a term means, or its formula. @type {Map<string, string>} */\n"
        f"export const GLOSSARY = new Map([\n{entries}]);\n"
    )


def quantities() -> str:
    """`quantities.js`: what figures are, of which ranks and steps, and where their cells are."""
    keys = ("meaning", "over", "view", "field")
    entries = "".join(
        f"  {json.dumps([name, {key: getattr(one, key) for key in keys}], ensure_ascii=False)},\n"
        for name, one in QUANTITIES.items()
    )
    heads = "".join(
        f"  {json.dumps([head, name], ensure_ascii=False)},\n"
        for name, one in QUANTITIES.items()
        for head in (name, *one.heads)
    )
    return (
        f"{_MADE.format(source='tb_ddp_doctor/quantities.toml')}\n\n"
        "/** @typedef {{meaning: string, over: string, view: string, field: string}} Quantity */\n\n"
        "/** What a figure is, by name; without a meaning a term of the glossary. @type {Map<string, Quantity>} */\n"
        f"export const QUANTITIES = new Map([\n{entries}]);\n\n"
        "/** The quantity that a heading of a table names. @type {Map<string, string>} */\n"
        f"export const HEADS = new Map([\n{heads}]);\n"
    )


def quantities_page() -> str:
    """docs/quantities.md: the same as a page."""
    rows = "".join(
        f"| {name} | {one.meaning or _IN_GLOSSARY} | {one.over} | {one.view} | {one.field and f'`{one.field}`'} |\n"
        for name, one in QUANTITIES.items()
    )
    return f"{_QUANTITIES_PAGE}{rows}"


_IN_GLOSSARY = "see the [glossary](glossary.md)"
_QUANTITIES_PAGE = """\
# Quantities

Every figure of the tab is one of these: its definition or formula, of which ranks and steps it is, the view that has
its cell, and the field of the [JSON](json.md). The "?" beside a figure or a heading shows the same, and a click on it
leads to the cell; `ddp-doctor explain busbw` prints one. Terms are in the [glossary](glossary.md).

| quantity | definition or formula | of | view | JSON |
|---|---|---|---|---|
"""


def glossary_of_commands() -> str:
    """`glossary.json`: the same for `ddp-doctor explain`."""
    terms = {term: meaning for term, meaning in _terms() if not term.startswith("term (")}
    return f"{json.dumps(terms, ensure_ascii=False, indent=2)}\n"


def _terms() -> list[tuple[str, str]]:
    """The rows of docs/glossary.md: a term, and its meaning."""
    page = (FRONTEND.parents[1] / "docs" / "glossary.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([^|]+?)(?: \(`\w+`\))? \| ([^|]+?) \|", page, re.MULTILINE)
    return [(term, meaning) for term, meaning in rows if term not in ("term", "---")]


def step_parts() -> str:
    """`step_parts.js`: owners and phases, their words and colours."""
    owners = {
        name: {
            "name": owner.title,
            "when": owner.when,
            "whenOnCpu": owner.when_on_cpu or owner.when,
            "light": owner.light,
            "dark": owner.dark,
            "ink": owner.ink,
        }
        for name, owner in OWNERS.items()
    }
    phases = {
        name: {
            "name": name,
            "when": phase.when,
            "whenOnCpu": phase.when_on_cpu or phase.when,
            "colour": phase.colour,
        }
        for name, phase in PHASES.items()
    }
    memory = {name: {"name": part.title, "when": part.when, "colour": part.colour} for name, part in MEMORY.items()}
    head = _MADE.format(source="tb_ddp_doctor/step_parts.toml")
    return "\n".join(
        [
            f"{head} The parts of a step, in their order.\n",
            _TYPES,
            "/** @type {Map<string, Owner>} */",
            _map("OWNERS", owners),
            "/** Owners of time in which the GPU idles. @type {Set<string>} */",
            f"export const IDLE = new Set({json.dumps(IDLE)});\n",
            "/** @type {Map<string, Phase>} */",
            _map("PHASES", phases),
            "/** @type {Map<string, MemoryPart>} */",
            _map("MEMORY", memory).rstrip("\n"),
            "",
        ]
    )


def rounding() -> str:
    """`rounding.js`: how times and shares are rounded, as `wording.py` has it."""
    return "\n".join(
        [
            f"{_MADE.format(source='tb_ddp_doctor/wording.py')} How numbers are rounded.\n",
            "/** Times from so many ms on: unit in ms, its name, digits. @type {[number, number, string, number][]} */",
            f"export const TIMES = {json.dumps(wording.TIMES, ensure_ascii=False)};",
            "/** The ends of intervals that are so wide have no digits, ms. */",
            f"export const WIDE_MS = {json.dumps(wording.WIDE_MS)};",
            "/** Sums from so many ms on, and their digits. @type {[number, number][]} */",
            f"export const SUMS = {json.dumps(wording.SUMS)};",
            "/** Intervals that end below it have two digits, as times have there, ms. */",
            f"export const FINE_MS = {json.dumps(wording.FINE_MS)};",
            "/** Shares from here on are whole percents; those below the least are not told apart. */",
            f"export const WHOLE_SHARE = {json.dumps(wording.WHOLE_SHARE)};",
            f"export const LEAST_SHARE = {json.dumps(wording.LEAST_SHARE)};",
            "",
        ]
    )


def _map(name: str, entries: Mapping[str, Mapping[str, str]]) -> str:
    rows = "".join(f"  [{json.dumps(key)}, {_object(entry)}],\n" for key, entry in entries.items())
    return f"export const {name} = new Map([\n{rows}]);\n"


def _object(entry: Mapping[str, str]) -> str:
    return "{ " + ", ".join(f"{key}: {json.dumps(value)}" for key, value in entry.items()) + " }"


def schema() -> str:
    """`schema.d.ts`: the types of what the server sends, from its JSON Schema, with the comments of its structs."""
    _, components = msgspec.json.schema_components(_ANSWERS, ref_template="{name}")
    structs = {name: struct for module in _MODULES for name, struct in inspect.getmembers(module, _is_struct)}
    interfaces = [_interface(name, schema, structs[name]) for name, schema in sorted(components.items())]
    return "\n".join([_MADE.format(source="the JSON Schema"), "", *interfaces])


def _is_struct(value: object) -> bool:
    return inspect.isclass(value) and issubclass(value, msgspec.Struct)


def _interface(name: str, schema: Mapping[str, Any], struct: type[msgspec.Struct]) -> str:
    comments = {field: comment for each in reversed(struct.__mro__[:-2]) for field, comment in _comments(each)}
    description = " ".join(schema["description"].split())
    lines = [f"/** {description} */", f"export interface {name} {{"]
    for field, of in schema["properties"].items():
        if field in comments:
            lines.append(f"  /** {comments[field]} */")
        lines.append(f"  {field}: {_type(of)};")
    return "\n".join([*lines, "}", ""])


def _comments(struct: type) -> Iterator[tuple[str, str]]:
    """The comment `#: ...` before each field of a struct."""
    if struct.__module__.startswith("tb_ddp_doctor."):
        for found in re.finditer(r"((?:    #: .*\n)+)    (\w+):", inspect.getsource(struct)):
            comment = " ".join(line.strip().removeprefix("#: ") for line in found[1].splitlines())
            yield found[2], re.sub(r"\bNone\b", "null", comment)


def _type(schema: Mapping[str, Any]) -> str:
    """A schema as a type of TypeScript."""
    match schema:
        case {"$ref": name}:
            return str(name)
        case {"enum": values}:
            return " | ".join(map(json.dumps, values))
        case {"anyOf": choices}:
            return " | ".join(map(_type, choices))
        case {"type": "array", "prefixItems": items}:
            return f"[{', '.join(map(_type, items))}]"
        case {"type": "array", "items": item}:
            of = _type(item)
            return f"({of})[]" if " | " in of else f"{of}[]"
        case {"type": "object", "additionalProperties": item}:
            return f"Record<string, {_type(item)}>"
        case {"type": "integer"}:
            return "number"
        case {"type": "string" | "number" | "boolean" | "null" as kind}:
            return kind
    raise ValueError(f"No type for {schema}.")


def properties(file: str, name: str) -> list[str]:
    """The properties of a type that a module of the frontend defines by hand."""
    source = (FRONTEND / file).read_text(encoding="utf-8")
    if block := re.search(rf"@typedef {{object}} {name}\b(.*?)\*/", source, re.DOTALL):
        return re.findall(r"@property {.*} (\w+)", block[1])
    inline = re.search(rf"@typedef {{{{(.*)}}}} {name}\b", source)
    assert inline, f"{file} has no type {name}"
    return re.findall(r"(\w+):", inline[1])
