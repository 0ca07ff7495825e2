"""Tests configurations: later sources override earlier ones, and mistakes are reported on one line."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from podrace import config as configurations
from podrace.config import MASK, config_from_arguments, describe, split_override, unknown
from podrace.errors import InvalidArgument


@dataclass(frozen=True)
class Inner:
    listen: str = "127.0.0.1:0"
    retries: int = 3


@dataclass(frozen=True)
class Config:
    folder: Path = Path("home")
    seconds: float = 1.0
    verbose: bool = False
    names: tuple[str, ...] = ()
    numbers: tuple[int, ...] = ()
    password: str = field(default="", metadata={"secret": True})
    inner: Inner = field(default_factory=Inner)


@dataclass(frozen=True)
class Required:
    host: str
    port: int
    inner: Inner = field(default_factory=Inner)
    retries: int = 3


@dataclass(frozen=True)
class Outer:
    required: Required


def build(*arguments: str, environ: dict[str, str] | None = None) -> Config:
    return config_from_arguments(Config, arguments, program="test-service", environ=environ or {})


def test_defaults_are_used_without_arguments():
    assert build() == Config()


def test_later_sources_override_earlier_ones(tmp_path):
    file = tmp_path / "c.toml"
    file.write_text('seconds = 2\nverbose = true\n[inner]\nlisten = "a:1"\nretries = 7\n')
    environ = {"PODRACE_TEST_SERVICE__INNER__LISTEN": "b:2", "PODRACE_TEST_SERVICE__SECONDS": "4.5", "OTHER": "x"}
    config = build("--config", str(file), "--set", "inner.listen=c:3", environ=environ)
    assert config.inner == Inner("c:3", 7)
    assert config.seconds == 4.5
    assert config.verbose is True


def test_a_variable_is_read_only_by_the_program_that_it_names():
    environ = {"PODRACE_TEST_SERVICE__SECONDS": "2", "PODRACE_TEST__SECONDS": "3", "PODRACE_TEST_SERVICE_SECONDS": "4"}
    assert config_from_arguments(Config, [], program="test-service", environ=environ).seconds == 2.0
    assert config_from_arguments(Config, [], program="test", environ=environ).seconds == 3.0


def test_a_mistake_in_a_variable_is_reported():
    with pytest.raises(InvalidArgument, match=r"inner\.liste: unknown key 'liste'; did you mean 'listen'"):
        build(environ={"PODRACE_TEST_SERVICE__INNER__LISTE": "b:2"})


def test_a_scalar_is_accepted_as_a_tuple_of_one():
    assert build("--set", "numbers=3", "--set", "names=a") == Config(numbers=(3,), names=("a",))


@pytest.mark.parametrize(
    ("kind", "arguments", "line"),
    [
        (Required, [], "defaults: missing keys 'host', 'port'"),
        (Required, ["--set", "host=a"], "defaults: missing key 'port'"),
        (Outer, ["--set", "required.port=1"], "defaults: missing key 'required.host'"),
    ],
)
def test_missing_keys_without_a_default_are_named(kind, arguments, line):
    with pytest.raises(InvalidArgument) as caught:
        config_from_arguments(kind, arguments, program="test", environ={})
    assert caught.value.message == line


def test_values_are_converted_to_the_type_of_their_field():
    config = build("--set", "folder=x/y", "--set", "names=a,b", "--set", "numbers=[1,2]", "--set", "verbose=true")
    assert config.folder == Path("x/y")
    assert config.names == ("a", "b")
    assert config.numbers == (1, 2)
    assert build("--set", "seconds=3").seconds == 3.0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--set", "secons=1"], "did you mean 'seconds'"),
        (["--set", "inner.zzz=1"], "inner.zzz: unknown key 'zzz'; known: listen, retries"),
        (["--set", "seconds=soon"], "seconds = 'soon': expected float"),
        (["--set", "inner.retries=1.5"], "inner.retries = 1.5: expected int"),
        (["--set", "verbose=maybe"], "verbose = 'maybe': expected bool"),
        (["--set", "inner=3"], "inner = 3"),
        (["--set", "inner.retries=inf"], "inner.retries = inf: expected int"),
        (["--set", "numbers=true"], "numbers = True: expected int"),
        (["--set", "numbers={a=1}"], "numbers = {'a': 1}: expected int"),
        (["--set", "seconds.a=3", "--set", "seconds=3"], "seconds"),
        (["--set", "novalue"], "expected KEY=VALUE"),
        (["--config", "/nonexistent.toml"], "/nonexistent.toml: cannot be read"),
    ],
)
def test_a_mistake_names_the_key_and_the_expected_value(arguments, words):
    with pytest.raises(InvalidArgument) as caught:
        build(*arguments) if "seconds.a=3" not in arguments else build("--set", "seconds=3", "--set", "seconds.a=3")
    assert words in caught.value.message
    assert "\n" not in caught.value.message


def test_a_broken_file_names_the_line(tmp_path):
    file = tmp_path / "c.toml"
    file.write_text("seconds = = 2")
    with pytest.raises(InvalidArgument, match=r"c\.toml: not valid TOML: .*line 1"):
        build("--config", str(file))


def test_secrets_are_masked():
    lines = describe(Config(password="open sesame"))
    assert f"password = {MASK!r}" in lines
    assert not any("sesame" in line for line in lines)
    assert "inner.retries = 3" in lines


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:se/c@ret@host/name", f"postgresql://me:{MASK}@host/name"),
        ("postgresql://h/name?password=secret&sslmode=require", f"postgresql://h/name?password={MASK}&sslmode=require"),
        ("postgresql://me@host:5432/name", "postgresql://me@host:5432/name"),
        ("s3://bucket/prefix", "s3://bucket/prefix"),
    ],
)
def test_a_password_in_a_url_is_masked(url: str, shown: str) -> None:
    assert f"inner.listen = {shown!r}" in describe(Config(inner=Inner(url)))


def test_printing_the_configuration_exits_with_0(capsys):
    with pytest.raises(SystemExit) as caught:
        build("--print-config", "--set", "seconds=9")
    assert caught.value.code == 0
    assert "seconds = 9.0" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "value"), [("a=1", 1), ("a=[1, 2]", [1, 2]), ("a=unix:/x", "unix:/x"), ("a=x=y", "x=y"), ("a=", "")]
)
def test_an_override_is_toml_if_valid_and_otherwise_a_string(text, value):
    assert split_override(text) == ("a", value)


def test_an_unknown_name_without_a_similar_one_lists_all():
    assert unknown("here", "key", "zzzzzz", ["one", "two"]) == "here: unknown key 'zzzzzz'; known: one, two"


@pytest.mark.parametrize(("text", "expected"), [("", ()), (" ", ()), ("3", (3,)), ("3,5", (3, 5))])
def test_a_list_in_the_environment_is_separated_by_commas_and_may_be_empty(
    text: str, expected: tuple[int, ...]
) -> None:
    environ = {"PODRACE_TEST__NUMBERS": text}
    assert config_from_arguments(Config, [], program="test", environ=environ).numbers == expected


@dataclass(frozen=True)
class Listening:
    server: "Served" = field(default_factory=lambda: Served())


@dataclass(frozen=True)
class Served:
    insecure: bool = False


@dataclass(frozen=True)
class Placed:
    inner: Inner = field(default_factory=lambda: Inner("0.0.0.0:7"))


@dataclass(frozen=True)
class Nested:
    placed: Placed = field(default_factory=lambda: Placed(Inner("0.0.0.0:8")))


def test_a_key_that_is_set_leaves_the_other_defaults_of_its_group() -> None:
    placed = configurations.build(Placed, {"inner": {"retries": 1}}, source="test")
    assert placed.inner == Inner("0.0.0.0:7", 1)
    nested = configurations.build(Nested, {"placed": {"inner": {"retries": 1}}}, source="test")
    assert nested.placed.inner == Inner("0.0.0.0:8", 1)
    assert configurations.build(Placed, {"inner": {"listen": "x"}}, source="test").inner == Inner("x")


def test_the_option_insecure_is_short_for_the_key() -> None:
    assert config_from_arguments(Listening, ["--insecure"], program="p", environ={}).server.insecure
    assert not config_from_arguments(Listening, [], program="p", environ={}).server.insecure


@pytest.mark.parametrize("value", ["9" * 5000, "[" * 3000 + "]" * 3000], ids=["digits", "depth"])
def test_a_value_that_python_cannot_read_is_refused_in_one_line(tmp_path: Path, value: str) -> None:
    path = tmp_path / "huge.toml"
    path.write_text(f"key = {value}")
    with pytest.raises(InvalidArgument, match="thousands of digits, or lists are nested"):
        configurations.read_toml(path)
    assert configurations.split_override(f"key={value}") == ("key", value)
