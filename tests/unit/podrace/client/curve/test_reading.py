import pytest

from podrace.client.curve.reading import CurveSettings
from podrace.errors import InvalidArgument


@pytest.mark.parametrize("wrong", [{"of": "agent"}, {"episodes": 0}, {"seed": -1}])
def test_settings_that_no_curve_has_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidArgument, match="curve: "):
        CurveSettings(**wrong)  # type: ignore[arg-type]
