"""Labels follow the rules of Kubernetes."""

import pytest

from podrace.errors import InvalidArgument
from podrace.listing.labels import check_labels


@pytest.mark.parametrize(
    "labels",
    [
        {},
        {"team": "rl"},
        {"a": ""},
        {"example.com/cost-center": "A_1.b"},
        {"a" * 63: "b" * 63},
        {f"{'a' * 192}/b": "c"},
    ],
)
def test_labels_of_kubernetes_are_accepted(labels):
    check_labels(labels)


@pytest.mark.parametrize(
    ("labels", "field"),
    [
        ({"": "a"}, "labels"),
        ({"-a": "b"}, "labels"),
        ({"a" * 64: "b"}, "labels"),
        ({"Example.com/a": "b"}, "labels"),
        ({"a/b/c": "d"}, "labels"),
        ({f"{'a' * 193}/b": "c"}, "labels"),
        ({'a"]': "b"}, "labels"),
        ({"a": "b" * 64}, "labels.a"),
        ({"a": "b c"}, "labels.a"),
        ({"a": "b\n"}, "labels.a"),
        ({f"a{number}": "b" for number in range(65)}, "labels"),
    ],
)
def test_others_are_refused_by_name(labels, field):
    with pytest.raises(InvalidArgument) as caught:
        check_labels(labels)
    assert [one.field for one in caught.value.violations] == [field]
