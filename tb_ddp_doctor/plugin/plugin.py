"""The Diagnosis tab of TensorBoard: routes only.

    frontend-VERSION/index.js, ...
                       the frontend's files as they were at start (`assets`)
    runs[?reload]      every run of the log directory, how far its analysis is, and its verdict; with `reload`, the
                       directory is searched again at once
    run?run=NAME[&arriving]
                       the diagnosis of one run and the numbers behind its pictures; with `arriving`, files that are
                       still being written count in, as far as they are there
    rule?rule=RULE      what a rule looks for, why it matters and what it cannot see: its documentation
    whatif?run=NAME&without=FINDING,FINDING
                       the predicted step of a run if these findings, by id or rule, were fixed
    plan?run=NAME[&bucket_mb=5&links=2&dtype=bfloat16...][&fixed=FINDING,FINDING][&curve=FIELD][&fields]
                       the predicted step if this were otherwise (fields of `planning.model.Question`); with `curve`,
                       over one of them too; with `fields`, which of them the record does not answer
    compare?before=NAME&after=NAME
                       what differs between two runs; while one of them is read, how far that is
    detail?run=NAME&of=operators|communication|memory|ranks|quality|history
                       the numbers behind one of the further views (`details`)
    slice?run=NAME&ranks=0,3&start=NS&end=NS[&format=native|json|columns]
                       the events of some ranks in a window of the common clock, whole ns: a native Perfetto trace,
                       Chrome-trace JSON, or columns for a page to draw (`slices.columns` has their shape)
    lanes?run=NAME&ranks=0,3&start=NS&end=NS
                       the owners of those ranks' time in that window, from the digests (`slices.lanes` has the shape)
    report?run=NAME&format=html|markdown
                       the diagnosis for somebody else: the tab as one file, or text for a pull request
    notes              what people wrote about findings; a POST of JSON keeps a note beside the logs (`notes`)
    viewers            what can show a slice here: Perfetto's own page, or its one on the internet
    perfetto/...       the files of that page, and the sandbox around it (`perfetto_ui`)

In the answer to `run` (`view.answer`), each piece of evidence has a `window`: {ranks, start, end, seen}, a slice with
something around the evidence, and the start and end of the evidence itself; and each finding has `commands` of other
tools. views.clock_ms is the start of each step on the common clock for each rank, ms after views.origin_ns. Whole ns
are text: JavaScript's numbers do not hold them.

TensorBoard constructs every plugin before it serves a page and asks `is_active` of all of them in a row, so neither
touches a trace: the directory is searched in the background, from the first question on (`analyses`).
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensorboard import version as tensorboard_version
from tensorboard.backend import http_util
from tensorboard.plugins import base_plugin
from werkzeug import wrappers

from tb_ddp_doctor.plugin import perfetto_ui
from tb_ddp_doctor.plugin.analyses import Analyses
from tb_ddp_doctor.plugin.arrivals import Stamp, Stamps
from tb_ddp_doctor.plugin.asking import Examiner, RunFiles, RunQuestion
from tb_ddp_doctor.plugin.examiners import Examiners
from tb_ddp_doctor.plugin.notes import MOST_ASKED, NoteError, Notes, is_from_here
from tb_ddp_doctor.plugin.turns import RETRY_AFTER_S, TooManyError, Turns
from tb_ddp_doctor.view.assets import assets, folder

if TYPE_CHECKING:
    from tb_ddp_doctor.discover.head import RememberedHeads
    from tb_ddp_doctor.plugin.runs import Run
    from tb_ddp_doctor.storage.paths import FilePath

Location = str | Mapping[str, str]
Serve = Callable[[wrappers.Request], wrappers.Response]

#: From this version on TensorBoard lets its pages frame ui.perfetto.dev.
_FRAMES_PERFETTO_DEV = (2, 21)
#: How long a browser keeps files whose folder has the version in its name: of more than a hundred, none is asked for
#: again when the tab opens again.
_KEPT_S = 24 * 3600
#: The curve that other runs may be measured points of, and the most of them that are looked at.
_MEASURED_CURVE = "bucket_mb"
_MOST_OTHERS = 63
#: TensorBoard's option that has everything below the log directory looked into.
_EVERYWHERE = "--ddp_doctor_everywhere"


class _Discover:
    """Searches a log directory again and again; a file that has not changed costs a question for its status.

    With `everywhere` it looks into all folders, also on other file systems and beyond the first thousands.
    """

    def __init__(self, *, everywhere: bool = False) -> None:
        self._everywhere = everywhere
        self._heads: RememberedHeads | None = None
        #: What the last search did not look into, a sentence for each limit that it met.
        self.left_out: tuple[str, ...] = ()

    def __call__(self, location: Location) -> Sequence[Run]:
        from tb_ddp_doctor.cache import Cache
        from tb_ddp_doctor.discover.head import RememberedHeads
        from tb_ddp_doctor.discover.runs import discover
        from tb_ddp_doctor.plugin.runs import with_dumps
        from tb_ddp_doctor.storage.cache_directory import default_directory
        from tb_ddp_doctor.storage.reach import Reach

        if self._heads is None:
            self._heads = RememberedHeads(Cache(default_directory()).peek)
        walks: list[Reach] = []

        def reach() -> Reach:
            walks.append(Reach(everywhere=self._everywhere, option=_EVERYWHERE))
            return walks[-1]

        try:
            return with_dumps(location, partial(discover, location, peek=self._heads.peek, reach=reach), reach)
        finally:
            self.left_out = tuple(dict.fromkeys(sentence for walk in walks for sentence in walk.left_out()))


def _stamps(run: Run) -> dict[str, Stamp]:
    """Size and time of each file: a trace that is still being written, or comes later, is read again."""
    return {str(file.path): _stamp(file.path) for file in run.files}


def _stamp(path: FilePath) -> Stamp:
    try:
        status = path.stat()
    except OSError:
        return Stamp(-1, -1)
    return Stamp(status.st_size, status.st_mtime_ns)


class DiagnosisLoader(base_plugin.TBLoader):  # type: ignore[misc]  # TensorBoard has no types
    """Gives TensorBoard the plugin and its flags."""

    def define_flags(self, parser: argparse.ArgumentParser) -> None:
        flags = parser.add_argument_group("Diagnosis plugin")
        flags.add_argument(
            "--ddp_doctor_scheduler",
            metavar="ADDRESS",
            default="",
            help="read traces on the Dask cluster whose scheduler is at this address, for example tcp://host:8786",
        )
        flags.add_argument(
            _EVERYWHERE,
            action="store_true",
            help="look for traces in all folders below the log directory, also on other file systems and beyond the "
            "first 20,000",
        )

    def load(self, context: base_plugin.TBContext) -> DiagnosisPlugin:
        return DiagnosisPlugin(context)


class DiagnosisPlugin(base_plugin.TBPlugin):  # type: ignore[misc]  # TensorBoard has no types
    """Diagnoses distributed PyTorch training from its profiler traces."""

    plugin_name = "ddp_doctor"

    def __init__(
        self,
        context: base_plugin.TBContext,
        *,
        discover: Callable[[Location], Sequence[Run]] | None = None,
        examiner: Examiner | None = None,
        stamps: Callable[[Run], Stamps] = _stamps,
    ) -> None:
        self._context = context
        self._pages = perfetto_ui.pages()
        self._logdir = context.logdir or ""
        self._logdir_spec = getattr(context.flags, "logdir_spec", None) or ""
        self._discover: Callable[[Location], Sequence[Run]] = discover or _Discover(
            everywhere=bool(getattr(context.flags, "ddp_doctor_everywhere", False))
        )
        scheduler = getattr(context.flags, "ddp_doctor_scheduler", None) or ""
        self._examiner = examiner or Examiners(scheduler)
        self._turns = Turns()
        local = Path(self._logdir) if self._logdir and "://" not in self._logdir else None
        self._notes = Notes(local)
        self._analyses = Analyses(scan=self._scan, show=self._examiner.show, stamps=stamps)

    @cached_property
    def _files(self) -> dict[str, tuple[bytes, str]]:
        """Route to content and content type, for the files of the frontend."""
        return {route: (path.read_bytes(), content_type) for route, (path, content_type) in assets().items()}

    @cached_property
    def _folder(self) -> str:
        return folder({route: content for route, (content, _) in self._files.items()})

    def get_plugin_apps(self) -> dict[str, Any]:
        files = {
            f"{self._folder}{route}": wrappers.Request.application(partial(_serve_file, content, content_type))
            for route, (content, content_type) in self._files.items()
        }
        routes = {
            "/runs": self._serve_runs,
            "/run": self._serve_run,
            "/rule": self._serve_rule,
            "/whatif": self._in_turn(partial(self._serve_answer, "whatif")),
            "/plan": self._in_turn(partial(self._serve_answer, "plan")),
            "/compare": self._in_turn(self._serve_compare),
            "/detail": self._in_turn(partial(self._serve_answer, "detail")),
            "/slice": self._in_turn(partial(self._serve_answer, "slice")),
            "/lanes": self._in_turn(partial(self._serve_answer, "lanes")),
            "/report": self._in_turn(partial(self._serve_answer, "report")),
            "/viewers": self._serve_viewers,
            "/notes": self._serve_notes,
        }
        pages = {route: wrappers.Request.application(partial(_serve_page, page)) for route, page in self._pages.items()}
        answers = {route: wrappers.Request.application(_asked(serve)) for route, serve in routes.items()}
        return {**files, **pages, **answers}

    def _in_turn(self, serve: Serve) -> Serve:
        """The same for a route that computes its answer: only a few are served at once."""

        def served(request: wrappers.Request) -> wrappers.Response:
            try:
                with self._turns.turn():
                    return serve(request)
            except TooManyError as error:
                response = _respond(request, {"error": str(error)}, code=503)
                response.headers["Retry-After"] = str(RETRY_AFTER_S)
                return response

        return served

    def is_active(self) -> bool:
        """Whether there are traces; until the first scan has ended, yes.

        TensorBoard asks once per page load. A "no" from a scan that needs another second would hide the tab, or say
        "No dashboards are active" to someone who has traces; a "yes" too many shows a tab that says what to do.
        """
        return self._analyses.has_runs()

    def frontend_metadata(self) -> base_plugin.FrontendMetadata:
        return base_plugin.FrontendMetadata(es_module_path=f"{self._folder}/index.js", tab_name="Diagnosis")

    def _scan(self) -> Sequence[Run]:
        # TensorBoard leaves `logdir` empty under --logdir_spec; an empty path would mean the working directory.
        if self._logdir_spec and not self._logdir:
            from tb_ddp_doctor.discover.runs import parse_logdir_spec

            return self._discover(parse_logdir_spec(self._logdir_spec))
        return self._discover(self._logdir) if self._logdir else []

    def _serve_runs(self, request: wrappers.Request) -> wrappers.Response:
        answer = {
            "logdir": self._logdir or self._logdir_spec,
            "left_out": list(getattr(self._discover, "left_out", ())),
            **self._analyses.listing(reload="reload" in request.args),
        }
        return _respond(request, answer)

    def _serve_run(self, request: wrappers.Request) -> wrappers.Response:
        name = request.args.get("run")
        if not name:
            return _respond(request, {"error": "Which run? Ask for run?run=NAME, with a name from runs."}, code=400)
        answer = self._analyses.open(name, arriving="arriving" in request.args)
        if answer is None:
            return _respond(request, {"error": f"There is no run named {name!r} in the log directory."}, code=404)
        if isinstance(answer, bytes):
            return _respond(request, answer, content_encoding="gzip")
        return _respond(request, answer, code=200 if answer["state"] == "failed" else 202)

    def _serve_rule(self, request: wrappers.Request) -> wrappers.Response:
        from tb_ddp_doctor.rules import CATALOGUE, page

        name = request.args.get("rule", "")
        if name not in CATALOGUE:
            return _respond(request, {"error": f"There is no rule {name!r}."}, code=404)
        documented = page(CATALOGUE[name])
        return _respond(request, {"summary": documented.summary, "sections": documented.sections})

    def _serve_answer(self, route: str, request: wrappers.Request) -> wrappers.Response:
        """What is asked about one run."""
        name = request.args.get("run", "")
        source = self._analyses.source(name)
        if source is None:
            return _respond(request, {"error": f"No run named {name!r} has been diagnosed."}, code=404)
        logdir = self._logdir or self._logdir_spec
        others: Sequence[RunFiles] = ()
        if request.args.get("curve") == _MEASURED_CURVE:
            others = [other for other in self._analyses.sources() if other is not source][:_MOST_OTHERS]
        return self._reply(request, RunQuestion(route, source, request.args.to_dict(), tuple(others), logdir))

    def _reply(self, request: wrappers.Request, question: RunQuestion) -> wrappers.Response:
        """What the examiner says; of a run that takes more than it may, that."""
        from tb_ddp_doctor.workers.answers import CrashError

        try:
            reply = self._examiner.reply(question)
        except CrashError as error:
            return _respond(request, {"error": str(error)}, code=500)
        headers = [*map(tuple, reply.headers)]
        return _respond(request, reply.content, reply.content_type, code=reply.code, headers=headers)

    def _serve_compare(self, request: wrappers.Request) -> wrappers.Response:
        names = request.args.get("before", ""), request.args.get("after", "")
        if not all(names):
            sentence = "Which two runs? Ask for compare?before=NAME&after=NAME, with names from runs."
            return _respond(request, {"error": sentence}, code=400)
        sources = []
        for name in names:
            # A run that waits its turn is read next.
            answer, source = self._analyses.open(name), self._analyses.source(name)
            if answer is None:
                return _respond(request, {"error": f"There is no run named {name!r} in the log directory."}, code=404)
            if source is not None:
                sources.append(source)
            elif isinstance(answer, dict) and answer["state"] == "failed":
                return _respond(request, {"error": f"{name} could not be read: {answer['error']}"}, code=409)
            else:
                progress = answer["progress"] if isinstance(answer, dict) else None
                return _respond(request, {"state": "reading", "run": name, "progress": progress}, code=202)
        return self._reply(request, RunQuestion("compare", sources[0], request.args.to_dict(), (sources[1],)))

    def _serve_notes(self, request: wrappers.Request) -> wrappers.Response:
        """What people wrote about findings; a POST of JSON from a page of this server keeps one more note."""
        if request.method != "POST":
            return _respond(request, {"writable": self._notes.is_writable, "notes": self._notes.all()})
        if request.mimetype != "application/json" or not is_from_here(request.headers.get("Origin"), request.host):
            return _respond(request, {"error": "Notes are written from the tab only."}, code=403)
        if (request.content_length or 0) > MOST_ASKED:
            return _respond(request, {"error": "This note is too long."}, code=413)
        try:
            return _respond(request, {"notes": self._notes.keep(request.stream.read(MOST_ASKED))})
        except NoteError as error:
            return _respond(request, {"error": str(error)}, code=error.code)

    def _serve_viewers(self, request: wrappers.Request) -> wrappers.Response:
        answer = {
            "perfetto": next(iter(self._pages), "").removeprefix("/") or None,
            "frames_perfetto_dev": _version(tensorboard_version.VERSION) >= _FRAMES_PERFETTO_DEV,
            # TensorBoard lists its plugins after it has made them all.
            "torch_tb_profiler": "pytorch_profiler" in (self._context.plugin_name_to_instance or {}),
        }
        return _respond(request, answer)


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:2])


def _serve_page(page: perfetto_ui.PageFile, request: wrappers.Request) -> wrappers.Response:
    if page.content_type == perfetto_ui.HTML:
        html, policy = perfetto_ui.frame(page.path.read_text(encoding="utf-8"))
        return _respond(request, html, page.content_type, headers=[("Content-Security-Policy", policy)])
    return _respond(request, page.path.read_bytes(), page.content_type, expires=_KEPT_S)


def _asked(serve: Serve) -> Serve:
    """The same, with a sentence for a query that werkzeug cannot take apart."""

    def checked(request: wrappers.Request) -> wrappers.Response:
        try:
            _ = request.args
        except UnicodeDecodeError:
            return _respond(request, {"error": "The parameters are not UTF-8."}, code=400)
        return serve(request)

    return checked


def _serve_file(content: bytes, content_type: str, request: wrappers.Request) -> wrappers.Response:
    return _respond(request, content, content_type, expires=_KEPT_S)


def _respond(
    request: wrappers.Request, content: Any, content_type: str = "application/json", code: int = 200, **more: Any
) -> wrappers.Response:
    response: wrappers.Response = http_util.Respond(request, content, content_type, code=code, **more)
    return response
