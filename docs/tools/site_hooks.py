"""Builds the pages of the site whose sources lie outside `docs/`, and checks every link into the repository.

Markdown files link to each other and to source files by relative paths, as a repository browser follows them. On the
site, a link to another page is rewritten to that page, and a link to a source file becomes its name as plain code,
because the site does not contain the sources. A link to a file that does not exist is a warning, which `mkdocs build
--strict` turns into a failure.
"""

import logging
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

log = logging.getLogger("mkdocs.plugins.site_hooks")

REPOSITORY = Path(__file__).parents[2]
PAGES = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security-policy.md",
}
"""Page of the site by the path of its source in the repository, for sources outside `docs/`."""

_LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?P<path>[^)#:\s]+)(?P<anchor>#[^)\s]*)?\)")
_LOADED = re.compile(r"""<(?:script|link|img)\b[^>]*?(?:src|href)=["']?(https?:[^"'> ]+)""")
_FENCE = re.compile(r"^( *)(```+).*?^\1\2`*[ \t]*$", re.DOTALL | re.MULTILINE)


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages whose sources lie outside `docs/`."""
    for source, page in PAGES.items():
        if (REPOSITORY / source).exists():
            files.append(File.generated(config, page, abs_src_path=str(REPOSITORY / source)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrites the links of one page."""
    sources = {target: source for source, target in PAGES.items()}
    source = sources.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    return rewrite(markdown, source=source, page=page.file.src_uri)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Warns of what a page would load from another host: the site is read offline too."""
    for address in _LOADED.findall(output):
        log.warning("%s loads %s", page.file.src_uri, address)
    return output


def rewrite(markdown: str, *, source: str, page: str) -> str:
    """Returns the text with links for the site; fenced blocks are left alone.

    Args:
        markdown: The text of a page.
        source: Path of its file in the repository.
        page: Path of its page in the site.
    """
    pieces, start = [], 0
    for fence in _FENCE.finditer(markdown):
        pieces += [_rewrite_text(markdown[start : fence.start()], source, page), fence.group()]
        start = fence.end()
    return "".join([*pieces, _rewrite_text(markdown[start:], source, page)])


def _rewrite_text(text: str, source: str, page: str) -> str:
    return _LINK.sub(lambda link: _rewrite_link(link, source, page), text)


def _rewrite_link(link: re.Match[str], source: str, page: str) -> str:
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), link["path"]))
    target = PAGES.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else None)
    if target is not None:
        relative = posixpath.relpath(target, posixpath.dirname(page) or ".")
        return f"{link['image']}[{link['text']}]({relative}{link['anchor'] or ''})"
    if not (REPOSITORY / path).exists():
        log.warning("%s links to %s, which does not exist", source, path)
    text = link["text"]
    return text if "`" in text else f"{text} (`{path}`)"
