"""The tab as one file: its own modules and style sheet, and the answers that the plugin's routes would give.

Modules cannot import each other from a disk, where each file is an origin of its own. So all become one script within
the page, each a function that gives what the module exports, those that it needs before it. The page's own policy
allows that script alone, by its hash, and forbids all that is not in the file: neither a fault in a module nor text
from a trace runs another script or asks a server.

The modules import and export by names only (`import { a, b as c } from`, `export function`, `export const`); a default
export or a cycle is refused.
"""

from __future__ import annotations

import base64
import hashlib
import html
import itertools
import logging
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from tb_ddp_doctor.comparison.build import compare
from tb_ddp_doctor.engine import Result
from tb_ddp_doctor.findings import Diagnosis, MemoryRun, Severity
from tb_ddp_doctor.report.calibration import section
from tb_ddp_doctor.rules import CATALOGUE
from tb_ddp_doctor.rules import page as page_of
from tb_ddp_doctor.storage.paths import FilePath
from tb_ddp_doctor.stuck.model import StuckRun
from tb_ddp_doctor.view.answer import answer
from tb_ddp_doctor.view.assets import assets
from tb_ddp_doctor.view.details import DETAILS
from tb_ddp_doctor.view.summary import summary

_log = logging.getLogger(__name__)

#: Choices of faults to fix whose outcome the file holds, for each run: all of those of six rules.
_MOST_CHOICES = 64
#: Bytes of the numbers behind one of the further views of a run: what takes more is left to the server.
_MOST_DETAIL = 250_000
#: Comparisons that a page holds: all pairs of three runs, both ways. Each takes some tens of kilobytes.
_MOST_PAIRS = 6
#: `import { h, prose as text } from "./dom.js";`, over several lines too.
_IMPORT = re.compile(r"""^import\s*\{([^}]*)\}\s*from\s*["'](\.\.?/[\w./-]+\.js)["'];?""", re.MULTILINE)
_EXPORT = re.compile(r"^export (?=((?:async )?function\*?|const|class)\s+([\w$]+))", re.MULTILINE)
_OTHER = re.compile(r"^(?:export|import)\b(?!\.).*", re.MULTILINE)
_SHEETS = re.compile(r"^const SHEETS = \[(.*?)\];$", re.MULTILINE | re.DOTALL)
_START = "index.js"


def page(results: Sequence[Result], logdir: str, jobs: Sequence[StuckRun | MemoryRun] = ()) -> str:
    """All runs as one HTML file, those of traces, of Flight Recorder dumps and of snapshots of memory."""
    files = {route.lstrip("/"): path.read_text(encoding="utf-8") for route, (path, _) in assets().items()}
    style = "\n" + "".join(files[f"style/{name}.css"] for name in _sheets(files[_START]))
    script = _bundled(files)
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    said: list[Diagnosis | StuckRun | MemoryRun] = [*(result.diagnosis for result in results), *jobs]
    title = html.escape(f"Diagnosis of {', '.join(one.name for one in said)}")
    headlines = "".join(f"<h1>{html.escape(one.name)}</h1><p>{html.escape(one.headline)}</p>" for one in said)
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f'<meta name="viewport" content="width=device-width">\n<title>{title}</title>\n'
        f"<style>{style}</style>\n"
        f'<script type="application/json" id="ddp-doctor-answers">{_inert(_answers(results, logdir, jobs))}</script>\n'
        f'<script type="module">{script}</script>\n{_calibrations(results)}'
        f"</head>\n<body>\n<noscript>{headlines}<p>The rest of this report needs JavaScript.</p></noscript>\n"
        "</body>\n</html>\n"
    )


def _calibrations(results: Sequence[Result]) -> str:
    """What a check of the cluster measured, by run, where it lies beside its traces: shown below its diagnosis."""
    return "".join(
        f'<template data-calibration-of="{html.escape(result.diagnosis.name)}">{section(result.job.calibration)}'
        "</template>\n"
        for result in results
        if result.job.calibration
    )


def _sheets(start: str) -> list[str]:
    """The style sheets that index.js names, in its order."""
    named = _SHEETS.search(start)
    if named is None:
        raise ValueError("index.js names no style sheets.")
    return re.findall(r'"([\w-]+)"', named[1])


def _bundled(files: Mapping[str, str]) -> str:
    """All modules that index.js needs as one script, which shows the page."""
    order: list[str] = []
    _in_order(files, _START, [], order)
    modules = "\n".join(
        f"const {_variable(name)} = (() => {{\n{_as_function(name, files[name])}}})();" for name in order
    )
    script = f"\n{modules}\n{_variable(_START)}.show();\n"
    # An HTML parser must find no end of the script within.
    return script.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _in_order(files: Mapping[str, str], name: str, within: Sequence[str], order: list[str]) -> None:
    """Append a module, after those that it needs. Raises ValueError for modules that need each other."""
    if name in within:
        raise ValueError(f"The modules {', '.join(within)} need each other.")
    if name not in order:
        for imported in _IMPORT.finditer(files[name]):
            _in_order(files, _path(name, imported[2]), (*within, name), order)
        order.append(name)


def _as_function(name: str, text: str) -> str:
    """The body of a function that gives what a module exports."""
    exported = [matched[2] for matched in _EXPORT.finditer(text)]
    text = _IMPORT.sub(
        lambda matched: f"const {{{matched[1].replace(' as ', ': ')}}} = {_variable(_path(name, matched[2]))};", text
    )
    text = _EXPORT.sub("", text)
    if odd := _OTHER.search(text):
        raise ValueError(f"{name}: {odd[0]!r} is not taken apart here.")
    return f"{text}\nreturn {{ {', '.join(exported)} }};\n"


def _path(name: str, imported: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(name), imported))


def _variable(name: str) -> str:
    return f"${re.sub(r'[^a-z0-9]', '_', name.removesuffix('.js').lower())}"


def _hash(content: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}"


def _inert(value: Any) -> str:
    """JSON that an HTML parser finds no tag in."""
    return msgspec.json.encode(value).decode().replace("<", "\\u003c")


def _answers(results: Sequence[Result], logdir: str, jobs: Sequence[StuckRun | MemoryRun]) -> dict[str, Any]:
    """What the routes of `plugin` would answer, by route."""
    runs = [_listed(one.diagnosis, len(one.unfinished), _modified_s(one.files)) for one in results]
    runs += [_listed(one) for one in jobs]
    answers: dict[str, Any] = {
        "viewers": {"perfetto": None, "frames_perfetto_dev": False},
        "runs": {"state": "ready", "error": None, "logdir": logdir, "left_out": [], "runs": runs},
        **{f"run?run={one.name}": {"state": "ready", "diagnosis": one, "views": None} for one in jobs},
    }
    pairs = list(itertools.permutations(results, 2))
    for before, after in pairs if len(pairs) <= _MOST_PAIRS else ():
        route = f"compare?before={before.diagnosis.name}&after={after.diagnosis.name}"
        answers[route] = {"state": "ready", "comparison": compare(before, after)}
    for result in results:
        name = result.diagnosis.name
        for finding in result.diagnosis.all_findings:
            documented = page_of(CATALOGUE[finding.rule])
            answers[f"rule?rule={finding.rule}"] = {"summary": documented.summary, "sections": documented.sections}
        answers[f"run?run={name}"] = answer(result, in_report=True)
        answers.update({f"detail?run={name}&of={of}": detail for of, detail in _details(result)})
        for chosen in itertools.islice(_choices(result.diagnosis), _MOST_CHOICES):
            answers[f"whatif?run={name}&without={','.join(sorted(chosen))}"] = result.savings.without(chosen)
    return answers


def _listed(
    diagnosis: Diagnosis | StuckRun | MemoryRun, arriving: int = 0, modified_s: float | None = None
) -> dict[str, Any]:
    return {
        "name": diagnosis.name,
        "state": "ready",
        "progress": {"done": len(diagnosis.ranks), "total": len(diagnosis.ranks)},
        "error": None,
        "arriving": arriving,
        "deleted": 0,
        "modified_s": modified_s,
        **summary(diagnosis),
    }


def _modified_s(files: Sequence[FilePath]) -> float | None:
    """When the newest of some files was written, s since the epoch; None where no file can be asked."""
    newest = -1
    for file in files:
        with suppress(OSError):
            newest = max(newest, file.stat().st_mtime_ns)
    return newest / 1e9 if newest >= 0 else None


def _details(result: Result) -> Iterator[tuple[str, msgspec.Raw]]:
    for of, make in DETAILS.items():
        try:
            encoded = msgspec.json.encode(make(result))
        except Exception:
            _log.exception("The view %s of run %r could not be made", of, result.diagnosis.name)
            continue
        if len(encoded) <= _MOST_DETAIL:
            yield of, msgspec.Raw(encoded)


def _choices(diagnosis: Diagnosis) -> Iterator[tuple[str, ...]]:
    """Sets of findings that may be fixed, by id: first what the page shows at once, then all, none, one, two ..."""
    saving = [finding for finding in diagnosis.findings if max(finding.cost_ms, finding.alone_ms) > 0]
    yield tuple(finding.id for finding in saving if finding.severity != Severity.INFO.label)
    saving += diagnosis.opportunities
    ids = tuple(finding.id for finding in saving)
    yield ids
    for count in range(len(ids)):
        yield from itertools.combinations(ids, count)


def write(results: Sequence[Result], logdir: str, path: Path, jobs: Sequence[StuckRun | MemoryRun] = ()) -> int:
    """Write the report; returns its size in bytes. Raises ValueError for a path inside of the log directory."""
    if path.resolve().is_relative_to(Path(logdir).resolve()):
        raise ValueError(f"{path} is inside of the log directory, where nothing is written: name another place.")
    content = page(results, logdir, jobs).encode("utf-8", errors="replace")
    path.write_bytes(content)
    return len(content)
