"""mkdocs hook: pages that live outside docs/, and links to files of the repository.

README.md becomes the home page, CONTRIBUTING.md and others become pages of the site. Links are
written for the repository (docs/hosts.md in README.md, ../src/x.cc in docs/): a link to a page is
redirected to where the site has it, a link to another file of the repository keeps its text only.
A link to a file that does not exist is a warning, which strict mode turns into an error.
"""

import logging
import os
import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "tests/README.md": "tests.md",
}
GENERATED_PAGES = {"include/tccl/tccl.h": "api/cpp.md"}
LINK = re.compile(r"(?<!!)\[(?P<text>(?:[^\[\]]|\[[^\]]*\])+)\]\((?P<target>[^)\s]+)\)")
PICTURE = re.compile(r"<picture>.*?</picture>", re.DOTALL)
SOURCE = re.compile(r'(?:srcset|src)="(?P<path>[^"]+)-(?P<theme>light|dark)\.svg"')
ALTERNATIVE_TEXT = re.compile(r'alt="(?P<text>[^"]*)"')
FENCE = re.compile(r"(^```.*?^```)", re.DOTALL | re.MULTILINE)

log = logging.getLogger(f"mkdocs.hooks.{__name__}")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for source, page in PAGES.items():
        if (ROOT / source).exists():
            files.append(File.generated(config, page, content=(ROOT / source).read_text()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    uri = page.file.src_uri
    if uri == "index.md":
        page.meta["hide"] = ["navigation"]  # the home page has no pages beside it
    original = next((source for source, name in PAGES.items() if name == uri), f"docs/{uri}")
    markdown = PICTURE.sub(lambda picture: _themed_image(picture[0]), markdown)
    parts = FENCE.split(markdown)  # code blocks are at odd positions and stay as they are
    return "".join(
        part if position % 2 else LINK.sub(lambda link: _redirected(link, original, uri), part)
        for position, part in enumerate(parts)
    )


def _themed_image(picture: str) -> str:
    """One image for each colour scheme of the site, which need not be that of the browser."""
    alternative = ALTERNATIVE_TEXT.search(picture)
    path = {source["theme"]: source["path"] for source in SOURCE.finditer(picture)}
    return "\n".join(
        f"![{alternative['text'] if alternative else ''}]"
        f"({path[theme].removeprefix('docs/')}-{theme}.svg#only-{theme})"
        for theme in sorted(path)
    )


def _redirected(link: re.Match[str], original: str, uri: str) -> str:
    target, _, anchor = link["target"].partition("#")
    if not target or re.match(r"[a-z]+:", target):
        return link[0]
    path = posixpath.normpath(posixpath.join(posixpath.dirname(original), target))
    if not (ROOT / path).exists():
        if not path.startswith("docs/"):  # mkdocs itself checks what is in docs/
            log.warning("%s links to %s, which does not exist", original, path)
        return link[0]
    page = PAGES.get(path) or GENERATED_PAGES.get(path)
    if not page and path.startswith("docs/") and (ROOT / path).is_file():
        page = path.removeprefix("docs/")
    if not page:
        return link["text"]
    relative = os.path.relpath(page, posixpath.dirname(uri) or ".")
    return f"[{link['text']}]({relative}{'#' + anchor if anchor else ''})"
