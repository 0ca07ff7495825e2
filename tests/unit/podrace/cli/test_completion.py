"""Scripts that complete command lines in a shell."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_calls_the_command_and_the_shell_accepts_it(type_: Any, shell: str) -> None:
    answer = type_("completion", shell)
    assert answer.code == 0
    assert f"_PODRACE_COMPLETE={shell}_complete" in answer.out
    assert type_("completion", shell, "--json").json["script"] == answer.out.removesuffix("\n")
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=answer.out, text=True, check=True)


@pytest.mark.long
def test_bash_completes_with_the_script(tmp_path: Path) -> None:
    (tmp_path / "podrace").write_text(f'#!/bin/sh\nexec {sys.executable} -m podrace.cli "$@"\n')
    (tmp_path / "podrace").chmod(0o755)
    script = 'eval "$(podrace completion bash)"; COMP_WORDS=(podrace st) COMP_CWORD=1; _podrace_completion podrace;'
    ran = subprocess.run(
        ["bash", "-c", f'{script} echo "${{COMPREPLY[@]}}"'],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.split() == ["standings", "stop", "store", "strategies"]


def test_an_unknown_shell_is_a_wrong_request(type_: Any) -> None:
    assert type_("completion", "tcsh").code == 2
