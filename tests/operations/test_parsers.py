"""Bodies that are JSON, and bodies that only look like it."""

import time
from decimal import Decimal
from io import BytesIO

import pytest
from rest_framework.exceptions import ParseError

from operations.parsers import BodyTooLarge, StrictJSONParser


def parse(body):
    return StrictJSONParser().parse(BytesIO(body))


class TestParse:
    def test_reads_json(self):
        body = '{"a": [1, "é", null, true, {"b": {}}]}'.encode()

        assert parse(body) == {"a": [1, "é", None, True, {"b": {}}]}

    def test_keeps_every_digit_of_a_fraction(self):
        assert str(parse(b"[0.10]")[0]) == "0.10"
        assert parse(b"[1e400]") == [Decimal("1e400")]

    def test_keeps_every_digit_of_an_integer(self):
        assert parse(b"[9007199254740993]") == [9007199254740993]

    def test_reads_a_whole_surrogate_pair(self):
        assert parse(rb'["\ud83d\ude00"]') == ["😀"]

    @pytest.mark.parametrize(
        "body",
        [
            pytest.param(b"", id="nothing"),
            pytest.param(b"{", id="half of it"),
            pytest.param(b"{} {}", id="two of it"),
            pytest.param(b"{'a': 1}", id="python"),
            pytest.param(b'{"a": 1,}', id="a comma too many"),
            pytest.param(b'{"a": 1, "a": 1}', id="a member twice"),
            pytest.param(b'[{"b": {"a": 1, "a": 2}}]', id="a member twice, deep inside"),
            pytest.param(rb'{"a": 1, "\u0061": 2}', id="a member twice, once escaped"),
            pytest.param(b'{"a": NaN}', id="NaN"),
            pytest.param(b'{"a": Infinity}', id="Infinity"),
            pytest.param(b'{"a": -Infinity}', id="minus Infinity"),
            pytest.param(rb'{"a": "\u0000"}', id="NUL"),
            pytest.param(rb'{"\u0000": 1}', id="NUL in a name"),
            pytest.param(rb'{"a": ["\ud800"]}', id="half a surrogate pair"),
            pytest.param(rb'{"\udfff": 1}', id="half a surrogate pair in a name"),
            pytest.param(b'{"a": "\xff"}', id="not UTF-8"),
            pytest.param(b"\xef\xbb\xbf{}", id="a byte order mark"),
            pytest.param('{"a": 1}'.encode("utf-16"), id="UTF-16"),
            pytest.param(b'{"a": "\n"}', id="a bare line break"),
            pytest.param(b"[" * 30_000 + b"]" * 30_000, id="deeper than anyone needs"),
            pytest.param(b"[" * 30_000, id="deeper, and never closed"),
            pytest.param(b'{"a":' * 33 + b"1" + b"}" * 33, id="a level too deep"),
            pytest.param(b"[" + b"9" * 41 + b"]", id="an integer of 41 digits"),
            pytest.param(b"[0." + b"9" * 39 + b"]", id="a fraction of 41 characters"),
            pytest.param(b"[" + b"1," * 4_999 + b"1]", id="a value too many"),
            pytest.param(b'{"a": 1 /* one */}', id="a comment"),
            pytest.param(b"[01]", id="a leading zero"),
        ],
    )
    def test_refuses(self, body):
        with pytest.raises(ParseError, match="the body is not valid JSON"):
            parse(body)

    @pytest.mark.parametrize(
        "body",
        [
            pytest.param(b"[" * 32 + b"]" * 32, id="as deep as may be"),
            pytest.param(b"[" + b"[]," * 100 + b"[]]", id="wide and not deep"),
            pytest.param(rb'["' + rb"[\"" * 100 + rb'"]', id="brackets in a string"),
            pytest.param(b"[" + b"9" * 40 + b"]", id="an integer of 40 digits"),
            pytest.param(b"[" + b"1," * 4_998 + b"1]", id="as many values as may be"),
        ],
    )
    def test_reads_up_to_its_limits(self, body):
        assert parse(body)

    def test_needs_no_time_for_nonsense(self):
        """Not more than what the linear scan of 64 KiB costs."""
        began = time.process_time()
        for body in (
            b'"' * 65_536,
            b'["' + b"\\" * 32_000,
            b"[{" * 32_000,
            b'[""' * 16_000,
            b"[" * 40 + b'"' + b'\\"' * 32_000,
        ):
            with pytest.raises(ParseError):
                parse(body)

        assert time.process_time() - began < 0.5

    def test_reads_as_many_bytes_as_the_limit(self, settings):
        body = b'"' + b"x" * (settings.DATA_UPLOAD_MAX_MEMORY_SIZE - 2) + b'"'

        assert len(parse(body)) == settings.DATA_UPLOAD_MAX_MEMORY_SIZE - 2

    def test_refuses_one_byte_more(self, settings):
        body = b'"' + b"x" * (settings.DATA_UPLOAD_MAX_MEMORY_SIZE - 1) + b'"'

        with pytest.raises(BodyTooLarge):
            parse(body)
