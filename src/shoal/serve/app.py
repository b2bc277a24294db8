"""The server's ASGI application: OpenAI's chat, completion and model endpoints over one desk.

A client that goes away stops what it asked for; one that reads slowly delays nobody, because the engine never waits for
a reader, and what is kept for it is at most one request's answers.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from shoal.generate.engine import Request as EngineRequest
from shoal.openai_api.errors import ApiError
from shoal.openai_api.responses import DONE, Envelope, Kind, Piece, event, new_id
from shoal.serve.assembly import Assembly, joined
from shoal.serve.desk import Began, Desk, News, Ticket
from shoal.serve.http_limits import Gate, problem, read_body
from shoal.serve.prompts import Prompts
from shoal.serve.requests import ChatRequest, CompletionRequest, parse_chat, parse_completion
from shoal.serve.versions import Versions

Asked = ChatRequest | CompletionRequest
STREAM_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


class Gone(Exception):
    """The client closed its connection."""


@dataclass(slots=True)
class Serving:
    """What the endpoints work with. One thread tokenizes: a long prompt must not hold up the streams of others."""

    desk: Desk
    versions: Versions
    prompts: Prompts
    tokenizing: ThreadPoolExecutor

    def tokenized(self, asked: Asked) -> list[EngineRequest]:
        """A request to the engine for each answer, in the order of their indices."""
        if isinstance(asked, ChatRequest):
            prompts, param = [self.prompts.chat(asked.turns)], "messages"
        else:
            prompts, param = [self.prompts.completion(prompt) for prompt in asked.prompts], "prompt"
        rooms = [self.prompts.room(prompt, asked.new_tokens, param) for prompt in prompts]
        seed = secrets.randbits(63) if asked.seed is None else asked.seed % 2**64
        return [
            EngineRequest(
                prompt, seed, sample, room, decoding=asked.decoding, streamed=bool(asked.stream or asked.stops)
            )
            for prompt, room in zip(prompts, rooms, strict=True)
            for sample in range(asked.choices)
        ]


class Conversation:
    """One request while it is served: its ticket, the news of it, and whether its client is still there."""

    def __init__(self, serving: Serving, request: Request, asked: Asked, requests: Sequence[EngineRequest]) -> None:
        self._serving, self._asked = serving, asked
        self._news: asyncio.Queue[News | None] = asyncio.Queue()
        self._ticket = Ticket(serving.versions.parse(asked.model), requests, self._listener())
        self._assembly = Assembly(
            serving.prompts.decode,
            [request.prompt for request in requests],
            asked.stops,
            asked.wants_logprobs,
            bool(asked.return_token_ids),
            asked.choices,
        )
        serving.desk.take(self._ticket)
        self._gone = asyncio.create_task(_until_gone(request))
        self._gone.add_done_callback(lambda _: self._news.put_nowait(None))

    def _listener(self) -> Callable[[News], None]:
        loop = asyncio.get_running_loop()

        def hear(news: News) -> None:
            with suppress(RuntimeError):  # the loop has ended, and so has the client's connection
                loop.call_soon_threadsafe(self._news.put_nowait, news)

        return hear

    async def begin(self) -> Envelope:
        """Waits for its turn; only then is it known which version answers."""
        news = await self._next()
        assert isinstance(news, Began)
        kind: Kind = "chat" if isinstance(self._asked, ChatRequest) else "completion"
        return Envelope(kind, new_id(kind), self._serving.versions.label(news.version), news.version.root[:16])

    async def pieces(self) -> AsyncIterator[Piece]:
        """The answers as they come, in any order of their indices."""
        while not self._assembly.is_over:
            news = await self._next()
            if isinstance(news, Began):
                continue
            piece = self._assembly.hear(news)
            if piece is not None:
                yield piece
                if self._asked.stops and piece.finish == "stop":
                    self._serving.desk.drop(self._ticket, piece.index)

    async def whole(self, envelope: Envelope) -> dict[str, Any]:
        pieces: list[list[Piece]] = [[] for _ in self._ticket.requests]
        async for piece in self.pieces():
            pieces[piece.index].append(piece)
        return envelope.whole([joined(own) for own in pieces], self._assembly.usage)

    async def events(self, envelope: Envelope) -> AsyncIterator[bytes]:
        try:
            if envelope.kind == "chat":
                for index in range(len(self._ticket.requests)):
                    yield event(envelope.role(index))
            async for piece in self.pieces():
                yield event(envelope.chunk(piece))
            if self._asked.wants_usage:
                yield event(envelope.usage(self._assembly.usage))
            yield DONE
        except ApiError as error:  # the response has begun: its status cannot say so any more
            yield event(error.body)
        finally:
            self.end()

    def end(self) -> None:
        """Stops whatever of it is still running."""
        self._gone.cancel()
        if not self._assembly.is_over:
            self._serving.desk.drop(self._ticket)

    async def _next(self) -> Any:
        news = await self._news.get()
        if news is None:
            raise Gone
        if isinstance(news, ApiError):
            raise news
        return news


async def _until_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """A response of server-sent events, which ends with its client."""

    def __init__(self, events: AsyncIterator[bytes]) -> None:
        super().__init__(headers=STREAM_HEADERS, media_type="text/event-stream")
        del self.headers["content-length"]
        self._events = events

    async def __call__(self, _scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        with suppress(Gone):
            async with aclosing(self._events) as events:  # type: ignore[type-var]
                async for data in events:
                    await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


async def answer(serving: Serving, parse: Callable[[bytes], Asked], request: Request) -> Response:
    """A chat or completion request, from its body to its last token."""
    asked = parse(await read_body(request))
    serving.versions.parse(asked.model)  # before the work of tokenizing
    loop = asyncio.get_running_loop()
    requests = await loop.run_in_executor(serving.tokenizing, serving.tokenized, asked)
    conversation = Conversation(serving, request, asked, requests)
    try:
        envelope = await conversation.begin()
        if asked.stream:
            return EventStream(conversation.events(envelope))
        tree = await conversation.whole(envelope)
    except Gone:
        conversation.end()
        return Response(status_code=499)  # nobody reads it
    except BaseException:
        conversation.end()
        raise
    conversation.end()
    return JSONResponse(tree)


def make_app(serving: Serving, *, public: bool = False, api_key: str | None = None) -> Starlette:
    """The application; `api_key` is asked of every request, if there is one."""

    async def models(_: Request) -> Response:
        return JSONResponse({"object": "list", "data": serving.versions.entries(serving.prompts.max_len)})

    async def model(request: Request) -> Response:
        name = request.path_params["name"]
        serving.versions.parse(name)
        entries = serving.versions.entries(serving.prompts.max_len)
        found = next((entry for entry in entries if entry["id"] == name), None)
        if found is None:  # it was removed just now
            raise ApiError(404, "the version is gone", param="model", code="model_not_found")
        return JSONResponse(found)

    async def health(_: Request) -> Response:
        running, waiting = serving.desk.load
        loaded = serving.desk.loaded
        name = None if loaded is None else serving.versions.label(loaded)
        return JSONResponse({"status": "ok", "model": name, "running": running, "waiting": waiting})

    async def refused(_: Request, error: Exception) -> Response:
        assert isinstance(error, ApiError)
        return problem(error)

    async def unknown(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        what = f"{request.method[:10]} {request.url.path[:80]}"
        return problem(
            ApiError(error.status_code, f"{what}: this server has no such endpoint", code="unknown_endpoint")
        )

    async def broken(_: Request, error: Exception) -> Response:
        return problem(ApiError(500, f"the server failed ({type(error).__name__})", code="server_failed"))

    app = Starlette(
        routes=[
            Route("/v1/models", models, methods=["GET"]),
            Route("/v1/models/{name:path}", model, methods=["GET"]),
            Route("/v1/chat/completions", partial(answer, serving, parse_chat), methods=["POST"]),
            Route("/v1/completions", partial(answer, serving, parse_completion), methods=["POST"]),
            Route("/health", health, methods=["GET"]),
        ],
        exception_handlers={ApiError: refused, HTTPException: unknown, Exception: broken},
    )
    app.add_middleware(Gate, public=public, api_key=api_key)
    return app
