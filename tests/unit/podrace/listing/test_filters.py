"""Filters and orders of lists: the grammar, and the same answer from SQL and from memory."""

import json
import sqlite3

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podrace.database.filtering import order_by, where
from podrace.errors import InvalidArgument
from podrace.listing.filters import Field, Kind, parse
from podrace.listing.selection import ListSelection, parse_order
from podrace.orchestrator.v1.orchestrator_pb2 import ListTournamentsRequest
from podrace.page_tokens import token_after

FIELDS = {
    "name": Field(Kind.TEXT, "name"),
    "score": Field(Kind.NUMBER, "score"),
    "end_time": Field(Kind.TIME, "end_time"),
    "state": Field(Kind.CHOICE, "state", {"RUNNING": 1, "FAILED": 2}),
    "labels": Field(Kind.LABELS, "(SELECT labels FROM labels WHERE labels.tournament_id = rows.tournament_id)"),
}
ROWS = [
    {"name": "ant-a", "score": 1.5, "end_time": None, "state": 1, "labels": {"team": "rl", "x.io/cost": ""}},
    {"name": "ant-b", "score": -2.0, "end_time": 1_000.0, "state": 2, "labels": {"team": "vision"}},
    {"name": 'quo"ted *', "score": None, "end_time": 2_000.0, "state": 2, "labels": {}},
]
FILTERS = [
    ("", [0, 1, 2]),
    ("state = RUNNING", [0]),
    ("state != RUNNING", [1, 2]),
    ("NOT state = FAILED AND score > 0", [0]),
    ("score >= -2 AND score < 1.5", [1]),
    ("score != 7", [0, 1, 2]),
    ("name = ant*", [0, 1]),
    ("name != ant*", [2]),
    (r'name = "quo\"ted*"', [2]),
    ("name = ant-b", [1]),
    ('end_time > "1970-01-01T00:16:40Z"', [2]),
    ('end_time <= "1970-01-01T01:16:40+01:00"', [1]),
    ("NOT end_time > 1970-01-01", [0]),
    ("labels.team = rl", [0]),
    ("labels.team != rl", [1, 2]),
    ("labels.team = v*", [1]),
    ("NOT labels:team", [2]),
    ("labels:x.io/cost", [0]),
    ("labels.x.io/cost = \"\"", [0]),
]  # fmt: skip


@pytest.fixture(scope="module")
def table():
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE rows (tournament_id INTEGER, name, score, end_time, state)")
    connection.execute("CREATE TABLE labels (tournament_id INTEGER, labels)")
    for number, row in enumerate(ROWS):
        values = (number, row["name"], row["score"], row["end_time"], row["state"])
        connection.execute("INSERT INTO rows VALUES (?, ?, ?, ?, ?)", values)
        if row["labels"]:
            connection.execute("INSERT INTO labels VALUES (?, ?)", (number, json.dumps(row["labels"])))
    return connection


@pytest.mark.parametrize(("text", "expected"), FILTERS)
def test_sql_and_memory_select_the_same_entries(table, text, expected):
    conditions = parse(text, FIELDS)
    expression, parameters = where(conditions)
    rows = table.execute(f"SELECT tournament_id FROM rows WHERE {expression} ORDER BY 1", parameters)
    assert [number for (number,) in rows] == expected
    request = ListTournamentsRequest(filter=text)
    kept = ListSelection.of(request, FIELDS, []).apply(range(len(ROWS)), lambda number, name: ROWS[number][name])
    assert kept == expected


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("score desc", [0, 1, 2]),
        ("score", [2, 1, 0]),
        ("state desc, end_time desc", [2, 1, 0]),
        ("end_time", [0, 1, 2]),
    ],
)
def test_sql_and_memory_have_the_same_order(table, order, expected):
    request = ListTournamentsRequest(order_by=order)
    selection = ListSelection.of(request, FIELDS, [])
    rows = table.execute(f"SELECT tournament_id FROM rows ORDER BY {order_by(selection.order)}")
    assert [number for (number,) in rows] == expected
    assert selection.apply(range(len(ROWS)), lambda number, name: ROWS[number][name]) == expected


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("stat = RUNNING", "filter: unknown field 'stat'"),
        ("state = WALKING", "unknown value 'WALKING'"),
        ("state < RUNNING", "state: has no operator '<'"),
        ("score = nan", "'nan' is not a finite number"),
        ("end_time > yesterday", "is not a time such as"),
        ("state = RUNNING score = 1", "connected by AND"),
        ("state = RUNNING AND", "connected by AND"),
        ("state", "expected FIELD OPERATOR VALUE"),
        ('name = "open', "cannot be read from character 7 on"),
        ('labels."a = b', "cannot be read"),
        ("labels.te$m = b", "is not the key of a label"),
        ("labels = a", "unknown field 'labels'"),
        (" AND ".join(["score = 1"] * 17), "at most 16"),
    ],
)
def test_what_is_no_filter_is_refused_with_the_field_of_the_request(text, problem):
    with pytest.raises(InvalidArgument, match="filter") as caught:
        parse(text, FIELDS)
    assert problem in str(caught.value)
    assert [one.field for one in caught.value.violations] == ["filter"]


@given(st.text(max_size=40))
def test_any_text_is_a_filter_or_refused(text):
    try:
        expression, parameters = where(parse(text, FIELDS))
    except InvalidArgument:
        return
    assert expression.count("?") == len(parameters)


@given(st.text(max_size=20))
def test_a_quoted_value_is_taken_literally_and_never_becomes_sql(value):
    quoted = value.replace("\\", "\\\\").replace('"', '\\"')
    (condition,) = parse(f'name = "{quoted}"', FIELDS)
    assert condition.value == value
    text, parameters = where([condition])
    assert text in ("coalesce(name = ?, false)", "coalesce(substr(name, 1, CAST(? AS INTEGER)) = ?, false)")
    assert parameters[-1] == value.removesuffix("*") if condition.prefix is not None else parameters == [value]


def test_orders_name_fields_and_directions():
    assert [(name, down) for name, _, down in parse_order("end_time desc, name", FIELDS)] == [
        ("end_time", True),
        ("name", False),
    ]
    for text, problem in (("name up", "asc, desc or nothing"), ("labels", "unknown field"), ("name,", "unknown field")):
        with pytest.raises(InvalidArgument, match=problem) as caught:
            parse_order(text, FIELDS)
        assert [one.field for one in caught.value.violations] == ["order_by"]


def test_a_page_token_belongs_to_its_filter_and_order():
    def selected(**given):
        return ListSelection.of(ListTournamentsRequest(**given), FIELDS, ["tournaments"])

    token = token_after(selected(filter="name = a", order_by="score").list_of, 3)
    assert selected(filter="name = a", order_by="score", page_token=token).position == 3
    for other in ({}, {"filter": "name = b", "order_by": "score"}, {"filter": "name = a"}):
        with pytest.raises(InvalidArgument, match="page_token"):
            selected(page_token=token, **other)
