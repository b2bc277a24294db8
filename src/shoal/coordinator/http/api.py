"""HTTP routes of the coordinator (FastAPI), with an OpenAPI description for clients in other languages.

Every refusal is a 4xx with a code and a reason. A 503 is the coordinator's own trouble, such as a full disk, and means:
nothing was changed, try again.
"""

import asyncio
import hashlib
import json
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, fields
from typing import Annotated, Any

from fastapi import Body, Depends, FastAPI, Header, Query, Request, Response
from fastapi import Path as InPath
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, RedirectResponse, StreamingResponse
from pydantic import ValidationError
from starlette.exceptions import HTTPException

from shoal.coordinator.coordinator import Coordinator
from shoal.coordinator.grants import NoLease
from shoal.coordinator.http.body_limits import PAUSE_S, App, Bounded, Scope
from shoal.coordinator.http.rate_limit import SIGNED, Guard, neighbours_of
from shoal.coordinator.prometheus import metrics_text
from shoal.coordinator.status import Overview
from shoal.crypto.signed_request import (
    BODY,
    EMPTY,
    NONCE,
    RECIPIENT,
    RUN,
    SIGNATURE,
    TIME,
    Recipient,
    RequestRefused,
    Signed,
)
from shoal.errors import LedgerError, StorageError
from shoal.ledger.entry import Statement
from shoal.ledger.refusal import Refused
from shoal.protocol import messages as m
from shoal.protocol.judge_note import FiledNotes
from shoal.protocol.lease import Lease
from shoal.protocol.numeric_evidence import NumericEvidence
from shoal.protocol.rates.rates_file import RatesFile
from shoal.protocol.rates.rates_table import SignedRates
from shoal.protocol.refusal import Refusal
from shoal.protocol.run_card import SignedCard
from shoal.protocol.task_weights import SignedTable
from shoal.protocol.verdict import Finding, Verdict
from shoal.telemetry.prometheus_text import CONTENT_TYPE

MAX_WAIT_S = 10.0
# Smaller files are kept in memory on their way.
SPOOL = 1 << 18
# An answer with entries of the ledger, well below what clients read (`client.MAX_ANSWER`).
MAX_LINES_BYTES = 1 << 20
LEASE_FIELDS = [field.name for field in fields(Lease)]
ABOUT = """Hands out work of a training run, takes the results and keeps count.

Requests marked with `Shoal-Signature` are signed by the node's secp256k1 key (EIP-191, `personal_sign`) over eight
lines joined by a newline: `shoal request 2`, the method, path and query as sent, the SHA-256 of the body, the time in
milliseconds since 1970, a nonce of 32 hexadecimal digits, and the coordinator's address and the run's name from the run
card. Times more than 60 s off and nonces used before are refused. The node is the address whose key made the signature.
"""
_PROBLEM = {"application/json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
# All are described by one model, which is given once: FastAPI would build it again for each code of each route.
PROBLEMS: dict[int | str, dict[str, Any]] = {
    code: {"description": text, "content": _PROBLEM}
    for code, text in {
        400: "The body is not what was signed, or cannot be parsed.",
        401: "Not signed, forged, used before, meant for somebody else, or a clock is off.",
        403: "The node may not do this.",
        404: "There is no such thing.",
        405: "Not with this method.",
        408: "The body came too slowly.",
        409: "Something else is there already.",
        410: "Too late.",
        413: "The body is too large.",
        422: "A value breaks a rule.",
        429: "The run is full, or too much was asked in a short time (then with Retry-After).",
        503: "The coordinator's own trouble; nothing was changed, try again.",
    }.items()
}
Step = Annotated[int, InPath(ge=0, lt=10**9, description="Training step.")]
Submission = Annotated[int, InPath(ge=0, lt=10**9, description="Number of the submission within its step.")]


def make_app(coordinator: Coordinator, pause_s: float = PAUSE_S, page: str | None = None) -> App:
    """The API as an ASGI application; a browser that asks for / is sent to the run's pages, if there are any."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(task) for task in (coordinator.keep(), coordinator.tell(), coordinator.tidy())]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()

    app = FastAPI(
        title="Shoal coordinator",
        version="1",
        description=ABOUT,
        lifespan=lifespan,
        responses=PROBLEMS,
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
        openapi_url="/v1/openapi.json",
    )
    _answer_errors(app)
    _open_routes(app, coordinator)
    _node_routes(app, coordinator)
    _own_routes(app, coordinator)
    _invite_routes(app, coordinator)
    _ledger_routes(app, coordinator)
    if page is not None:
        app.add_route("/", lambda _: RedirectResponse(page, 307), ["GET"], include_in_schema=False)
    terms = coordinator.terms
    trusted = terms.validators | {terms.trainer}
    own = Recipient(coordinator.key.address, terms.run)
    guard = Guard(app, terms.requests_per_s, own, coordinator.members, trusted, coordinator.clock)
    return Bounded(guard, terms.max_upload, _is_file, pause_s)


def _is_file(scope: Scope) -> bool:
    return scope["method"] == "PUT" and str(scope["path"]).startswith("/v1/files/")


def _signer(coordinator: Coordinator) -> Callable[..., Awaitable[Signed]]:
    """A dependency that gives the signer of a request, whose nonce is used from then on."""

    # The headers are named here for the description; the guard has read them.
    async def signed(
        request: Request,
        _time: Annotated[str, Header(alias=TIME, description="Milliseconds since 1970.")] = "",
        _nonce: Annotated[str, Header(alias=NONCE, description="32 hexadecimal digits, never the same twice.")] = "",
        _recipient: Annotated[str, Header(alias=RECIPIENT, description="The coordinator's address.")] = "",
        _run: Annotated[str, Header(alias=RUN, description="The run's name.")] = "",
        _body: Annotated[str, Header(alias=BODY, description="SHA-256 of the body.")] = "",
        _signature: Annotated[str, Header(alias=SIGNATURE, description="65 bytes, hexadecimal.")] = "",
    ) -> Signed:
        found: Signed | Refusal = request.scope[SIGNED]
        if isinstance(found, Refusal):
            raise found
        if not _is_file(request.scope):
            body = await request.body()
            _check_body(found, hashlib.sha256(body).hexdigest() if body else EMPTY, len(body))
        try:
            coordinator.nonces.use(found)
        except RequestRefused as refused:
            raise Refusal(refused.code, refused.reason) from None
        return found

    return signed


def _check_body(signed: Signed, sha256: str, size: int) -> None:
    if sha256 != signed.body:
        raise Refusal("body", f"{BODY} {signed.body[:12]}...: is not the hash of the {size} bytes sent")


def _answer_errors(app: FastAPI) -> None:
    def problem(status: int, error: str, reason: str) -> JSONResponse:
        return JSONResponse({"error": error, "reason": reason}, status)

    @app.exception_handler(Refusal)
    async def refused(_: Request, error: Refusal) -> JSONResponse:
        return problem(error.status, error.code, error.reason)

    @app.exception_handler(StorageError)
    async def unavailable(_: Request, error: StorageError) -> JSONResponse:
        return problem(503, "unavailable", str(error))

    @app.exception_handler(HTTPException)
    async def no_route(request: Request, error: HTTPException) -> JSONResponse:
        reason = f"{request.method} {request.url.path:.80}: {error.detail}; /v1/openapi.json lists what there is"
        return problem(error.status_code, "unknown" if error.status_code == 404 else "malformed", reason)

    @app.exception_handler(RequestValidationError)
    async def malformed(_: Request, error: RequestValidationError) -> JSONResponse:
        faults = [f"{'.'.join(str(part) for part in e['loc'])}: {e['msg']}" for e in error.errors()[:5]]
        return problem(422, "malformed", "; ".join(faults).encode("ascii", "backslashreplace").decode()[:1000])


def _open_routes(app: FastAPI, coordinator: Coordinator) -> None:
    """What anybody may ask."""

    @app.get(
        "/v1/card",
        summary="The run card: all that a node needs to know.",
        responses={503: {"model": m.Problem, "description": PROBLEMS[503]["description"]}},
    )
    async def card() -> SignedCard:
        return await coordinator.card()

    written: list[tuple[Overview, bytes]] = []

    @app.get("/v1/status", summary="Nodes, steps, and who waits on whom.", response_model=m.StatusOut)
    async def status() -> Response:
        seen = await coordinator.overview()
        if not written or written[0][0] is not seen:  # written once, however many look
            written[:] = [(seen, m.StatusOut.model_validate(asdict(seen)).model_dump_json().encode())]
        return Response(written[0][1], media_type="application/json")

    @app.get("/metrics", include_in_schema=False)
    async def metrics() -> Response:
        return Response(metrics_text(await coordinator.overview()), headers={"Content-Type": CONTENT_TYPE})

    @app.get("/v1/versions", summary="The newest policy version that is announced.")
    async def newest() -> m.NewestOut:
        return m.NewestOut(newest=await coordinator.newest())

    @app.get(
        "/v1/tasks/{sha256}",
        summary="A file that the run's tasks are made of, by its hash in the run card.",
        response_class=FileResponse,
        responses={200: {"content": {"application/octet-stream": {}}}},
    )
    async def task_file(sha256: Annotated[str, InPath(pattern="^[0-9a-f]{64}$")]) -> FileResponse:
        return FileResponse(coordinator.task_file(sha256), media_type="application/octet-stream")

    @app.get(
        "/v1/tables/{version}",
        summary="The weights that leases of this version draw their tasks by.",
        response_model=SignedTable,
    )
    async def table(version: Annotated[int, InPath(ge=0, lt=10**9)]) -> Response:
        return Response(await coordinator.table(version), media_type="application/json")

    served: list[tuple[SignedRates, bytes]] = []

    @app.get("/v1/rates", summary="The run's honest rates: what numbers are judged by.", response_model=SignedRates)
    async def rates() -> Response:
        if not served or served[0][0] is not coordinator.rates:  # written once per version
            served[:] = [(coordinator.rates, coordinator.rates.model_dump_json().encode())]
        return Response(served[0][1], media_type="application/json")

    @app.get("/v1/steps/{step}", summary="How much of a step is there and on its way.")
    async def count(step: Step) -> m.CountOut:
        return m.CountOut.model_validate(asdict(await coordinator.count(step)))

    @app.get("/v1/submissions/{step}/{submission}", summary="What became of a submission, and why.")
    async def why(step: Step, submission: Submission) -> m.ExplanationOut:
        return m.ExplanationOut.model_validate(asdict(await coordinator.explain(step, submission)))

    @app.get("/v1/evidence/{address}", summary="Numeric evidence against a node, in bfloat16 runs.")
    async def evidence(address: Annotated[str, InPath(pattern=r"^0x[0-9a-f]{40}$")]) -> m.NodeEvidenceOut:
        found = await coordinator.evidence_against(address)
        return m.NodeEvidenceOut(numbers=m.EvidenceOut.model_validate(asdict(found)) if found else None)


def _node_routes(app: FastAPI, coordinator: Coordinator) -> None:
    """What a worker or a relay asks."""
    signed = Depends(_signer(coordinator))

    @app.post("/v1/nodes", summary="Join the run; again after a crash, with the same key.")
    async def join(request: Request, body: m.JoinIn, by: Signed = signed) -> m.JoinOut:
        network = neighbours_of(request.scope)
        await coordinator.join(by, body.role, body.name, body.url, network, body.profile, body.invite)
        return m.JoinOut(address=by.node, heartbeat_s=coordinator.terms.heartbeat_s)

    @app.post("/v1/heartbeats", summary="Say that the node is there; the answer says what to do.")
    async def heartbeat(body: m.HeartbeatIn, by: Signed = signed) -> m.OrderOut:
        order = await coordinator.heartbeat(by, body.doing, body.waits_on, body.version)
        return m.OrderOut.model_validate({**asdict(order), "time": coordinator.clock()})

    @app.post("/v1/leases", summary="Ask for work.")
    async def lease(request: Request, body: m.LeaseIn, by: Signed = signed) -> m.LeaseOut:
        granted, retry_s = await coordinator.lease(by, body.version, body.holding, neighbours_of(request.scope))
        if isinstance(granted, NoLease):
            return m.LeaseOut(lease=None, reason=granted.reason, retry_s=retry_s)
        return m.LeaseOut(lease=granted.to_tree())

    @app.delete("/v1/leases", summary="Hand back all leases that the node holds and cannot finish.")
    async def hand_back(by: Signed = signed) -> m.HandedBack:
        back = await coordinator.hand_back(by)
        return m.HandedBack(leases=[m.PlaceOut(step=step, submission=submission) for step, submission in back])

    @app.put(
        "/v1/leases/{step}/{submission}/spans/{first}",
        summary="What the answers of a lease go on with from a token on. Asked again, it is the same.",
    )
    async def span(step: Step, submission: Submission, first: Step, body: m.SpanIn, by: Signed = signed) -> m.SpanOut:
        given = await coordinator.span(by, step, submission, first, body.version)
        return m.SpanOut.model_validate(asdict(given))

    @app.put(
        "/v1/files/{step}/{submission}",
        summary="Hand in a lease's file. The same bytes again change nothing.",
        openapi_extra={
            "requestBody": {
                "required": True,
                "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
            }
        },
    )
    async def upload(
        request: Request,
        step: Step,
        submission: Submission,
        signal: Annotated[int, Query(ge=0, lt=10**9, description="Groups in the file that have signal.")],
        by: Signed = signed,
    ) -> m.Done:
        began = coordinator.clock()
        try:
            ticket = await coordinator.may_upload(by, step, submission, by.body, signal)
        except Refusal:
            await _drain(request)
            raise
        if ticket.done:
            await _drain(request)
            return m.Done(changed=False)
        with coordinator.receiving(step, submission), tempfile.SpooledTemporaryFile(max_size=SPOOL) as spool:
            digest, size = hashlib.sha256(), 0
            async for piece in request.stream():
                digest.update(piece)
                size += len(piece)
                if size > SPOOL:
                    await asyncio.to_thread(spool.write, piece)
                else:
                    spool.write(piece)
            _check_body(by, digest.hexdigest(), size)
            spool.seek(0)
            async with coordinator.storing(step, submission, by.body) as name:
                await coordinator.objects.put(name, spool if size > SPOOL else spool.read())
                taken = await coordinator.take_upload(by, step, submission, by.body, size, signal, began)
        return m.Done(changed=taken)

    @app.post("/v1/uploads/{step}/{submission}", summary="Ask where to send a lease's file.")
    async def where(step: Step, submission: Submission, body: m.UploadIn, by: Signed = signed) -> m.UploadOut:
        url, done = await coordinator.direct_upload(by, step, submission, body.sha256, body.size, body.signal)
        return m.UploadOut(url=url, done=done)

    @app.post("/v1/uploads/{step}/{submission}/done", summary="Say that a file was sent to the object store.")
    async def sent(step: Step, submission: Submission, body: m.UploadIn, by: Signed = signed) -> m.Done:
        taken = await coordinator.direct_done(by, step, submission, body.sha256, body.size, body.signal)
        return m.Done(changed=taken)


def _tree(lease: Lease) -> dict[str, Any]:
    """`asdict` without its copies, which are most of what a long list costs."""
    return {name: getattr(lease, name) for name in LEASE_FIELDS}


async def _drain(request: Request) -> None:
    """Takes what a node is still sending: one whose connection is cut cannot read why it was refused."""
    async for _ in request.stream():
        pass


def _invite_routes(app: FastAPI, coordinator: Coordinator) -> None:
    """What the run's owner asks, with the coordinator's own key."""
    signed = Depends(_signer(coordinator))

    @app.get("/v1/invites", summary="Invites that were used or revoked.")
    async def on_record(by: Signed = signed) -> m.InviteList:
        records = await coordinator.invites(by)
        return m.InviteList(invites=[m.InviteOut.model_validate(asdict(record)) for record in records])

    @app.delete("/v1/invites/{number}", summary="Revoke an invite that nobody has used.")
    async def revoke(number: Annotated[str, InPath(pattern="^[0-9a-f]{32}$")], by: Signed = signed) -> m.Done:
        return m.Done(changed=await coordinator.revoke_invite(by, number))


def _own_routes(app: FastAPI, coordinator: Coordinator) -> None:
    """What the run's own trainer and validators ask."""
    signed = Depends(_signer(coordinator))
    Whole = Annotated[int, Query(ge=0, lt=10**9)]
    Wait = Annotated[
        float, Query(ge=0, le=MAX_WAIT_S, allow_inf_nan=False, description="Seconds to wait for more than `beyond`.")
    ]

    @app.get("/v1/files", summary="Files that wait for a verdict, or that were accepted.", response_model=m.FiledList)
    async def files(
        first: Whole,
        last: Whole,
        accepted: bool = False,
        beyond: Whole = 0,
        wait: Wait = 0.0,
        hand: Annotated[
            int, Query(ge=0, lt=10**4, description="At most so many, which this validator is to judge now; 0: all.")
        ] = 0,
        by: Signed = signed,
    ) -> Response:
        found = await coordinator.filed(by, first, last, True if accepted else None, beyond, wait, hand)
        # As it is: to check a list on its way out takes three times as long as to write it.
        files = [
            {
                "lease": _tree(file.lease),
                "sha256": file.sha256,
                "size": file.size,
                "record": file.record,
                "ordinal": file.ordinal,
            }
            for file in found
        ]
        return Response(json.dumps({"files": files}), media_type="application/json")

    @app.get(
        "/v1/files/{step}/{submission}",
        summary="The bytes of an upload.",
        response_class=Response,
        responses={200: {"content": {"application/octet-stream": {}}}},
    )
    async def file(step: Step, submission: Submission, by: Signed = signed) -> StreamingResponse:
        pieces, size = await coordinator.file(by, step, submission)
        headers = {"Content-Length": str(size)}
        return StreamingResponse(pieces, headers=headers, media_type="application/octet-stream")

    @app.get("/v1/leases/{step}/{submission}", summary="The lease that a submission was handed in under, signed.")
    async def issued(step: Step, submission: Submission, by: Signed = signed) -> m.LeaseOut:
        return m.LeaseOut(lease=(await coordinator.issued(by, step, submission)).to_tree())

    @app.delete("/v1/files", summary="Remove the files of steps that are long trained.")
    async def forget(before: Whole, by: Signed = signed) -> m.Done:
        return m.Done(changed=await coordinator.forget(by, before) > 0)

    @app.put("/v1/verdicts/{step}/{submission}", summary="Give a verdict on a file.")
    async def judge(step: Step, submission: Submission, body: m.VerdictIn, by: Signed = signed) -> m.Done:
        finding = Finding(**body.finding.model_dump()) if body.finding else None
        numbers = NumericEvidence(**body.numbers.model_dump()) if body.numbers else None
        verdict = Verdict(
            body.accept, body.sha256, body.audited, finding, body.evidence, body.samples, body.tokens, numbers
        )
        return m.Done(changed=await coordinator.judge(by, step, submission, verdict, body.note))

    @app.get("/v1/notes", summary="What the run's validators tell each other of files that they judged.")
    async def notes(after: Annotated[int, Query(ge=0, lt=1 << 53)] = 0, by: Signed = signed) -> FiledNotes:
        return FiledNotes(notes=await coordinator.notes(by, after))

    @app.put("/v1/bans/{address}", summary="Ask that a node gets no more leases; a quorum of validators bans it.")
    async def ban(
        address: Annotated[str, InPath(pattern=r"^0x[0-9a-f]{40}$")], body: m.BanIn, by: Signed = signed
    ) -> m.Done:
        return m.Done(changed=await coordinator.ban(by, address, body.reason, body.rates))

    @app.put("/v1/versions/{number}", summary="Make a policy version known.")
    async def announce(
        number: Annotated[int, InPath(ge=0, lt=10**9)], body: m.VersionIn, by: Signed = signed
    ) -> m.Done:
        await coordinator.announce(by, number, body.root, body.table)
        return m.Done(changed=True)

    @app.put("/v1/rates/{version}", summary="Add honest rates to the run's table, as its next version.")
    async def loosen(version: Annotated[int, InPath(ge=1, lt=10**6)], body: RatesFile, by: Signed = signed) -> m.Done:
        return m.Done(changed=await coordinator.loosen(by, version, body))

    @app.delete("/v1/versions", summary="Take versions back that no checkpoint backs.")
    async def retract(after: Whole, by: Signed = signed) -> m.Numbers:
        return m.Numbers(numbers=await coordinator.retract(by, after))


def _ledger_routes(app: FastAPI, coordinator: Coordinator) -> None:
    """The ledger: anybody reads it, and a statement that its author signed is entered from any sender."""
    First = Annotated[int, Query(ge=0, lt=1 << 32)]
    Address = Annotated[str, InPath(pattern=r"^0x[0-9a-f]{40}$")]
    signed = Depends(_signer(coordinator))

    @app.get(
        "/v1/ledger/entries",
        summary="Entries of the ledger from a number on, a line of JSON each, as many as fit.",
        response_model=m.LinesOut,
    )
    async def entries(first: First = 0) -> Response:
        try:
            lines = await asyncio.to_thread(coordinator.ledger_writer.stored_lines, first, MAX_LINES_BYTES)
        except Refused as error:
            raise Refusal("unknown", str(error)) from None
        # Each is one JSON string already: what is stored is handed out, neither parsed nor checked again.
        return Response(f'{{"lines":[{",".join(lines)}]}}', media_type="application/json")

    @app.get("/v1/ledger/nodes/{address}", summary="A node's stake, earnings and standing.")
    async def node(address: Address) -> m.StandingOut:
        standing = coordinator.ledger_writer.standing(address)
        if standing is None:
            raise Refusal("unknown", f"{address}: is not registered on the ledger")
        return m.StandingOut.model_validate(asdict(standing))

    @app.post("/v1/ledger/statements", summary="Enter an act that its author signed.")
    async def enter(body: Annotated[dict[str, Any], Body()], by: Signed = signed) -> m.Done:
        await coordinator.heard(by)
        try:
            statement = Statement.model_validate(body, strict=False)
            return m.Done(changed=await coordinator.take_statement(statement))
        except ValidationError as error:
            first = error.errors()[0]
            raise Refusal("malformed", f"{'.'.join(map(str, first['loc']))}: {first['msg']}"[:500]) from None
        except (Refused, LedgerError) as error:
            raise Refusal("taken", str(error)[:1000]) from None
