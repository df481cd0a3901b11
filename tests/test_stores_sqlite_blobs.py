"""How large values are stored in a SQLite journal."""

import hashlib
import random
import threading
import zlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from satay.errors import InvalidValueError
from satay.journal import Blob
from satay.stores.sqlite_blobs import WINDOW_BYTES, PackedBlob, compress, pack, unpack


def blob(text: str) -> Blob:
    return Blob(hashlib.sha256(text.encode()).hexdigest(), text)


@settings(deadline=None)
@given(st.binary(max_size=200), st.integers(0, 2_000))
def test_what_two_threads_compress_is_one_stream(part: bytes, times: int) -> None:
    content = part * times

    assert content == zlib.decompress(compress(content))


@pytest.mark.parametrize("size_bytes", [1, 2, WINDOW_BYTES, 2 * WINDOW_BYTES - 1, 2 * WINDOW_BYTES + 1, 300_001])
def test_a_stream_of_any_length_is_read_back(size_bytes: int) -> None:
    content = bytes(random.Random(size_bytes).choices(b"abcdefgh", k=size_bytes))

    assert content == zlib.decompress(compress(content))


def test_two_threads_compress_about_as_well_as_one() -> None:
    chance = random.Random(1)
    words = ["".join(chance.choices("etaoinshrdlu", k=7)) for _ in range(500)]
    content = " ".join(chance.choices(words, k=100_000)).encode()

    assert len(compress(content)) < 1.01 * len(zlib.compress(content, 1))


def test_without_a_second_thread_one_compresses_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)

    assert b"ab" * 200_000 == zlib.decompress(compress(b"ab" * 200_000))


def test_a_second_thread_that_has_no_memory_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    make = zlib.compressobj

    def refuse_other_threads(*args: Any, **kwargs: Any) -> Any:
        if threading.current_thread() is not threading.main_thread():
            raise MemoryError("Can't allocate memory for compression object")
        return make(*args, **kwargs)

    monkeypatch.setattr(zlib, "compressobj", refuse_other_threads)

    assert b"ab" * 200_000 == zlib.decompress(compress(b"ab" * 200_000))


@pytest.mark.parametrize("text", ["", "a", "words and words " * 40_000, "\u00e9\U0001f600" * 100_000])
def test_a_text_is_stored_and_read_back(text: str) -> None:
    assert text == unpack(pack(blob(text)))


def test_only_what_shrinks_is_compressed() -> None:
    noise = "".join(map(chr, random.Random(1).choices(range(33, 0x3000), k=100_000)))
    prose = "words and words " * 20_000

    stored, packed = pack(blob(noise)), pack(blob(prose))

    assert (False, noise.encode()) == (stored.is_compressed, stored.data)
    assert packed.is_compressed
    assert len(packed.data) < len(prose) / 10


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: data[:1000] + bytes([data[1000] ^ 1]) + data[1001:],
        lambda data: b"",
        lambda data: "text",
        lambda data: None,
    ],
)
def test_stored_bytes_that_were_changed_are_found_out(damage: object) -> None:
    packed = pack(blob("words and more words " * 20_000 + "".join(map(str, range(20_000)))))
    assert callable(damage)

    assert unpack(packed._replace(data=damage(packed.data))) is None
    assert unpack(packed._replace(is_compressed=False)) is None
    assert unpack(PackedBlob(bytes(32), packed.is_compressed, packed.data)) is None


def test_a_digest_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="not a SHA-256"):
        pack(Blob("xyz", "text"))
