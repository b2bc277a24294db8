"""Node identity: secp256k1 keys, Ethereum addresses, and EIP-191 signatures over messages with a domain.

A signature here is what every Ethereum wallet makes of the same message (`personal_sign`), so any of them can check it.
Signing goes straight to libsecp256k1: a piece list has one signature per piece, and eth-account takes seven times
longer.
"""

import os
import secrets
from contextlib import suppress
from pathlib import Path

from coincurve import PrivateKey, PublicKey
from Crypto.Hash import keccak

from shoal.errors import IdentityError
from shoal.files import disk_errors, make_directory, open_regular

# Order of the curve's group; a signature whose s is in the upper half has a twin and is refused (EIP-2).
HALF_ORDER = 0x7FFFFFFFFFFFFFFFFFFFFFFFFFFFFFFF5D576E7357A4501DDFE92F46681B20A0


class Key:
    """A private key. It is never printed, logged or sent."""

    def __init__(self, secret: bytes) -> None:
        try:
            if len(secret) != 32:  # coincurve fills a short one up with zeros
                raise ValueError
            self._key = PrivateKey(secret)
        except ValueError:
            raise IdentityError(f"a key of {len(secret)} bytes: a private key is 32 bytes within the curve") from None
        self.address = _address(self._key.public_key)

    def __repr__(self) -> str:
        return f"Key({self.address})"

    @classmethod
    def create(cls) -> "Key":
        while True:  # a draw outside the curve's order has a chance of 2**-128
            try:
                return cls(secrets.token_bytes(32))
            except IdentityError:
                continue

    @classmethod
    def load(cls, path: Path) -> "Key":
        """The key in a file that only its owner can read."""
        try:
            with open_regular(path) as file:
                mode = os.fstat(file.fileno()).st_mode & 0o777
                if mode & 0o077:
                    raise IdentityError(f"key {path}: others can read it (mode {mode:o}); chmod 600 {path}")
                text = file.read(200).decode("ascii", errors="replace")
        except FileNotFoundError as error:
            raise IdentityError(f"key {path}: {error.strerror}; make one with shoal identity show") from error
        except OSError as error:
            raise IdentityError(f"key {path}: {error.strerror}; give the file of a key") from error
        try:
            return cls.parse(text)
        except IdentityError as error:
            raise IdentityError(f"key {path}: {error}") from None

    @classmethod
    def parse(cls, text: str) -> "Key":
        """A key from its hexadecimal digits."""
        try:
            secret = bytes.fromhex(text.strip().removeprefix("0x"))
        except ValueError:
            raise IdentityError("not 64 hexadecimal digits") from None
        return cls(secret)

    @classmethod
    def load_or_create(cls, path: Path) -> "Key":
        """The key in a file, made at first use; of two processes that make it at once, both get the same."""
        if not path.exists():
            with suppress(FileExistsError):
                cls.create().save(path)
        return cls.load(path)

    def save(self, path: Path) -> None:
        """Writes a file that only its owner can read; FileExistsError if there is one."""
        make_directory(path.parent)
        staging = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
        with disk_errors(path):
            descriptor = os.open(staging, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(f"{self.export()}\n".encode())
                    file.flush()
                    os.fsync(descriptor)  # what was signed with it must not outlast it
                os.link(staging, path)
            finally:
                staging.unlink(missing_ok=True)

    def export(self) -> str:
        """The secret itself, for its owner to keep elsewhere."""
        return f"0x{self._key.secret.hex()}"

    def sign(self, message: bytes) -> str:
        """65 bytes in hexadecimal: r, s, and 27 or 28."""
        raw = self._key.sign_recoverable(_eip191(message), hasher=None)
        return f"0x{raw[:64].hex()}{raw[64] + 27:02x}"


def signer_of(message: bytes, signature: str) -> str:
    """The address whose key made the signature; of a damaged message or signature it is some other address.

    Raises `IdentityError` for what no key could have made.
    """
    try:
        raw = bytes.fromhex(signature.removeprefix("0x"))
        if len(raw) != 65 or raw[64] not in (27, 28) or int.from_bytes(raw[32:64], "big") > HALF_ORDER:
            raise ValueError
        recoverable = raw[:64] + bytes([raw[64] - 27])
        return _address(PublicKey.from_signature_and_message(recoverable, _eip191(message), hasher=None))
    except Exception:  # coincurve raises bare Exception for r or s outside the curve
        raise IdentityError(f"signature {signature[:12]}...: not one that a secp256k1 key makes") from None


def checked_address(text: str) -> str:
    """An address in lower case; an upper-and-lower-case one must carry the right checksum (EIP-55)."""
    digits = text.removeprefix("0x")
    try:
        bytes.fromhex(digits)
    except ValueError:
        digits = ""
    if len(digits) != 40:
        raise IdentityError(f"address {text[:60]}: an address is 0x and 40 hexadecimal digits")
    if digits not in (digits.lower(), digits.upper()) and f"0x{digits}" != checksummed(text.lower()):
        raise IdentityError(f"address {text}: its checksum is wrong; look for a mistyped digit")
    return f"0x{digits.lower()}"


def checksummed(address: str) -> str:
    """The address in EIP-55's upper and lower case, for showing it to people."""
    digits = address.removeprefix("0x")
    marks = _keccak(digits.encode()).hex()
    return "0x" + "".join(d.upper() if int(mark, 16) >= 8 else d for d, mark in zip(digits, marks, strict=False))


def short(address: str) -> str:
    """An address as tables show it."""
    return f"{address[:6]}..{address[-4:]}" if len(address) == 42 else address


def _address(key: PublicKey) -> str:
    return f"0x{_keccak(key.format(compressed=False)[1:])[-20:].hex()}"


def _eip191(message: bytes) -> bytes:
    return _keccak(b"\x19Ethereum Signed Message:\n%d" % len(message) + message)


def _keccak(data: bytes) -> bytes:
    return keccak.new(digest_bits=256, data=data).digest()
