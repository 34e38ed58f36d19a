"""Signatures of verdicts: a DSSE envelope with Ed25519, as in-toto tools read it; needs the extra ``sign``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from replay import documents
from replay.errors import SpecError

if TYPE_CHECKING:
    from securesystemslib.dsse import Envelope
    from securesystemslib.signer import SSlibKey

Signer = Callable[[bytes], bytes]
"""Returns the envelope of a verdict's bytes."""
PAYLOAD_TYPE = "application/vnd.in-toto+json"
_PRIVATE, _PUBLIC = "an Ed25519 private key (PEM, PKCS 8, without a password)", "an Ed25519 public key (PEM)"
_FIX = "make one with `openssl genpkey -algorithm ed25519`, and its public key with `openssl pkey -pubout`"


def signer_of(path: Path) -> Signer:
    """Return what signs with the private key in a file.

    Raises:
        SpecError: the file holds no such key, or the extra is not installed.
    """
    _require()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key
    from securesystemslib.dsse import Envelope
    from securesystemslib.signer import CryptoSigner

    data = documents.read_bytes(path, _PRIVATE)
    try:
        key = load_pem_private_key(data, None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise SpecError(str(path), "no private key that can be read", _PRIVATE, _FIX) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise SpecError(str(path), "a key of another kind", _PRIVATE, _FIX)
    signer = CryptoSigner(key)

    def sign(verdict: bytes) -> bytes:
        envelope = Envelope(verdict, PAYLOAD_TYPE, {})
        envelope.sign(signer)
        return documents.pretty_json(envelope.to_dict()).encode()

    return sign


def signature_problem(envelope: bytes, verdict: bytes, key: Path, where: str) -> str | None:
    """Return why an envelope is no signature of a verdict by the public key in a file; None where it is one.

    Raises:
        SpecError: the file holds no such key, or the extra is not installed.
    """
    public = _public_key(key)
    from securesystemslib.exceptions import VerificationError

    try:
        found = _envelope(envelope, where)
    except SpecError as error:
        return error.got
    if found.payload_type != PAYLOAD_TYPE:
        return f"it signs a {found.payload_type[:60]!r}, not a {PAYLOAD_TYPE!r}"
    if found.payload != verdict:
        return "it signs another verdict"
    try:
        found.verify([public], 1)
    except VerificationError:
        return f"no signature in it is by {key.name}"
    return None


def payload_problem(envelope: bytes, verdict: bytes, where: str) -> str | None:
    """Return why an envelope is not about a verdict, whoever signed it; needs no key and no extra."""
    import base64
    import binascii

    try:
        found = documents.parse_json(documents.decode(envelope, where, "an envelope"), where)
        payload = base64.b64decode(found["payload"], validate=True)
    except (SpecError, KeyError, TypeError, binascii.Error):
        return "it is no DSSE envelope"
    return None if payload == verdict else "it signs another verdict"


def _public_key(path: Path) -> SSlibKey:
    _require()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key
    from securesystemslib.signer import SSlibKey

    data = documents.read_bytes(path, _PUBLIC)
    try:
        key = load_pem_public_key(data)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise SpecError(str(path), "no public key that can be read", _PUBLIC, _FIX) from error
    if not isinstance(key, Ed25519PublicKey):
        raise SpecError(str(path), "a key of another kind", _PUBLIC, _FIX)
    return SSlibKey.from_crypto(key)


def _envelope(data: bytes, where: str) -> Envelope:
    from securesystemslib.dsse import Envelope
    from securesystemslib.exceptions import FormatError

    document: Any = documents.parse_json(documents.decode(data, where, "an envelope"), where)
    try:
        return Envelope.from_dict(document)
    except (KeyError, TypeError, ValueError, FormatError) as error:
        raise SpecError(where, "it is no DSSE envelope", "a signature that `replay gate --sign-key` made", "sign again") from error


def _require() -> None:
    try:
        import cryptography  # noqa: F401
        import securesystemslib  # noqa: F401
    except ImportError as error:
        got = f"{error.name} is not installed"
        raise SpecError("signatures", got, "the extra `sign`", "pip install 'replay-gate[sign]'") from error
