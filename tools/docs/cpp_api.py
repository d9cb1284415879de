"""mkdocs hook: the page of the C++ API, made from the comments of include/tccl/*.h.

A header becomes a section: its opening comment, then each declaration of the namespace with the
`///` comment before it. Comments inside a class or an enum stay where they are, in the code.
"""

import re
from pathlib import Path
from typing import NamedTuple

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
PAGE = "api/cpp.md"
INTRODUCTION = """# C++ API

`#include <tccl/tccl.h>` brings all of it; `find_package(tccl)` and the target `tccl::tccl` link it.
The library does not depend on PyTorch. This page is generated from the headers in `include/tccl`.

"""
NAME = re.compile(r"(?:class|struct|enum class)\s+(?:TCCL_API\s+)?(\w+)|(\w+)\(|(\w+)\s*[={;]")


TYPE_OR_FUNCTION = re.compile(r"class|struct|enum|[\w:<> ]+ \w+\(")


class Declaration(NamedTuple):
    comment: str
    code: str

    @property
    def name(self) -> str:
        found = NAME.search(self.code)
        assert found, f"no name in {self.code}"
        return next(name for name in found.groups() if name)


def opening_comment(header: str) -> str:
    """The comment at the top; lines indented by three spaces or more become code."""
    lines = []
    for line in header.splitlines():
        if not line.startswith("//"):
            break
        lines.append(line.removeprefix("//").removeprefix(" "))
    return "\n".join(f"  {line}" if line.startswith("  ") else line for line in lines)


def declarations(header: str) -> list[Declaration]:
    """What stands between the braces of `namespace tccl`."""
    body = header.split("namespace tccl {", 1)[1].rsplit("}  // namespace tccl", 1)[0]
    found: list[Declaration] = []
    comment: list[str] = []
    code: list[str] = []
    for line in body.splitlines():
        if not code and line.startswith("//"):
            comment.append(line.lstrip("/").strip())
        elif code or line.strip():
            code.append(line)
        else:
            comment = []  # a blank line ends what the comment is about
        if code and is_complete("\n".join(code)):
            found.append(Declaration(" ".join(comment), without_body("\n".join(code))))
            comment, code = [], []
    assert not code, f"unfinished declaration: {code}"
    return found


def is_complete(code: str) -> bool:
    """Ends with ; or with the } of a function, outside of braces and parentheses."""
    text = re.sub(r"//.*", "", code).rstrip()
    is_balanced = text.count("{") == text.count("}") and text.count("(") == text.count(")")
    if re.match(r"\s*(?:class|struct|enum)\b", text):
        return is_balanced and text.endswith(";")
    return is_balanced and text.endswith((";", "}"))


def joined(found: list[Declaration]) -> list[Declaration]:
    """Overloads, and constants and aliases without a comment, belong to what stands before them."""
    together: list[Declaration] = []
    for declaration in found:
        is_detail = not declaration.comment and not TYPE_OR_FUNCTION.match(declaration.code)
        if together and (is_detail or declaration.name == together[-1].name):
            before = together.pop()
            comment = f"{before.comment} {declaration.comment}".strip()
            declaration = Declaration(comment, f"{before.code}\n{declaration.code}")
        together.append(declaration)
    return together


def without_body(code: str) -> str:
    """An inline function of the namespace as its declaration."""
    code = re.sub(r"\bTCCL_API ", "", code)
    return re.sub(r"inline ([^{]*\)) \{.*\}", r"\1;", code, flags=re.DOTALL)


def section(name: str, header: str) -> str:
    parts = [f"## tccl/{name}\n", opening_comment(header) + "\n"]
    for declaration in joined(declarations(header)):
        parts += [f"### {declaration.name}\n", f"{declaration.comment}\n"]
        parts += [f"```cpp\n{declaration.code}\n```\n"]
    return "\n".join(parts)


def page(include: Path) -> str:
    """The headers that tccl.h includes, in its order."""
    names = re.findall(r'#include "tccl/([^"]+)"', (include / "tccl.h").read_text())
    return INTRODUCTION + "\n".join(section(name, (include / name).read_text()) for name in names)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    files.append(File.generated(config, PAGE, content=page(ROOT / "include/tccl")))
    return files
