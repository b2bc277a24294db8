"""Documents as JSON: what each address under /data asks for, and which news makes its document again."""

import logging
import math
import time
from collections.abc import Awaitable, Callable, Mapping

from starlette.convertors import Convertor, register_url_convertor
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from shoal.errors import ConfigError, ShoalError, StorageError
from shoal.page.contributor import node_document
from shoal.page.documents import Busy, Documents
from shoal.page.joining import join_document
from shoal.page.ledger import ledger_document
from shoal.page.pages import Document, Missing, Pages
from shoal.page.privacy import public_text
from shoal.page.rollouts import RolloutQuery, answer_text, group_document, rollouts_document
from shoal.page.run import run_document
from shoal.page.swarm import MAX_PAGE, NodeQuery, swarm_document
from shoal.page.verdicts import VerdictQuery, verdict_document, verdicts_document
from shoal.protocol.refusal import Refusal

LOG = logging.getLogger(__name__)
LOG_S = 60.0
MAX_TEXT = 200
MAX_QUERY = 1000
MAX_DIGITS = 18  # of a whole number: what every database takes
NO_DATABASE = "the coordinator's records cannot be read now; the log of the page's server says why"
ELSEWHERE = "the rollouts of this run cannot be read from here; the log of the page's server says why"
Handler = Callable[[Request], Awaitable[Response]]
Make = Callable[[], Document]
Asked = Callable[[Pages, Request], Make]
"""Reads a request, and says how its document is made."""
Revision = Callable[[Pages], object]
"""A document is made again when this has changed."""


class WholeNumber(Convertor[int]):
    """`{name:whole}` of a path; one with more digits is not an address of ours."""

    regex = f"[0-9]{{1,{MAX_DIGITS}}}"

    def convert(self, value: str) -> int:
        return int(value)

    def to_string(self, value: int) -> str:
        return str(value)


register_url_convertor("whole", WholeNumber())


def data_handlers(pages: Pages) -> dict[str, Handler]:
    """A handler per document, by its address."""
    private = _Private()
    return {
        path: _document(pages, revision, asked, private, pages.decoded if path in DECODED else pages.documents)
        for path, (revision, asked) in DOCUMENTS.items()
    }


def problem(status: int, reason: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"error": reason}, status, headers=dict(headers or {}))


def _steps(pages: Pages) -> object:
    return pages.revision[:2]


def _records(pages: Pages) -> object:
    return pages.revision[2]


def _both(pages: Pages) -> object:
    return pages.revision


def _run(pages: Pages, _: Request) -> Make:
    return lambda: {"revision": pages.live()["revision"], **run_document(pages.files)}


def _swarm(pages: Pages, request: Request) -> Make:
    ask = _Query(request)
    query = NodeQuery(ask.text("state"), ask.text("role"), ask.text("search"), ask.text("sort"), ask.page())
    return pages.recorded(lambda db: swarm_document(db, pages.files, query))


def _rollouts(pages: Pages, request: Request) -> Make:
    ask = _Query(request)
    query = RolloutQuery(
        ask.whole("step"),
        ask.text("source"),
        ask.whole("task"),
        ask.text("node").lower(),
        ask.real("reward_from", -math.inf),
        ask.real("reward_to", math.inf),
        ask.real("tokens_from", 0),
        ask.real("tokens_to", math.inf),
        ask.page(),
    )
    return pages.recorded(lambda db: rollouts_document(db, pages.files, pages.index, query))


def _group(pages: Pages, request: Request) -> Make:
    at = request.path_params
    return pages.recorded(lambda db: group_document(db, pages.files, at["step"], at["number"], at["group"]))


def _answer(pages: Pages, request: Request) -> Make:
    at = request.path_params
    return pages.recorded(lambda db: answer_text(db, pages.files, at["step"], at["number"], at["group"], at["sample"]))


def _verdicts(pages: Pages, request: Request) -> Make:
    ask = _Query(request)
    query = VerdictQuery(
        ask.text("result") or "refused", ask.text("check"), ask.text("node"), ask.whole("step"), ask.page()
    )
    return pages.recorded(lambda db: verdicts_document(db, query))


def _verdict(pages: Pages, request: Request) -> Make:
    at = request.path_params
    return pages.recorded(lambda db: verdict_document(db, pages.files, at["step"], at["number"]))


def _node(pages: Pages, request: Request) -> Make:
    address, page = request.path_params["address"].lower()[:42], _Query(request).page()
    return pages.recorded(lambda db: node_document(db, pages.files, address, page))


def _ledger(pages: Pages, _: Request) -> Make:
    return lambda: ledger_document(pages.files.ledger, pages.files.path)


def _join(pages: Pages, _: Request) -> Make:
    return lambda: join_document(pages.files)


DOCUMENTS: dict[str, tuple[Revision, Asked]] = {
    "run": (_steps, _run),
    "swarm": (_records, _swarm),
    "rollouts": (_records, _rollouts),
    "rollouts/{step:whole}/{number:whole}/{group:whole}": (_records, _group),
    "rollouts/{step:whole}/{number:whole}/{group:whole}/{sample:whole}": (_records, _answer),
    "verdicts": (_records, _verdicts),
    "verdicts/{step:whole}/{number:whole}": (_records, _verdict),
    "node/{address}": (_records, _node),
    "ledger": (_records, _ledger),
    "join": (_both, _join),
}


DECODED = {path for path in DOCUMENTS if path.startswith(("rollouts", "verdicts/"))}
"""Documents that are made of rollout files and bundles of evidence, and not of records alone."""


def _document(pages: Pages, revision: Revision, asked: Asked, private: "_Private", documents: Documents) -> Handler:
    async def handler(request: Request) -> Response:
        query = str(request.query_params)
        if len(query) > MAX_QUERY:
            return problem(422, f"a query of {len(query)} characters; a page asks with {MAX_QUERY} at most")
        try:
            make = asked(pages, request)
        except ConfigError as error:
            return problem(422, public_text(error))
        try:
            data = await documents.get(f"{request.url.path}?{query}", revision(pages), make)
        except Missing as error:
            return problem(404, str(error))
        except Refusal as error:
            return problem(error.status, public_text(error.reason))
        except Busy:
            return problem(503, "too many documents are asked for at once; try again", {"Retry-After": "1"})
        except StorageError as error:
            return problem(503, private.instead_of(error, NO_DATABASE))
        except ConfigError as error:
            return problem(422, private.instead_of(error, ELSEWHERE))
        except ShoalError as error:
            return problem(503, public_text(error))
        return Response(data, media_type="application/json", headers={"Cache-Control": "no-store"})

    return handler


class _Private:
    """Errors that quote settings of [swarm], which nobody sees: they go to the log, once per minute at most."""

    def __init__(self) -> None:
        self._logged: dict[str, float] = {}

    def instead_of(self, error: ShoalError, sentence: str) -> str:
        """Logs the error; gives the sentence to show."""
        now = time.monotonic()
        if now - self._logged.get(sentence, -math.inf) >= LOG_S:
            self._logged[sentence] = now
            LOG.warning("%s", error)
        return sentence


class _Query:
    """Values of a query string; one that breaks a rule is a ConfigError that names it."""

    def __init__(self, request: Request) -> None:
        self._query = request.query_params

    def text(self, name: str) -> str:
        return self._query.get(name, "")[:MAX_TEXT].strip()

    def whole(self, name: str) -> int | None:
        value = self.text(name)
        if not value:
            return None
        if not value.isdecimal() or len(value) > MAX_DIGITS:
            raise ConfigError(f"{name} = {value!r:.40}: must be a whole number")
        return int(value)

    def real(self, name: str, default: float) -> float:
        value = self.text(name)
        if not value:
            return default
        try:
            found = float(value)
        except ValueError:
            found = math.nan
        if math.isnan(found) or abs(found) > 1e12:
            raise ConfigError(f"{name} = {value!r:.40}: must be a number")
        return found

    def page(self) -> int:
        return min(self.whole("page") or 0, MAX_PAGE)
