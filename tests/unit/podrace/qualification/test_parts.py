import pytest

from podrace.errors import InvalidArgument
from podrace.qualification.parts import PARTS, chosen_parts, limit_of


def test_parts_run_in_their_order_whatever_the_order_of_the_names() -> None:
    assert chosen_parts(["planes", "machine"]) == ["machine", "planes"]
    assert chosen_parts([]) == list(PARTS)


def test_an_unknown_part_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(InvalidArgument, match="unknown part 'plane'; did you mean 'planes'"):
        chosen_parts(["plane"])


@pytest.mark.parametrize("name", PARTS)
def test_a_quick_part_has_no_longer_limit(name: str) -> None:
    assert 0 < limit_of(name, quick=True) <= limit_of(name, quick=False)
