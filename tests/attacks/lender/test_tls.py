"""A machine in the middle: it may listen, relay, and present certificates, and no signed request reaches it."""

import re
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from cryptography import x509
from typer.testing import CliRunner

from shoal.cli import app
from shoal.client.client import CoordinatorClient
from shoal.client.known_coordinators import remember, trusted
from shoal.crypto.keys import Key
from shoal.crypto.tls import UnvouchedError, make_certificate, server_context, vouched_by
from shoal.errors import IdentityError, ShoalError, SwarmError
from shoal.protocol.run_card import Join
from shoal.shardcast.fetch.client import Puller
from shoal.shardcast.fetch.http import Connection, Pace, SourceError
from shoal.shardcast.format.store import Store
from shoal.shardcast.serve.server import Server, serving
from tests.support.coordinator_in_process import COORDINATOR, World, key_of, world_at
from tests.support.origin_and_relays import KEY, origin_at
from tests.support.until import until

A, MALLORY = key_of("a"), key_of("mallory")
PAUSE_S = 5.0  # longer than a busy machine keeps an honest handshake waiting


@pytest.fixture
def secure(tmp_path: Path) -> Iterator[World]:
    with world_at(tmp_path, f"sqlite:///{tmp_path / 'state.db'}", tls=True, pause_s=PAUSE_S) as world:
        yield world


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "shoal"


def port_of(url: str) -> int:
    return int(url.split("#")[0].rpartition(":")[2])


class Middle:
    """A proxy before a TLS server: it ends TLS with a certificate of its own, or speaks none, and relays everything."""

    def __init__(self, to: int, context: ssl.SSLContext | None) -> None:
        self._to = to
        self._context = context
        self.heard = bytearray()
        self.visits = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"https://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                sock, _ = self._listener.accept()
                self.visits += 1
                threading.Thread(target=self._relay, args=(sock,), daemon=True).start()

    def _relay(self, sock: socket.socket) -> None:
        loose = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        loose.check_hostname, loose.verify_mode = False, ssl.CERT_NONE
        with suppress(OSError):
            near = self._context.wrap_socket(sock, server_side=True) if self._context else sock
            far = loose.wrap_socket(socket.create_connection(("127.0.0.1", self._to)))
            threading.Thread(target=self._back, args=(far, near), daemon=True).start()
            while data := near.recv(1 << 16):
                self.heard += data
                far.sendall(data)

    def _back(self, far: socket.socket, near: socket.socket) -> None:
        with suppress(OSError):
            while data := far.recv(1 << 16):
                near.sendall(data)
            near.close()


@contextmanager
def middle(world: World, context: ssl.SSLContext | None) -> Iterator[Middle]:
    proxy = Middle(port_of(world.url), context)
    try:
        yield proxy
    finally:
        proxy.close()


def plain_certificate(folder: Path) -> ssl.SSLContext:
    """A self-signed certificate with the right name, as openssl makes one; it holds the coordinator's own voucher,
    which is public, over another key than the one it vouches for."""
    import datetime

    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    day = datetime.timedelta(days=1)
    made = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key()).serial_number(1)
    made = made.not_valid_before(now - day).not_valid_after(now + day)
    signed = made.sign(key, hashes.SHA256())
    pem = signed.public_bytes(serialization.Encoding.PEM) + key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "mallory.pem").write_bytes(pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "mallory.pem")
    return context


@pytest.mark.parametrize("kind", ["self-signed", "vouched for by another", "no TLS"])
def test_a_machine_in_the_middle_never_hears_a_request(secure: World, tmp_path: Path, kind: str) -> None:
    context = {"self-signed": plain_certificate(tmp_path), "vouched for by another": server_context(MALLORY)}.get(kind)
    with middle(secure, context) as proxy:
        with (
            CoordinatorClient(f"{proxy.url}#{COORDINATOR.address}", A, wait_s=0.5) as link,
            pytest.raises(ShoalError) as refused,
        ):
            link.join("worker")
        assert proxy.visits
        assert b"HTTP" not in proxy.heard  # no request at all, not even for the card
        assert b"Shoal" not in proxy.heard
        if kind == "vouched for by another":
            assert isinstance(refused.value, IdentityError)
            assert MALLORY.address in str(refused.value)
    with secure.link(A) as link:
        link.join("worker")


def test_another_coordinators_own_server_is_refused_by_name(secure: World) -> None:
    with (
        CoordinatorClient(f"{secure.url}#{MALLORY.address}", A, wait_s=1) as link,
        pytest.raises(IdentityError) as refused,
    ):
        link.join("worker")
    assert COORDINATOR.address in str(refused.value)
    assert MALLORY.address in str(refused.value)


def test_a_join_line_without_its_address_reaches_no_self_signed_coordinator(secure: World) -> None:
    with CoordinatorClient(secure.url, A, wait_s=1) as link, pytest.raises(SwarmError, match="#0xADDRESS"):
        link.join("worker")


def test_a_voucher_fits_no_other_key() -> None:
    one, other = (x509.load_pem_x509_certificate(make_certificate(key)) for key in (COORDINATOR, MALLORY))
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    forged = x509.CertificateBuilder().subject_name(one.subject).issuer_name(one.subject).serial_number(1)
    forged = forged.not_valid_before(one.not_valid_before_utc).not_valid_after(one.not_valid_after_utc)
    forged = forged.public_key(key.public_key()).add_extension(one.extensions[0].value, critical=False)
    assert vouched_by(one.public_bytes(serialization.Encoding.DER)) == COORDINATOR.address
    assert vouched_by(other.public_bytes(serialization.Encoding.DER)) == MALLORY.address
    stolen = forged.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.DER)
    assert vouched_by(stolen) != COORDINATOR.address
    for rubbish in (b"", b"\x30\x80" * 50, stolen[:-9], b"\x30" * 70_000):
        with pytest.raises(UnvouchedError):
            vouched_by(rubbish)


def test_a_coordinator_that_starts_again_with_another_certificate_is_the_same(secure: World) -> None:
    with secure.link(A) as link:
        link.join("worker")
        secure.stop()
        secure.start()
        assert link.heartbeat()["do"] == "work"


def test_somebody_in_the_middle_for_a_moment_ends_no_node(secure: World, tmp_path: Path) -> None:
    """It can keep a node waiting; when it is gone the node goes on, and it heard nothing."""
    with secure.link(A) as link:
        link.join("worker")
        port = port_of(secure.url)
        secure.stop()
        context = plain_certificate(tmp_path)
        listener = socket.create_server(("127.0.0.1", port))
        heard = bytearray()

        def play() -> None:
            for _ in range(3):
                with suppress(OSError):
                    sock, _ = listener.accept()
                    heard.extend(context.wrap_socket(sock, server_side=True).recv(1000))
            listener.close()
            secure.start()

        thread = threading.Thread(target=play)
        thread.start()
        assert link.heartbeat()["do"] == "work"
        thread.join()
        assert not heard


def test_a_stalled_handshake_holds_no_slot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.coordinator.http.server.MAX_CONNECTIONS", 8)
    path = f"sqlite:///{tmp_path / 'state.db'}"
    # Long enough to look at those that have not been closed for it yet.
    with world_at(tmp_path, path, tls=True, pause_s=15.0) as world, ExitStack() as stack:
        address = ("127.0.0.1", port_of(world.url))
        half = [stack.enter_context(socket.create_connection(address)) for _ in range(6)]
        half[0].sendall(b"\x16\x03\x01\x02\x00\x01")  # the beginning of a hello
        for sock in half:
            sock.setblocking(False)
        until(lambda: not any(_is_open(sock) for sock in half[4:]))
        # Half-open ones are counted: the network may have four, and the others were cut off at once.
        assert [_is_open(sock) for sock in half] == [True] * 4 + [False] * 2
        until(lambda: not any(_is_open(sock) for sock in half), 60.0)
        with world.link(A) as link:
            link.join("worker")


def test_a_secure_connection_that_never_asks_is_closed(tmp_path: Path) -> None:
    loose = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    loose.check_hostname, loose.verify_mode = False, ssl.CERT_NONE
    path = f"sqlite:///{tmp_path / 'state.db'}"
    with world_at(tmp_path, path, tls=True, pause_s=4.0) as world:  # longer than a handshake takes a busy machine
        for begin in (b"", b"GET /v1/card HTT"):
            with loose.wrap_socket(socket.create_connection(("127.0.0.1", port_of(world.url)), timeout=60)) as sock:
                sock.sendall(begin) if begin else None
                with suppress(ConnectionError):
                    assert sock.recv(100) == b""


def _is_open(sock: socket.socket) -> bool:
    try:
        return sock.recv(1) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


# What is remembered


def test_a_remembered_coordinator_that_changes_is_refused(home: Path) -> None:
    url = "https://run.example.org:7000"
    remember(trusted(f"{url}#{COORDINATOR.address}"), COORDINATOR.address)
    assert trusted(url).coordinator == COORDINATOR.address
    assert (home / "known_coordinators").stat().st_mode & 0o777 == 0o600
    with pytest.raises(SwarmError, match=re.escape(f"shoal identity forget {url}")):
        trusted(f"{url}#{MALLORY.address}")
    with pytest.raises(SwarmError, match="forget"):
        remember(Join.parse(url), MALLORY.address)
    with pytest.raises(SwarmError, match="over https before"):
        trusted("http://run.example.org:7000")
    forgot = CliRunner().invoke(app, ["identity", "forget", url])
    assert forgot.exit_code == 0, forgot.output
    assert trusted(f"{url}#{MALLORY.address}").coordinator == MALLORY.address


def test_a_new_run_on_a_used_port_of_this_machine_is_no_impostor(home: Path) -> None:
    for url in ("http://127.0.0.1:7000", "http://localhost:7000", "https://[::1]:7000"):
        remember(trusted(url), COORDINATOR.address)
        assert trusted(url).coordinator is None
    assert not home.exists()


def test_plain_http_over_the_open_internet_is_refused(home: Path) -> None:
    with pytest.raises(SwarmError, match="plain http over the open internet"):
        trusted(f"http://8.8.8.8:7000#{COORDINATOR.address}")
    assert trusted("http://10.1.2.3:7000").url == "http://10.1.2.3:7000"
    assert trusted(f"https://8.8.8.8:7000#{COORDINATOR.address}").coordinator == COORDINATOR.address


# Relays


def test_a_relay_over_tls_is_held_to_its_address(tmp_path: Path) -> None:
    with origin_at(tmp_path) as origin:
        origin.publish(0)
        relay = Key.create()
        server = Server(origin.store, context=server_context(relay), address=relay.address)
        with serving(server):
            url = server.known_as
            assert url == f"{server.url}#{relay.address}"
            with Puller(Store(tmp_path / "client"), [url], KEY.address) as puller:
                files = puller.fetch(0, 20)
                assert (files / "model.safetensors").read_bytes() == (
                    origin.versions[0] / "model.safetensors"
                ).read_bytes()
            for wrong in (f"{server.url}#{MALLORY.address}", server.url):
                connection = Connection(wrong)
                with pytest.raises(SourceError):
                    connection.get("head.json", pace=Pace(5.0))
            assert server.counts["refused"] == server.counts["missed"] == 0


def test_the_card_names_the_address_that_a_relay_joined_with(secure: World) -> None:
    with secure.link(A) as link:
        link.join("relay", "relay", "https://203.0.113.1:7200")
        until(lambda: f"https://203.0.113.1:7200#{A.address}" in link.refresh().relays, 60.0)


def test_half_open_handshakes_keep_nobody_from_a_relay(tmp_path: Path) -> None:
    from shoal.shardcast.serve.rate_limit import Limits

    with origin_at(tmp_path) as origin, ExitStack() as stack:
        origin.publish(0, 1)
        relay = Key.create()
        limits = Limits(connections=8, connections_per_address=4, idle_s=0.5)
        server = Server(origin.store, context=server_context(relay), address=relay.address, limits=limits)
        with serving(server):
            half = [stack.enter_context(socket.create_connection(("127.0.0.1", server.port))) for _ in range(12)]
            connection = Connection(server.known_as)
            assert connection.get("head.json", pace=Pace(5.0)).status == 200
            for sock in half:
                sock.setblocking(False)
            until(lambda: not any(_is_open(sock) for sock in half), 60.0)


def test_trainer_and_worker_work_over_tls(secure: World) -> None:
    secure.announce()
    lease = secure.take("a")
    secure.hand_in("a", lease)
    assert secure.trainer.count(0).seen
