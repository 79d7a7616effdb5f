"""The documentation: links lead somewhere, Python compiles, commands and options exist, and the site is complete."""

import ast
import inspect
import os
import re
import shlex
import textwrap
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import documentation as tool
import unshuffle
from browser import browse, find_chromium
from unshuffle.cli import COMMANDS
from unshuffle.cli.completion import all_contexts

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
FENCED = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"(?:(?<=\n\n)|\A)((?: {4}[^\n]*\n)(?:(?: {4}[^\n]*)?\n)*)")
SPAN = re.compile(r"`([^`]+)`")
COMMAND = re.compile(r"(?:unshuffle |python benchmarks/|make |torchrun .* -m unshuffle )[a-z]")

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


@cache
def read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def without_blocks(text: str) -> str:
    return INDENTED.sub("", FENCED.sub("", text))


def broken_links(page: Path, text: str) -> list[str]:
    """Links of a page to files or headings that do not exist."""
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", SPAN.sub("", without_blocks(text))):
        address, _, anchor = link.partition("#")
        target = (page.parent / address).resolve() if address else page
        if "://" not in address and not (
            target.exists() and (not anchor or anchor in anchors(text if target == page else read(target)))
        ):
            broken.append(link)
    return broken


@cache
def anchors(text: str) -> set[str]:
    """The anchors of a page's headings."""
    titles = re.findall(r"^#{1,6} (.+)$", without_blocks(text), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@each_page
def test_links_lead_to_files_and_headings(page: Path) -> None:
    assert broken_links(page, read(page)) == []


def test_broken_links_are_found() -> None:
    text = (
        "# A title\n\n[1](#a-title) [2](#another) [3](LICENSE) [4](docs/nothing.md) `[5](x)` [6](docs/index.md#nothing)"
    )
    assert broken_links(ROOT / "README.md", text) == ["#another", "docs/nothing.md", "docs/index.md#nothing"]


@each_page
def test_a_heading_has_the_same_anchor_on_code_hosts_and_on_the_site(page: Path) -> None:
    assert [anchor for anchor in anchors(read(page)) if "--" in anchor or not anchor.isascii()] == []


def blocks(text: str) -> Iterator[tuple[str, str]]:
    """The code blocks of a page with their languages; an indented one has none."""
    for _, language, code in FENCED.findall(text):
        yield language, textwrap.dedent(code)
    for code in INDENTED.findall(FENCED.sub("", text)):
        yield "", textwrap.dedent(code)


@each_page
def test_python_compiles(page: Path) -> None:
    for language, code in blocks(read(page)):
        if language == "python":
            ast.parse(code)


def command_lines(text: str) -> list[str]:
    """The commands of ours on a page, in blocks and in the text."""
    lines = [line for _, code in blocks(text) for line in re.sub(r"\\\n\s*", "", code).splitlines()]
    lines += [" ".join(span.split()) for span in SPAN.findall(without_blocks(text))]
    return [line for line in lines if COMMAND.match(line)]


@cache
def known_options() -> dict[tuple[str, ...], set[str]]:
    contexts = [context for context in all_contexts() if context.path]
    return {context.path: {word.option.replace("-", "_") for word in context.words} for context in contexts}


def problem(line: str) -> str | None:
    """What is wrong with a command line: a command, a program, a target or an option that does not exist."""
    program, *words = shlex.split(re.sub(r"[\[\]…]", " ", line), comments=True)
    given = {
        word.partition("=")[0].replace("-", "_") for word in words if re.match(r"--[a-z]", word) and "*" not in word
    }
    if program == "make":
        return None if f"\n{words[0]}:" in read(ROOT / "Makefile") else f"no target {words[0]}"
    if program == "python" and words[0].startswith("benchmarks/"):
        text = read(ROOT / words[0]) if (ROOT / words[0]).is_file() else ""
        unknown = sorted(
            option for option in given if not re.search(rf"(--|^    )({option[2:]})\b", text, re.MULTILINE)
        )
        return f"no option {unknown} of {words[0]}" if unknown or not text else None
    if program != "unshuffle":
        words = words[words.index("unshuffle") + 1 :]
        given &= {word.partition("=")[0].replace("-", "_") for word in words}
    if words[0] not in COMMANDS:
        return f"no command {words[0]}"
    known = known_options()
    names = [path[1] for path in known if path[0] == words[0] and len(path) == 2]
    if names and len(words) > 1 and words[1].islower() and not words[1].startswith("-"):
        if words[1] not in names:
            return f"no {words[0]} {words[1]}"
        options = known[words[0], words[1]]
    else:
        options = {option for path, options in known.items() if path[0] == words[0] for option in options}
    unknown = sorted(given - options - {"__help"})
    return f"no option {unknown} of {words[0]}" if unknown else None


@each_page
def test_commands_and_options_exist(page: Path) -> None:
    assert {line: problem(line) for line in command_lines(read(page)) if problem(line)} == {}


@pytest.mark.parametrize(
    "line",
    [
        "unshuffle pretrian",
        "unshuffle embed photos --weigths w",
        "unshuffle evaluate lineal --weights w",
        "unshuffle evaluate linear --weight w",
        "unshuffle pretrain --optim.lr 1",
        "torchrun --nproc_per_node 2 -m unshuffle pretrain --nproc 2",
        "python benchmarks/nothing.py --device cpu",
        "python benchmarks/peers.py --nothing",
        "make nothing",
    ],
)
def test_wrong_commands_are_found(line: str) -> None:
    assert command_lines(f"# A\n\n    {line}\n") == [line]
    assert command_lines(f"`{line}`") == [line]
    assert problem(line)


STUDIES = re.findall(r"^\| \[.+?\]\(([\w-]+)\.md\) \|", read(ROOT / "docs" / "results" / "index.md"), re.MULTILINE)


def test_each_page_of_the_results_is_a_study() -> None:
    pages = {page.stem for page in (ROOT / "docs" / "results").glob("*.md")}
    assert sorted(STUDIES) == sorted(pages - {"index", "gallery", "model-card"})


@pytest.mark.parametrize("study", STUDIES)
def test_a_study_has_a_question_an_answer_a_table_a_figure_and_a_command(study: str) -> None:
    text = read(ROOT / "docs" / "results" / f"{study}.md")
    question, answer, _ = text.split("\n\n", maxsplit=2)
    assert question.startswith("# ") and question.endswith("?")
    assert answer.startswith("**")
    assert re.search(r"^\|(---\|)+$", text, re.MULTILINE)
    assert re.search(r"^!\[[^]]+\]\(\S+\)$", text, re.MULTILINE)
    assert any(language == "console" and COMMAND.search(code) for language, code in blocks(text))


def first_columns(text: str) -> list[str]:
    """The cells in the first column of each table, joined."""
    tables = re.findall(r"^\|[-|]+\|\n((?:\|.*\n)+)", text, re.MULTILINE)
    return [" ".join(row.split("|")[1] for row in table.splitlines()) for table in tables]


def test_the_page_on_installing_has_every_dependency_and_extra() -> None:
    project = tomllib.loads(read(ROOT / "pyproject.toml"))["project"]
    needed = {Requirement(line).name for line in project["dependencies"]}
    extras = set(project["optional-dependencies"]) - {"dev", "dev-more"}
    listed = [set(SPAN.findall(first)) for first in first_columns(read(ROOT / "docs" / "how-to" / "install.md"))]
    assert listed == [needed, extras]


PUBLIC_MEMBERS = {name: members.split() for name, members in tool.MEMBERS.items() if members}


def test_the_reference_has_every_option_and_name(tmp_path: Path) -> None:
    tool.write_pages(tmp_path)
    reference = {name: (tmp_path / "reference" / f"{name}.md").read_text() for name in ("options", "commands", "api")}
    for path, options in known_options().items():
        assert f" unshuffle {' '.join(path)}\n" in reference["commands"]
        for option in options - {"", "__help", "__help_all"}:
            name = re.sub(r"(__|\.)no_", r"\1", option).replace("__", "--", 1)
            names = (f"`{name}`", f"`{name.replace('_', '-')}`")
            assert any(each in page for each in names for page in reference.values()), name
    entries = re.findall(r"^::: unshuffle\.(\w+)\n(?: .*\n)*?(?: +members: \[(.*)\])?$", reference["api"], re.MULTILINE)
    assert [name for name, _ in entries] == sorted(unshuffle.__all__, key=str.lower)
    assert {name: members.split(", ") for name, members in entries if members} == PUBLIC_MEMBERS


def test_the_public_members_of_each_class_exist() -> None:
    classes = {name for name in unshuffle.__all__ if isinstance(getattr(unshuffle, name), type)}
    assert set(tool.MEMBERS) == classes
    for name, members in PUBLIC_MEMBERS.items():
        owner = getattr(unshuffle, name)
        known = {*dir(owner), *(field for base in owner.__mro__ for field in inspect.get_annotations(base))}
        assert [member for member in members if member not in known] == [], name
    used = re.findall(r"`(\w+)`", "".join(re.findall(r"^\| `Index` .*$", read(ROOT / "docs/reference/api.md"), re.M)))
    assert set(used) - {"Index", "embed"} <= set(PUBLIC_MEMBERS["Index"])


def test_the_reference_says_where_presets_differ() -> None:
    (row,) = [
        line
        for table in tool.option_tables()
        for line in table.splitlines()
        if line.startswith("| `--optim.batch_size`")
    ]
    assert row.endswith("| `128`<br>`32` in `demo`<br>`64` in `cpu`<br>`512` in `small` |")


def test_a_figure_and_its_std_stay_on_one_line() -> None:
    text = "- error +0.016 ±\n  0.007, before\n  0.436 ± 0.004"
    assert tool.filled(text) == "- error +0.016\u00a0±\u00a00.007, before\n  0.436\u00a0±\u00a00.004"


def test_a_figure_opens_in_full_size() -> None:
    assert tool.filled("# A\n\n![Errors](a.svg)\n") == "# A\n\n[![Errors](a.svg)](a.svg)\n"


def test_pages_of_the_site_link_to_copies(tmp_path: Path) -> None:
    page = ROOT / "docs" / "how-to" / "x.md"
    text = "[a](../../LICENSE) [b](../../CHANGELOG.md#changes) [c](../index.md) `[d](../../LICENSE)` [e](https://x.org/LICENSE)"
    assert tool.relinked(text, page, tmp_path) == (
        "[a](../files/LICENSE) [b](../project/changelog.md#changes) [c](../index.md) `[d](../../LICENSE)` "
        "[e](https://x.org/LICENSE)"
    )
    assert (tmp_path / "files" / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_a_notebook_becomes_a_page(tmp_path: Path) -> None:
    notebook = tmp_path / "one.ipynb"
    picture = {"data": {"image/png": "AAAA\n", "text/plain": "<Figure>"}}
    cells = [
        {"cell_type": "markdown", "source": ["# One\n", "Text."]},
        {"cell_type": "code", "source": ["print(1)"], "outputs": [{"name": "stdout", "text": ["1\n"]}, picture]},
        {"cell_type": "code", "source": [], "outputs": []},
    ]
    notebook.write_text(tool.json.dumps({"cells": cells}))
    assert tool.notebook_page(notebook).split("\n\n") == [
        "# One\nText.",
        "```python\nprint(1)\n```",
        "```text\n1\n```",
        "![](data:image/png;base64,AAAA)",
        "[Download this page as a notebook](one.ipynb)\n",
    ]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("material")
    pytest.importorskip("mkdocstrings")
    folder = tmp_path_factory.mktemp("site")
    assert tool.main(folder) == 0
    return folder


@pytest.mark.slow
def test_the_site_needs_no_network(site: Path) -> None:
    loaded = r'<(?:script|img|iframe|source)\b[^>]*\ssrc="([^"]*)"|<link\b[^>]*\shref="([^"]*)"|@import|url\(([^)]*)\)'
    for file in [*site.rglob("*.html"), *site.rglob("*.css")]:
        addresses = {"".join(found) for found in re.findall(loaded, file.read_text(encoding="utf-8"))}
        assert [address for address in addresses if re.match(r"[\"']?(https?:)?//", address)] == [], file


@pytest.mark.slow
def test_the_site_documents_every_public_member_and_nothing_else(site: Path) -> None:
    page = (site / "reference" / "api.html").read_text(encoding="utf-8")
    members = {f"{name}.{member}" for name, members in PUBLIC_MEMBERS.items() for member in members}
    assert set(re.findall(r'id="unshuffle\.([\w.]+)"', page)) == {*unshuffle.__all__, *members}
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", "", page))
    assert "SpatialTask( config: Config," in text and "Run(folder: Path)" in text, "constructors"


@pytest.mark.slow
def test_the_site_is_searched_without_a_network(site: Path, tmp_path: Path) -> None:
    words = "neighbours of a folder"
    chromium = find_chromium()
    if chromium is None and os.environ.get("CI") != "true":
        pytest.skip("there is no chromium to search the site with")
    assert chromium is not None, "CI must have a chromium"
    with browse(chromium, tmp_path / "profile") as tab:
        tab.open(site / "index.html")
        tab.run("document.querySelector('[data-md-component=search-query]').focus()")
        tab.wait("document.querySelector('.md-search-result__meta').textContent.includes('Type to start')")
        tab.call("Input.insertText", text=words[:-1])
        for kind in ("keyDown", "keyUp"):  # the search begins when a key is released
            tab.call("Input.dispatchKeyEvent", type=kind, key=words[-1], text=words[-1] if kind == "keyDown" else "")
        tab.wait("document.querySelector('.md-search-result__link')")
        assert tab.problems == []
        assert [url for url in tab.requested if not url.startswith(("file:", "data:", "about:"))] == []
