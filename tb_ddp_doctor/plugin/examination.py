"""Diagnoses runs, keeps what was found of the last ones, and answers the tab's questions about them.

Each process of `examiners` has one `Examination`. What a request asks is checked here, since anybody can send anything.
"""

from __future__ import annotations

import gzip
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias, cast

import msgspec

from tb_ddp_doctor import engine
from tb_ddp_doctor.cache import Cache
from tb_ddp_doctor.comparison.build import compare
from tb_ddp_doctor.plugin import slicing
from tb_ddp_doctor.plugin.asking import Progress, Reply, RunFiles, RunQuestion, Shown
from tb_ddp_doctor.plugin.run_plans import RunPlans
from tb_ddp_doctor.plugin.runs import Dumps, Result, ResultWithoutTraces, Run, Snapshots
from tb_ddp_doctor.report import html, markdown
from tb_ddp_doctor.rules import is_name
from tb_ddp_doctor.slices.model import SliceError
from tb_ddp_doctor.storage.cache_directory import default_directory
from tb_ddp_doctor.view.answer import answer as answer_of
from tb_ddp_doctor.view.details import DETAILS
from tb_ddp_doctor.view.history import kept_history
from tb_ddp_doctor.view.summary import summary
from tb_ddp_doctor.workers import limits
from tb_ddp_doctor.workers.cluster import SchedulerError, executor

#: Called when all files of a run are read, before its ranks are joined.
Joining: TypeAlias = Callable[[], None]
#: Gives the result of a run without the files of the second, and without those of the third that lack their end.
Diagnose: TypeAlias = Callable[[Run, Collection[str], Collection[str], Progress, Joining], Result]

#: gzip's level: higher ones take three times as long for a fifth less.
_QUICK = 1
#: Results of runs that are kept, 1.2 MB each and more, and memory from which on that of the last run alone is kept.
_MOST_RESULTS = 64
_MOST_BYTES = 512 << 20


def _nothing(*_: object) -> None:
    """Nobody wants to know."""


class Examination:
    """What was found of the runs that were asked for last."""

    def __init__(
        self,
        scheduler: str = "",
        *,
        diagnose: Diagnose | None = None,
        answer: Callable[[Result], object] | None = None,
    ) -> None:
        """With the address of a Dask scheduler, traces are read on its cluster."""
        self._scheduler = scheduler
        self._diagnose = diagnose or self._diagnosed
        self._answer = answer or _answer
        self._results: dict[int, Result] = {}
        self._lock = threading.Lock()
        self._plans = RunPlans()

    def show(self, source: RunFiles, progress: Progress = _nothing, joining: Joining = _nothing) -> Shown:
        """What is shown of a run."""
        try:
            result = self._result(source, progress, joining)
        except engine.RunError as problem:
            return Shown({}, b"", problem.unfinished, str(problem))
        except SchedulerError as problem:
            return Shown({}, b"", error=str(problem))
        body = gzip.compress(msgspec.json.encode(self._answer(result)), _QUICK, mtime=0)
        return Shown(summary(result.diagnosis), body, result.unfinished)

    def reply(self, question: RunQuestion, joining: Joining = _nothing) -> Reply:
        """The answer to a question about a run, or a sentence why there is none."""
        others = question.others
        if question.route == "plan":
            others = tuple(source for source in others if not isinstance(source.run, Dumps | Snapshots))
        results: list[engine.Result] = []
        for source in (question.source, *others):
            name = source.run.name
            if isinstance(source.run, Dumps | Snapshots):
                return _refusal(source.run.refusal(), 409)
            try:
                results.append(cast(engine.Result, self._result(source, _nothing, joining)))
            except (engine.RunError, SchedulerError) as problem:
                return _refusal(f"{name} could not be read: {problem}", 409)
        joining()
        if question.route == "report":
            return _report(results[0], question)
        try:
            return _ANSWERS[question.route](self, results, question.parameters)
        except SliceError as error:
            return _refusal(str(error))

    def _result(self, source: RunFiles, progress: Progress, joining: Joining) -> Result:
        """What a run was found to be."""
        result = self._results.get(source.number)
        if result is None:
            result = self._diagnose(source.run, source.changing, source.expected, progress, joining)
        with self._lock:
            self._results.pop(source.number, None)
            self._results[source.number] = result
            while len(self._results) > _MOST_RESULTS:
                del self._results[next(iter(self._results))]
            if len(self._results) > 1 and limits.own_bytes() > _MOST_BYTES:
                self._results = {source.number: result}
        return result

    def _diagnosed(
        self, run: Run, changing: Collection[str], expected: Collection[str], progress: Progress, joining: Joining
    ) -> Result:
        if isinstance(run, Dumps | Snapshots):
            return ResultWithoutTraces(run.examine(progress))
        with executor(self._scheduler) as workers:
            reading = engine.Reading(
                Cache(default_directory()),
                workers,
                changing=changing,
                expected=expected,
                project=Path.cwd(),
                joining=joining,
            )
            return engine.diagnose(run, progress=progress, reading=reading)

    def _whatif(self, results: Sequence[engine.Result], asked: Mapping[str, str]) -> Reply:
        without = [one for one in asked.get("without", "").split(",") if one]
        unknown = sorted({one for one in without if not is_name(one)})
        if unknown:
            return _refusal(f"There is no rule {unknown[0]!r}.")
        return Reply(msgspec.json.encode(results[0].savings.without(without)))

    def _plan(self, results: Sequence[engine.Result], asked: Mapping[str, str]) -> Reply:
        result, *others = results
        try:
            return Reply(msgspec.json.encode(self._plans.answer(result.diagnosis.name, result, others, asked)))
        except ValueError as error:
            return _refusal(str(error))

    def _compare(self, results: Sequence[engine.Result], _: Mapping[str, str]) -> Reply:
        before, after = results[0], results[-1]
        return Reply(msgspec.json.encode({"state": "ready", "comparison": compare(before, after)}))

    def _detail(self, results: Sequence[engine.Result], asked: Mapping[str, str]) -> Reply:
        of = asked.get("of", "")
        if of not in DETAILS:
            return _refusal(f"Ask for one of: {', '.join(DETAILS)}.")
        if of == "history":
            # Of which what does not change any more is kept.
            return Reply(kept_history(results[0], Cache(default_directory())))
        return Reply(msgspec.json.encode(DETAILS[of](results[0])))

    def _slice(self, results: Sequence[engine.Result], asked: Mapping[str, str]) -> Reply:
        return Reply(*slicing.answer(results[0], asked))

    def _lanes(self, results: Sequence[engine.Result], asked: Mapping[str, str]) -> Reply:
        return Reply(*slicing.lanes_answer(results[0], asked))


#: By route.
_ANSWERS: Mapping[str, Callable[[Examination, Sequence[engine.Result], Mapping[str, str]], Reply]] = {
    "whatif": Examination._whatif,
    "plan": Examination._plan,
    "compare": Examination._compare,
    "detail": Examination._detail,
    "slice": Examination._slice,
    "lanes": Examination._lanes,
}


def _report(result: engine.Result, question: RunQuestion) -> Reply:
    form = question.parameters.get("format", "")
    if form == "markdown":
        return Reply(markdown.document([result]).encode(), "text/markdown")
    if form != "html":
        return _refusal("format is html or markdown.")
    # To be saved, not shown: a page of this origin could ask TensorBoard for all that it serves.
    saved = (("Content-Disposition", "attachment"),)
    return Reply(html.page([result], question.logdir).encode(), "text/html", headers=saved)


def _refusal(sentence: str, code: int = 400) -> Reply:
    return Reply(msgspec.json.encode({"error": sentence}), code=code)


def _answer(result: Result) -> object:
    if isinstance(result, ResultWithoutTraces):
        return {"state": "ready", "diagnosis": result.diagnosis, "views": None}
    return answer_of(result)
