"""What the documentation's site has beside its pages: hooks of MkDocs, and an extension of Griffe
for docstrings.

- `FOLDER/*` in the navigation becomes every page of that folder, its README.md first.
- A fence keeps the name of its language only: `sh cluster` becomes `sh`.
- Lists within lists get the four spaces that Python-Markdown asks for.
- Links out of docs/ lead to the repository: the documents themselves keep links that work there.
- A notebook becomes a page with its stored outputs.
- The reference pages of the command line, gRPC and Python are made from the code.
- In docstrings, a list of `name   description` becomes a list of definitions.

It runs where neither torch nor the packages' own dependencies are installed
(requirements-site.txt)."""

from __future__ import annotations

import base64
import importlib
import json
import logging
import posixpath
import re
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)\s#]+)")
TYPE = re.compile(r"(?<![\w.])(?:podracer\.(\w+)\.v1\.)?([A-Z]\w+)")
FENCED = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
LISTED = re.compile(r"(?:\S.*? {2}\S.*\n(?: {3}.*\n)*)+")

log = logging.getLogger("mkdocs.hooks")


def on_config(config: MkDocsConfig) -> None:
    code = config.plugins["mkdocstrings"].config.handlers["python"]["paths"]
    sys.path += [str(ROOT / folder) for folder in code if str(ROOT / folder) not in sys.path]
    sys.path.append(_entry_points(ROOT / "libs" / "podracer_trading"))
    config.nav = [_expanded(entry) for entry in config.nav or []]


def _entry_points(package: Path) -> str:
    """A folder for sys.path, in which the entry points of a package are found as if it were
    installed: its commands have a place in the reference."""
    project = tomllib.loads((package / "pyproject.toml").read_text())["project"]
    folder = tempfile.mkdtemp(prefix="podracer-site-")
    metadata = Path(folder, f"{package.name}-{project['version']}.dist-info")
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    lines = [
        line
        for group, entries in project["entry-points"].items()
        for line in (f"[{group}]", *(f"{name} = {value}" for name, value in entries.items()))
    ]
    (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return folder


def _expanded(entry: Any) -> Any:
    if not isinstance(entry, dict):
        return entry
    ((title, pages),) = entry.items()
    if not isinstance(pages, list):
        return entry
    if isinstance(pages[0], str) and pages[0].endswith("/*"):
        found = sorted(
            (DOCS / pages[0]).parent.glob("*.md"),
            key=lambda page: (page.name != "README.md", page.name),
        )
        return {title: [page.relative_to(DOCS).as_posix() for page in found]}
    return {title: [_expanded(page) for page in pages]}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    reference = {"command-line": _command_line(), **_grpc(), **_python()}
    made = {f"reference/{name}.md": text for name, text in reference.items()} | _notebooks(
        config.site_url or ""
    )
    for name, content in made.items():
        files.append(File.generated(config, name, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, **_: Any) -> str:
    def to_repository(link: re.Match[str]) -> str:
        path = posixpath.normpath(
            posixpath.join("docs", posixpath.dirname(page.file.src_uri), link[1])
        )
        if path.startswith("docs/"):
            return re.sub(r"\.ipynb$", ".md", link[1])
        if not (ROOT / path).exists():
            log.warning("%s links to %s, which is not there", page.file.src_uri, link[1])
        return f"{config.repo_url}/{'tree' if (ROOT / path).is_dir() else 'blob'}/main/{path}"

    parts = FENCED.split(re.sub(r"^(```\w+) .*$", r"\1", markdown, flags=re.MULTILINE))
    parts[::2] = [
        LINK.sub(to_repository, re.sub("^(?=  )", "  ", text, flags=re.MULTILINE))
        for text in parts[::2]
    ]
    return "".join(parts)


def on_post_page(output: str, **_: Any) -> str:
    """Without the mark by which the theme asks GitHub, on each visit, how many stars the repository
    has."""
    return output.replace(' data-md-component="source"', "")


def _notebooks(site: str) -> dict[str, str | bytes]:
    """The pages of the notebooks, and their pictures. A notebook links to this site, as it is read
    elsewhere too."""
    made: dict[str, str | bytes] = {}
    for path in DOCS.glob("tutorials/*.ipynb"):
        text = ""
        for number, cell in enumerate(json.loads(path.read_text())["cells"]):
            source = "".join(cell["source"])
            if cell["cell_type"] == "markdown":
                source = re.sub(rf"\({site}([\w/-]+)\.html", r"(../\1.md", source)
                text += (
                    re.sub(r"(?m)^\[Open in Colab\].*$", r"\g<0>{ .md-button }", source) + "\n\n"
                )
                continue
            magic = re.match(r"%%(?:(sh)|writefile .*\.(\w+))\n", source)
            text += _fence(magic[1] or magic[2] if magic else "python", source)
            for output in cell["outputs"]:
                data = output.get("data") or {"text/plain": output["text"]}
                if "image/png" in data:
                    picture = f"{path.stem}-{number}.png"
                    made[f"tutorials/{picture}"] = base64.b64decode(data["image/png"])
                    text += f"![{cell['metadata']['alt']}]({picture})\n\n"
                else:
                    text += _fence('text title="Output"', "".join(data["text/plain"]))
        made[f"tutorials/{path.stem}.md"] = text
    return made


def _fence(language: str, text: str) -> str:
    return f"``` {language}\n{text.rstrip()}\n```\n\n"


def _command_line() -> str:
    """Typer's own page, without the shortened list of commands that opens each group."""
    import typer
    from typer.cli import get_docs_for_click

    from podracer_client.command import application

    command = typer.main.get_command(application)
    text = get_docs_for_click(obj=command, ctx=typer.Context(command), name="podracer")
    text = re.sub(r"\*\*Commands\*\*:\n\n(\* .*\n)+\n?", "", text)
    text = text.replace("* `--help`: Show this message and exit.\n", "").replace(
        "**Options**:\n\n\n", ""
    )
    return text.replace("# `podracer`\n", "# Command line\n", 1).replace(
        "```console\n$ ", "```text\n"
    )


def _python() -> dict[str, str]:
    """The public names of the packages, and those that the pages on extensions import."""
    names = {
        package: [f"{package}.{name}" for name in importlib.import_module(package).__all__]
        for package in ("podracer", "podracer_client")
    }
    shown = "".join(page.read_text() for page in sorted(DOCS.glob("write-a*.md")))
    imports = re.findall(
        r"^from (podracer_core\.[\w.]+) import (\([^)]*\)|.+)$", shown, re.MULTILINE
    )
    names["extensions"] = sorted(
        {f"{module}.{name}" for module, listed in imports for name in re.findall(r"\w+", listed)}
    )
    return {
        f"python/{page}": f"# {page}\n\n" + "".join(f"::: {name}\n\n" for name in listed)
        for page, listed in names.items()
    }


def _grpc() -> dict[str, str]:
    """A page for each package of protos, from the comments and fields of its services, messages and
    enumerations."""
    pages: dict[str, str] = {}
    for file in sorted(ROOT.glob("protos/podracer/*/v1/*.proto")):
        page = f"grpc/{file.parts[-3]}"
        pages[page] = pages.get(page, f"# podracer.{file.parts[-3]}.v1\n") + _proto(
            file.read_text()
        )
    return pages


def _proto(text: str) -> str:
    def linked(types: str) -> str:
        return TYPE.sub(
            lambda found: (
                f"[{found[2]}]({found[1] + '.md' if found[1] else ''}#{found[2].lower()})"
            ),
            types,
        )

    page, comment = "", ""
    for line in text.replace("<", "&lt;").splitlines():
        if found := re.match(r" *// ?(.*)", line):
            comment += found[1] + " "
            continue
        if found := re.match(r" *(?:service|message|enum) (\w+) \{", line):
            page += f"\n## {found[1]}\n\n{comment}\n"
        elif found := re.match(r" *rpc (\w+)\((.+?)\) returns \((.+?)\)", line):
            page += f"\n### {found[1]}\n\n{linked(found[2])} → {linked(found[3])}\n\n{comment}\n"
        elif found := re.match(r" *option \(podracer\.common\.v1\.access\) = .*\[(.+)\]", line):
            page += f"\nRoles: {found[1].replace('ROLE_', '').lower()}\n"
        elif found := re.match(r" *((?:\w+ )?(?:map&lt;.+?>|[\w.]+) )?(\w+) = \d+", line):
            page += f"\n`{found[2]}` {linked(found[1] or '')}\n:   {comment or '…'}\n"
        comment = ""
    return page


class Definitions(griffe.Extension):
    """Makes `name   description` of a docstring a list of definitions."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            paragraphs = re.split(r"\n\s*\n", obj.docstring.value)
            obj.docstring.value = "\n\n".join(_defined(paragraph) for paragraph in paragraphs)


def _defined(paragraph: str) -> str:
    if not LISTED.fullmatch(paragraph + "\n"):
        return paragraph
    return re.sub(r"^(\S.*?) {2,}(?=\S)", r"\n`\1`\n:   ", paragraph, flags=re.MULTILINE)
