"""Strangers with keys that cost nothing, who come from any address: the real API, without a socket."""

import asyncio
import hashlib
import json
from typing import Any

import httpx2

from shoal.coordinator.http.api import make_app
from shoal.crypto.keys import Key
from shoal.crypto.signed_request import Recipient, sign_request
from tests.support.coordinator_in_process import HERE, World, key_of


class Stranger:
    """Requests over the real API from an address of choice."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._app = make_app(world.coordinator)

    def ask(self, key: Key, host: str, method: str, target: str, body: Any = None, data: bytes = b"") -> Any:
        """The parsed answer; an AssertionError with the reason if it was refused."""
        answer = self.send(key, host, method, target, json.dumps(body).encode() if body is not None else data)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def send(self, key: Key, host: str, method: str, target: str, data: bytes, to: Recipient = HERE) -> Any:
        digest = hashlib.sha256(data).hexdigest()
        headers = sign_request(key, method, target, digest, to, self.world.clock())
        return asyncio.run(self._send(host, method, target, data, headers | {"Content-Type": "application/json"}))

    async def _send(self, host: str, method: str, target: str, data: bytes, headers: dict[str, str]) -> Any:
        transport = httpx2.ASGITransport(app=self._app, client=(host, 1))
        async with httpx2.AsyncClient(transport=transport, base_url="http://run") as client:
            return await client.request(method, target, content=data, headers=headers)

    def join(self, name: str, host: str) -> None:
        self.ask(key_of(name), host, "POST", "/v1/nodes", {"role": "worker"})

    def lease(self, name: str, host: str, version: int = 0) -> Any:
        """A lease as it was signed, or None."""
        found = self.ask(key_of(name), host, "POST", "/v1/leases", {"version": version})["lease"]
        return None if found is None else found["lease"]

    def spoil(self, name: str, host: str) -> bool:
        """Joins, takes a lease and hands in rubbish for it that claims to be the best; False if it got no lease."""
        self.join(name, host)
        lease = self.lease(name, host)
        if lease is None:
            return False
        target = f"/v1/files/{lease['step']}/{lease['submission']}?signal={lease['groups']}"
        self.ask(key_of(name), host, "PUT", target, data=b"rubbish of " + name.encode())
        return True

    def spoil_all(self, host: str, most: int = 60) -> int:
        """Fresh keys until none gets a lease; how many did."""
        return next((n for n in range(most) if not self.spoil(f"{host}-{n}", host)), most)
