"""What counts as an SSH public key: its type, its bytes and its fingerprint. Pure."""

import base64
import binascii
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

MAX_CHARACTERS = 8_192
RSA_BITS_MIN = 2_048
RSA_BITS_MAX = 16_384
LENGTH_BYTES = 4
ED25519_BYTES = 32
# An uncompressed point: one byte that says so, then two coordinates.
UNCOMPRESSED = 4
POINT_BYTES = {"nistp256": 65, "nistp384": 97, "nistp521": 133}


class MalformedKey(ValueError):
    """Not a public key that we let in; the text says why."""


@dataclass(frozen=True)
class PublicKey:
    """One public key without its comment. `line` is what `authorized_keys` holds of it."""

    line: str
    fingerprint: str


def parse(text: str) -> PublicKey:
    """The key in `text`, which is one line of a `.pub` file: type, base64, comment.

    The fingerprint is the one that `ssh-keygen -l` prints. Raises MalformedKey for anything but
    Ed25519, ECDSA on a NIST curve, or RSA of at least 2048 bits; options before the type are
    refused too, since they would act on the instance.

    >>> line = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f"
    >>> parse(line + " me@laptop").line == line
    True
    """
    text = text.strip()
    if len(text) > MAX_CHARACTERS or not text.isprintable():
        raise MalformedKey("This is not one line of a public key file.")
    key_type, _, rest = text.partition(" ")
    if key_type not in READERS:
        raise MalformedKey("A public key begins with ssh-ed25519, ecdsa-sha2-nistp… or ssh-rsa.")
    encoded = rest.strip().partition(" ")[0]
    try:
        blob = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError) as error:
        raise MalformedKey("The key's base64 is damaged.") from error
    _check(key_type, blob)
    digest = base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")
    return PublicKey(f"{key_type} {encoded}", f"SHA256:{digest}")


def _check(key_type: str, blob: bytes) -> None:
    fields = _fields(blob)
    if fields[:1] != [key_type.encode()]:
        raise MalformedKey("The key's bytes are of another type than it says.")
    READERS[key_type](key_type, fields[1:])


def _fields(blob: bytes) -> list[bytes]:
    """The length-prefixed strings that a key's bytes consist of (RFC 4253, 6.6)."""
    fields = []
    while blob:
        head, blob = blob[:LENGTH_BYTES], blob[LENGTH_BYTES:]
        length = int.from_bytes(head)
        if len(head) < LENGTH_BYTES or len(blob) < length:
            raise MalformedKey("The key is cut off.")
        fields.append(blob[:length])
        blob = blob[length:]
    return fields


def _check_ed25519(_: str, fields: list[bytes]) -> None:
    if [len(field) for field in fields] != [ED25519_BYTES]:
        raise MalformedKey("An Ed25519 key has 32 bytes.")


def _check_ecdsa(key_type: str, fields: list[bytes]) -> None:
    curve = key_type.removeprefix("ecdsa-sha2-")
    if len(fields) != 2 or fields[0] != curve.encode():  # noqa: PLR2004 - curve and point
        raise MalformedKey("The key's bytes are of another curve than it says.")
    if len(fields[1]) != POINT_BYTES[curve] or fields[1][0] != UNCOMPRESSED:
        raise MalformedKey("The key's point does not fit its curve.")


def _check_rsa(_: str, fields: list[bytes]) -> None:
    if len(fields) != 2:  # noqa: PLR2004 - exponent and modulus
        raise MalformedKey("An RSA key consists of an exponent and a modulus.")
    exponent, modulus = (int.from_bytes(field) for field in fields)
    if not RSA_BITS_MIN <= modulus.bit_length() <= RSA_BITS_MAX:
        raise MalformedKey(f"An RSA key must have at least {RSA_BITS_MIN} bits.")
    if exponent < 3 or exponent % 2 == 0 or modulus % 2 == 0:  # noqa: PLR2004 - the least there is
        raise MalformedKey("These numbers are no RSA key.")


READERS: Mapping[str, Callable[[str, list[bytes]], None]] = {
    "ssh-ed25519": _check_ed25519,
    "ecdsa-sha2-nistp256": _check_ecdsa,
    "ecdsa-sha2-nistp384": _check_ecdsa,
    "ecdsa-sha2-nistp521": _check_ecdsa,
    "ssh-rsa": _check_rsa,
}
