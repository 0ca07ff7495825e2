"""Reads the text below each attribute of a dataclass."""

import ast
import dataclasses
import inspect
import itertools
from textwrap import dedent


def attribute_texts(kind: type) -> dict[str, str]:
    """Returns the text below each attribute of a dataclass and of its bases, by name."""
    texts: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if dataclasses.is_dataclass(base):
            tree = ast.parse(dedent(inspect.getsource(base))).body[0]
            body = tree.body if isinstance(tree, ast.ClassDef) else []
            for entry, following in itertools.pairwise(body):
                if isinstance(entry, ast.AnnAssign) and isinstance(following, ast.Expr):
                    texts[ast.unparse(entry.target)] = ast.literal_eval(following.value)
    return texts
