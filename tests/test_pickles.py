import threading

import pytest

from satay.declarations import value_codec
from satay.errors import DecodeError, EncodeError
from satay.pickles import PickleCodec
from satay.texts import to_plain
from tests.samples import UNTYPED, WHERE, Html, Item, assert_same


def test_a_pickle_is_marked_and_read_only_where_it_is_allowed() -> None:
    text = PickleCodec().encode({1: Html("x")}, WHERE)

    assert "pickle" == to_plain(text)["$satay"]
    assert_same({1: Html("x")}, PickleCodec(allow_pickle=True).decode(text, WHERE))
    for codec in (UNTYPED, value_codec(int), value_codec(Item), PickleCodec()):
        with pytest.raises(DecodeError):
            codec.decode(text, WHERE)


def test_a_pickle_made_a_moment_ago_needs_no_permission_and_a_recorded_one_does() -> None:
    codec = PickleCodec()
    text, copy = codec.encode_and_decode([Html("x")], WHERE)

    assert_same([Html("x")], copy)
    assert_same([Html("x")], codec.decode(text, WHERE, allow_pickle=True))
    with pytest.raises(DecodeError, match="SATAY_ALLOW_PICKLE"):
        codec.decode(text, WHERE)


def test_an_unpicklable_value_is_an_encode_error() -> None:
    with pytest.raises(EncodeError, match="cannot be pickled"):
        PickleCodec().encode(threading.Lock(), WHERE)


def test_a_damaged_pickle_is_a_decode_error() -> None:
    with pytest.raises(DecodeError, match="cannot be unpickled"):
        PickleCodec(allow_pickle=True).decode('{"$satay":"pickle","data":"AAAA"}', WHERE)
