import json
import pathlib
import sys
from collections import defaultdict

import pytest

from satay.declarations import value_codec
from satay.errors import DecodeError
from satay.model import MISSING
from tests.samples import CALLS, UNTYPED, WHERE, Box, Item, Node, Prepared, assert_same, survives


@pytest.mark.parametrize(
    "name", ["subprocess.Popen", "subprocess:Popen", "os:system", "builtins:eval", "io:StringIO", ""]
)
@pytest.mark.parametrize("kind", ["dataclass", "model", "enum", "flag", "namedtuple"])
def test_a_tag_that_names_anything_but_a_data_class_is_inert(name: str, kind: str, tmp_path: pathlib.Path) -> None:
    witness = tmp_path / "x"
    fields = {"args": f"touch {witness}", "shell": True}
    text = json.dumps({"$satay": kind, "type": name, "fields": fields, "name": "x", "value": 1, "set": []})

    with pytest.raises(DecodeError, match="the result of task 'fetch' cannot be read"):
        UNTYPED.decode(text, WHERE)
    with pytest.raises(DecodeError):
        value_codec(Item).decode(text, WHERE)
    assert not witness.exists()


def test_a_tag_never_imports_a_module() -> None:
    assert "this" not in sys.modules
    with pytest.raises(DecodeError, match="no imported module"):
        UNTYPED.decode('{"$satay":"dataclass","type":"this:Zen","fields":{}}', WHERE)

    assert "this" not in sys.modules


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "NaN",
        "[Infinity]",
        '{"$satay":"pickle","data":"gASVAAAA"}',
        '{"$satay":"unheard of"}',
        '{"$satay":["list"]}',
        '{"$satay":"bytes","base64":"!"}',
        '{"$satay":"set","items":[[1]]}',
        '{"$satay":"datetime","value":"yesterday"}',
        '{"$satay":"time","value":"1","zone":"../../etc/passwd"}',
        '{"$satay":"Decimal","value":"x"}',
        '{"$satay":"deque","items":1,"maxlen":-1}',
        '{"$satay":"int","hex":[]}',
        '{"$satay":"value","set":[]}',
        '{"$satay":"defaultdict","factory":"eval","items":[]}',
        '{"$satay":"enum","type":"tests.samples:Color","name":"GREEN"}',
        '{"$satay":"model","type":"tests.samples:Item","fields":{"x":1},"set":[]}',
        '{"$satay":"namedtuple","type":"tests.samples:Pair","fields":{"up":1}}',
        '{"$satay":"dataclass","type":"tests.samples:Node","fields":{}}',
    ],
)
def test_damaged_text_is_a_decode_error(text: str) -> None:
    with pytest.raises(DecodeError):
        UNTYPED.decode(text, WHERE)


def test_a_field_that_was_added_since_takes_its_default() -> None:
    node = UNTYPED.decode('{"$satay":"dataclass","type":"tests.samples:Node","fields":{"value":1}}', WHERE)
    item = UNTYPED.decode('{"$satay":"model","type":"tests.samples:Item","fields":{"name":"x"},"set":["name"]}', WHERE)

    assert Node(1) == node
    assert Item(name="x") == item


def test_a_generic_model_reads_back_without_an_annotation() -> None:
    value = Box[int](content=1)

    assert_same(value, survives(MISSING, value))
    with pytest.raises(DecodeError, match="no imported module defines"):
        UNTYPED.decode('{"$satay":"model","type":"tests.samples:Box[Nothing]","fields":{},"set":[]}', WHERE)


def test_a_type_of_a_script_that_is_not_run_says_where_it_was() -> None:
    with pytest.raises(DecodeError, match="'__main__:Brief'; '__main__' was the script that was run: run that one"):
        UNTYPED.decode('{"$satay":"dataclass","type":"__main__:Brief","fields":{}}', WHERE)


def test_a_dataclass_is_filled_without_running_its_code() -> None:
    value = Prepared(1, step=2)
    CALLS.clear()
    copy = UNTYPED.encode_and_decode(value, WHERE)[1]

    assert value == copy
    assert "kept" == copy.extra
    assert [] == CALLS


def test_a_defaultdict_still_makes_values() -> None:
    copy = survives(MISSING, defaultdict(list, {"a": [1]}))
    copy["new"].append(1)

    assert {"a": [1], "new": [1]} == copy
