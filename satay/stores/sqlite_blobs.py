"""How the text of a large value is stored: in UTF-8, compressed where that pays.

Compressing takes longer than all else that a large value costs, so two threads share it. What they make is one stream
of zlib, which `zlib.decompress` reads.
"""

import hashlib
import threading
import zlib
from contextlib import suppress
from typing import Final, NamedTuple

from satay.errors import InvalidValueError
from satay.journal import Blob

COMPRESSION_LEVEL: Final = 1
"""The cheapest level of zlib."""

SAMPLE_BYTES: Final = 16 * 1024
"""How much of a blob is compressed to see whether it shrinks."""

WORTHWHILE_RATIO: Final = 0.5
"""A blob whose sample does not shrink to this part of its size is stored as it is: compressing it takes too long."""

STREAM_HEAD: Final = zlib.compress(b"", COMPRESSION_LEVEL)[:2]
WINDOW_BYTES: Final = 1 << zlib.MAX_WBITS
"""How far back a stream refers."""


class PackedBlob(NamedTuple):
    """A blob as it is stored."""

    sha256: bytes
    is_compressed: bool
    data: bytes


def to_digest(sha256: str) -> bytes:
    """The bytes of a digest in hexadecimal."""
    try:
        return bytes.fromhex(sha256)
    except ValueError:
        raise InvalidValueError(f"{sha256!r} is not a SHA-256 in hexadecimal") from None


def pack(blob: Blob) -> PackedBlob:
    """Compress a blob for the store, unless a sample of it does not shrink."""
    digest = to_digest(blob.sha256)
    content = blob.text.encode()
    middle = len(content) // 2
    sample = content[middle : middle + SAMPLE_BYTES]
    if len(zlib.compress(sample, COMPRESSION_LEVEL)) > len(sample) * WORTHWHILE_RATIO:
        return PackedBlob(digest, False, content)
    return PackedBlob(digest, True, compress(content))


def unpack(packed: PackedBlob) -> str | None:
    """The text of a blob; None where the bytes that are stored are not those of its digest."""
    try:
        content = zlib.decompress(packed.data) if packed.is_compressed else bytes(packed.data)
    except (zlib.error, TypeError):  # A column takes any type: where bytes were changed to text, say.
        return None
    return content.decode() if hashlib.sha256(content).digest() == packed.sha256 else None


def compress(content: bytes) -> bytes:
    """A stream of zlib. The second half is compressed by a thread of its own, which knows how the first half ends."""
    middle = len(content) // 2
    view = memoryview(content)
    made: list[bytes] = []

    def compress_second_half() -> None:
        window = content[max(0, middle - WINDOW_BYTES) : middle]
        with suppress(MemoryError):
            made.append(_deflate(view[middle:], window, zlib.Z_FINISH))

    helper = threading.Thread(target=compress_second_half, name="satay-compress", daemon=True)
    try:
        helper.start()
    except RuntimeError:  # The interpreter ends, or the system has no thread left.
        return zlib.compress(content, COMPRESSION_LEVEL)
    first_half = _deflate(view[:middle], b"", zlib.Z_SYNC_FLUSH)
    helper.join()
    if not made:  # An error does not leave its thread; half a stream would pass for all of it.
        return zlib.compress(content, COMPRESSION_LEVEL)
    return b"".join((STREAM_HEAD, first_half, *made, zlib.adler32(content).to_bytes(4, "big")))


def _deflate(part: memoryview, window: bytes, flush: int) -> bytes:
    """A part of a stream, without its head and its checksum. `window` is what stands before it."""
    deflating = zlib.compressobj(COMPRESSION_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS, zdict=window)
    return deflating.compress(part) + deflating.flush(flush)
