from pathlib import Path
from typing import Any


def test_a_folder_in_place_of_the_key_is_reported_in_one_line(type_: Any, tmp_path: Path) -> None:
    (tmp_path / "keys").mkdir(mode=0o700)
    answer = type_("token", "me", "--key", "keys")
    assert (answer.code, answer.err) == (1, "error: keys: cannot be read: Is a directory\n")
