"""Every code block of a document is checked, or says why it is not."""

import pytest
from block_checks import CHECKS
from doc_blocks import Block, all_blocks

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
    problem = CHECKS[block.language](block.text)
    assert problem is None, f"{block}: {problem}"
