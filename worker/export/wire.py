"""The pieces of protobuf's wire format in which one span differs from the next.

A message may be written in pieces, in any order: whoever parses them merges them. So what many spans share is encoded
once, by protobuf itself, and what is a span's own is put behind it here, for a fraction of what message objects cost.
"""

import struct
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

__all__ = ["Attribute", "delimited", "delimited_prefix", "fixed64_prefix", "nanoseconds", "repeated"]

_VARINT: Final = 0
_FIXED64: Final = 1
_DELIMITED: Final = 2
_INT64_MIN: Final = -(2**63)
_UNSIGNED: Final = 2**64 - 1
_NS: Final = 1_000_000_000
_pack_double: Final = struct.Struct("<d").pack
_pack_fixed64: Final = struct.Struct("<Q").pack


@lru_cache(maxsize=8192)
def _varint(number: int) -> bytes:
    """Encode a number that is not negative, seven bits a byte."""
    encoded = bytearray()
    while number > 0x7F:  # noqa: PLR2004 - the seven bits
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def _tag(field: int, kind: int) -> bytes:
    return _varint(field << 3 | kind)


def delimited_prefix(field: int, size: int) -> bytes:
    """Write what stands before a field of ``size`` bytes."""
    return _tag(field, _DELIMITED) + _varint(size)


def fixed64_prefix(field: int) -> bytes:
    """Write what stands before a field of eight bytes."""
    return _tag(field, _FIXED64)


def delimited(field: int, payload: bytes) -> bytes:
    """Write a text or a message as a field."""
    return delimited_prefix(field, len(payload)) + payload


def repeated(field: int, payloads: Iterable[bytes]) -> bytes:
    """Write a field once for each payload."""
    tag = _tag(field, _DELIMITED)
    return b"".join([part for payload in payloads for part in (tag, _varint(len(payload)), payload)])


def nanoseconds(seconds: float) -> bytes:
    """Write a time in eight bytes.

    Raises:
        OverflowError: The time is infinite.
        ValueError: The time is no number.
        struct.error: The time is negative, or beyond what eight bytes hold.
    """
    return _pack_fixed64(int(seconds * _NS))


class Attribute:
    """One attribute's key, in the messages of one kind; its methods write it with a value."""

    def __init__(self, field: int, key: str) -> None:
        """Take the number of the message's field of attributes."""
        self._tag = _tag(field, _DELIMITED)
        self._key = delimited(KeyValue.KEY_FIELD_NUMBER, key.encode()) + _tag(KeyValue.VALUE_FIELD_NUMBER, _DELIMITED)
        self._double = self._pair(_tag(AnyValue.DOUBLE_VALUE_FIELD_NUMBER, _FIXED64) + bytes(8))[:-8]

    def text(self, value: str) -> bytes:
        """Write a text."""
        raw = value.encode()
        return self._pair(_TEXT + _varint(len(raw)) + raw)

    def double(self, value: float) -> bytes:
        """Write a number with a fraction."""
        return self._double + _pack_double(value)

    def integer(self, value: int) -> bytes:
        """Write a whole number.

        Raises:
            OverflowError: It does not fit into 64 bits.
        """
        if not _INT64_MIN <= value < -_INT64_MIN:
            raise OverflowError("a whole number of an attribute has 64 bits")
        return self._pair(_INTEGER + _varint(value & _UNSIGNED))

    def _pair(self, value: bytes) -> bytes:
        pair = self._key + _varint(len(value)) + value
        return self._tag + _varint(len(pair)) + pair


_TEXT: Final = _tag(AnyValue.STRING_VALUE_FIELD_NUMBER, _DELIMITED)
_INTEGER: Final = _tag(AnyValue.INT_VALUE_FIELD_NUMBER, _VARINT)
