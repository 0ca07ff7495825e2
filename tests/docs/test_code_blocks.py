"""Every code block of a document is checked, or says why it is not."""

import re
from pathlib import PurePath
from typing import Any

import pytest
from block_checks import CHECKS
from doc_blocks import Block, all_blocks

import simulators
from agentpod.roles.repeatability import find_difference

BLOCKS = all_blocks()
ACTIONS = ("", "run", "file", "skip")


def test_there_are_documents_with_blocks():
    assert {"README.md", "CONTRIBUTING.md"} <= {block.path for block in BLOCKS}


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_a_block_is_checked_or_says_why_not(block: Block):
    assert block.action in ACTIONS, f"{block}: unknown mark {block.action!r}; expected one of {ACTIONS[1:]}"
    if block.action == "skip":
        assert block.argument, f"{block}: a skipped block gives its reason: <!-- docs-test: skip REASON -->"
        return
    assert block.language in CHECKS, (
        f"{block}: nothing checks {block.language or 'a block without a language'!r};"
        " mark it with <!-- docs-test: skip REASON -->, or as text if it is no code"
    )
    if block.action == "run":
        assert block.language in ("sh", "bash", "python"), f"{block}: only shell and Python blocks can be run"
    if block.action == "run" and block.language != "python":
        return
    problem = CHECKS[block.language](without_written_modules(block))
    assert problem is None, f"{block}: {problem}"


def without_written_modules(block: Block) -> str:
    """Returns the text of the block without imports of modules that a `file` block of its page writes."""
    text = block.text
    for written in BLOCKS:
        if written.path == block.path and written.action == "file" and written.argument.endswith(".py"):
            module = re.escape(PurePath(written.argument).stem)
            text = re.sub(rf"^(?:from {module} import .*|import {module})$", "pass", text, flags=re.MULTILINE)
    return text


def test_the_wrapper_of_the_page_about_extensions_repeats_its_steps_with_the_seed():
    (source,) = (block.text for block in BLOCKS if block.argument == "driving.py")
    module: dict[str, Any] = {}
    exec(compile(source, "driving.py", "exec"), module)
    simulator = simulators.make("cartpole", 4)
    assert find_difference(module["Noisy"](simulator, 0.02), 1) == ""
