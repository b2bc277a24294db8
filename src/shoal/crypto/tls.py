"""TLS between nodes: a server's certificate is vouched for by its address, so that URL#0xADDRESS needs no authority.

A server makes a TLS key when it starts and keeps it in memory alone. Its self-signed certificate carries a signature
of the node's own key over the TLS key. A client that knows the address checks that in the handshake, before it has
sent anything; a machine in the middle has another TLS key, for which it has no such signature. Nothing is renewed and
no fingerprint is passed on: a server that starts again makes another certificate, vouched for by the same address.

A certificate of an ordinary authority is as good, also behind an address: a proxy in front of a server has one.
"""

import datetime
import functools
import hashlib
import ipaddress
import socket
import ssl
import tempfile
from pathlib import Path
from typing import Literal

from shoal.crypto.keys import Key, signer_of
from shoal.crypto.signed import message
from shoal.errors import ConfigError, IdentityError

Mode = Literal["auto", "on", "off"]
DOMAIN = "shoal tls key 1"
VOUCHER = "2.25.329800735698586629295641978511506172918"  # made of a UUID, as anybody may
MAX_CERTIFICATE = 1 << 14
LIFETIME = datetime.timedelta(days=3650)  # of no meaning to our clients: the key ends with its process


class UnvouchedError(IdentityError):
    """A certificate that no address vouches for; an authority of this machine's may."""


class WrongServerError(IdentityError):
    """A server for which another address vouches than the one that was meant."""


def is_loopback(host: str) -> bool:
    """Whether a host to listen on is reached from this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        pass
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, ValueError):
        return False
    return all(ipaddress.ip_address(str(address[4][0]).partition("%")[0]).is_loopback for address in found)


def is_served(mode: Mode, host: str) -> bool:
    """Whether a server that listens on a host speaks TLS."""
    return mode == "on" or (mode == "auto" and not is_loopback(host))


def speaks_tls(host: str, url: str | None, tls: bool | None = None) -> bool:
    """Whether a relay or an origin serves https: as it is told to, or unless it listens on loopback (where a proxy may
    stand in front of it) or is to be known by an http URL."""
    if tls is not None:
        return tls
    return is_served("auto", host) and not (url or "").startswith("http://")


def vouched(url: str, address: str) -> str:
    """A server's URL with the address that vouches for its certificate, which plain HTTP has no use for."""
    return f"{url}#{address}" if url.startswith("https://") and address and "#" not in url else url


def server_context(key: Key, certificate: str = "", private: str = "") -> ssl.SSLContext:
    """What a server presents: the certificate in these PEM files, or else one that `key` vouches for."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3  # it has no renegotiation, which would cost the server most
    context.set_alpn_protocols(["http/1.1"])
    if certificate:
        try:
            context.load_cert_chain(certificate, private)
        except (OSError, ssl.SSLError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise ConfigError(
                f"swarm.tls_cert {certificate} with swarm.tls_key {private}: cannot be used ({reason}); give PEM files "
                "that this user can read, or neither: then a certificate is made"
            ) from error
        return context
    with tempfile.TemporaryDirectory(prefix="shoal-tls-") as folder:  # 0700, and gone at once: ssl reads files alone
        path = Path(folder) / "tls.pem"
        path.write_bytes(make_certificate(key))
        context.load_cert_chain(path)
    return context


def make_certificate(key: Key) -> bytes:
    """A new TLS key and a certificate of it that `key` vouches for, as PEM."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, f"shoal {key.address}")])
    now = datetime.datetime.now(datetime.UTC)
    public = private.public_key()
    spki = public.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    voucher = bytes.fromhex(key.sign(_message(spki)).removeprefix("0x"))
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + LIFETIME)
        .add_extension(x509.UnrecognizedExtension(x509.ObjectIdentifier(VOUCHER), voucher), critical=False)
        .sign(private, hashes.SHA256())
    )
    secret = private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return certificate.public_bytes(serialization.Encoding.PEM) + secret


def vouched_by(certificate: bytes) -> str:
    """The address that vouches for a certificate's key (DER); an UnvouchedError if there is none."""
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization

    try:
        if len(certificate) > MAX_CERTIFICATE:
            raise ValueError(f"{len(certificate)} bytes")
        parsed = x509.load_der_x509_certificate(certificate)
        extension = parsed.extensions.get_extension_for_oid(x509.ObjectIdentifier(VOUCHER)).value
        assert isinstance(extension, x509.UnrecognizedExtension)
        spki = parsed.public_key().public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        return signer_of(_message(spki), f"0x{extension.value.hex()}")
    except Exception as error:  # a stranger's bytes: whatever the parser raises, they do not vouch for it
        raise UnvouchedError(f"no address vouches for its certificate ({type(error).__name__})") from None


class _PinnedSocket(ssl.SSLSocket):
    """A connection whose handshake ends only with a server for which `address` vouches."""

    address: str

    def do_handshake(self, block: bool = False) -> None:
        super().do_handshake(block)
        found = vouched_by(self.getpeercert(binary_form=True) or b"")
        if found != self.address:
            raise WrongServerError(
                f"server {self.server_hostname}: its certificate is vouched for by {found}, expected {self.address}; "
                "another node is at that URL, or somebody intercepts the connection; nothing was sent"
            )


@functools.lru_cache(maxsize=256)
def pinned_context(address: str) -> ssl.SSLContext:
    """Connects to a server for which this address vouches, and to no other.

    A handshake that ends with another server raises an IdentityError, which is not an OSError: HTTP clients pass it on,
    and nobody takes it for a network that is away.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # the address is the name
    context.verify_mode = ssl.CERT_NONE
    context.sslsocket_class = type("PinnedSocket", (_PinnedSocket,), {"address": address})
    return context


@functools.cache
def public_context() -> ssl.SSLContext:
    """Connects to a server whose name an authority that this machine trusts vouches for; read once, in 0.1 s."""
    return ssl.create_default_context()


def _message(spki: bytes) -> bytes:
    return message(DOMAIN, hashlib.sha256(spki).hexdigest())
