"""Build the site of the documentation: python tools/documentation.py [FOLDER], by default into site/.

The pages are those of docs/, as a code host shows them too, with three additions: options, commands and the Python API,
from the code; CHANGELOG, CONTRIBUTING and SECURITY; and the notebooks. Files of the repository that a page links to are
copied, so the site needs neither a network nor a web server.
"""

import dataclasses
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

import unshuffle
from unshuffle.cli.completion import Context, all_contexts
from unshuffle.cli.parsing import Word
from unshuffle.config import PRESETS, SHORT_NAMES, Config, preset_config
from unshuffle.options import field_types, plain_type

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
SETTINGS = ROOT / "mkdocs.yml"
PROJECT_PAGES = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md", "SECURITY.md": "security.md"}
"""Pages of the repository's root, by their names in the folder `project` of the site."""
MEMBERS = {
    "Backbone": "architecture metadata channels eval_size normalisation forward normalise stages for_evaluation",
    "ClassificationConfig": "crop_size crop_fraction hidden batch_size loss_weight optimiser",
    "ClassificationTask": "name grid classes answers parts chance variants questions classify pictures",
    "Index": "features names dataset backbone weights pool description embed search neighbours near_duplicates "
    "outliers write",
    "ItemSampler": "propose tell probabilities state_dict load_state_dict",
    "Run": "folder open config metrics last_iteration metrics_warning config_file metrics_file checkpoints states "
    "permutations pictures heartbeat held_out neighbours report skipped tensorboard weights",
    "SimilarityPage": "files near_duplicates outliers",
    "SpatialTask": "name permutations parts chance shuffle pictures",
    "TemporalTask": "name permutations parts chance shuffle pictures",
    "UserError": "",
}
"""What is public of each public class, its own or inherited; the rest serves unshuffle alone."""
LINK = re.compile(r"(\]\()([^)\s]+)(\))")
CODE = re.compile(r"(^```.*?^```$|`[^`\n]+`)", re.MULTILINE | re.DOTALL)
FIGURE = re.compile(r"^(!\[[^]]*\]\(([^)\s]+)\))$", re.MULTILINE)
MARK = re.compile(r"^<!-- generated: (\w+) -->$", re.MULTILINE)


def main(site: Path) -> int:
    """Build the site; return the exit code."""
    with tempfile.TemporaryDirectory() as folder:
        pages = Path(folder) / "docs"
        write_pages(pages)
        settings = site_settings(pages) | {"docs_dir": str(pages), "site_dir": str(site.resolve())}
        settings_file = Path(folder) / SETTINGS.name
        settings_file.write_text(yaml.safe_dump(settings, allow_unicode=True, sort_keys=False), encoding="utf-8")
        build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(settings_file)]
        environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
        return subprocess.run(build, env=environment, check=False).returncode


def site_settings(pages: Path) -> dict[str, Any]:
    """Return mkdocs.yml with the notebooks in the place of `notebooks/*.md`."""
    settings: dict[str, Any] = yaml.safe_load(SETTINGS.read_text(encoding="utf-8"))
    notebooks = [str(page.relative_to(pages)) for page in sorted((pages / "notebooks").glob("[!i]*.md"))]
    for section in settings["nav"]:
        for entries in section.values():
            if isinstance(entries, list) and "notebooks/*.md" in entries:
                place = entries.index("notebooks/*.md")
                entries[place : place + 1] = notebooks
    return settings


def write_pages(folder: Path) -> None:
    """Fill a folder with all pages and with the files that they link to."""
    for file in sorted(path for path in DOCS.rglob("*") if path.is_file()):
        place = folder / file.relative_to(DOCS)
        place.parent.mkdir(parents=True, exist_ok=True)
        if file.suffix == ".md":
            place.write_text(relinked(filled(file.read_text(encoding="utf-8")), file, folder), encoding="utf-8")
            continue
        place.write_bytes(file.read_bytes())
        if file.suffix == ".ipynb":
            page = place.with_suffix(".md")
            page.write_text(relinked(notebook_page(file), file, folder), encoding="utf-8")
    for name, place_name in PROJECT_PAGES.items():
        page = folder / "project" / place_name
        page.parent.mkdir(exist_ok=True)
        page.write_text(relinked((ROOT / name).read_text(encoding="utf-8"), ROOT / name, folder), encoding="utf-8")


def place_of(file: Path) -> str:
    """Return where a file of the repository lies in the site's folder of pages."""
    name = str(file.relative_to(ROOT))
    if file.is_relative_to(DOCS):
        return str(file.relative_to(DOCS)).replace(".ipynb", ".md")
    if name == "README.md":
        return "index.md"
    return f"project/{PROJECT_PAGES[name]}" if name in PROJECT_PAGES else f"files/{name}"


def relinked(text: str, file: Path, folder: Path) -> str:
    """Return a page whose links lead to the pages and files of the site, and copy the latter there."""
    here = Path(place_of(file)).parent

    def replace(match: re.Match[str]) -> str:
        address, _, anchor = match[2].partition("#")
        if ":" in address:
            return match[0]
        target = (file.parent / address).resolve()
        if target == file or not target.is_relative_to(ROOT) or not target.is_file():
            return match[0]  # a heading of this page, the notebook itself, or an address that the test of links finds
        place = place_of(target)
        if place.startswith("files/") and not (copy := folder / place).exists():
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(target.read_bytes())
        link = os.path.relpath(place, here) + (f"#{anchor}" if anchor else "")
        return f"{match[1]}{link}{match[3]}"

    return "".join(part if CODE.fullmatch(part) else LINK.sub(replace, part) for part in CODE.split(text))


def filled(text: str) -> str:
    """Return a page with what the code says in the place of its marks, and with figures that open in full size."""
    parts = {"options": option_tables, "commands": command_tables, "api": api_entries}
    text = re.sub(r"\s±\s+", "\u00a0±\u00a0", text)  # so that a figure and its std stay on one line
    text = FIGURE.sub(r"[\1](\2)", text)  # on a phone a figure of several panels is too small
    return MARK.sub(lambda match: "\n".join(parts[match[1]]()), text)


def option_tables() -> Iterator[str]:
    """Yield a section for each section of the config, with the values of all presets."""
    (pretrain,) = [context for context in all_contexts() if context.path == ("pretrain",)]
    names = {field.name for field in dataclasses.fields(Config)}
    configs = {name: preset_config(name) for name in PRESETS}
    sections: dict[str, list[str]] = {}
    for word in options(pretrain):
        section, _, field = word.option.removeprefix("--").rpartition(".")
        if section or field in names:
            values = {
                name: shown(value_at(config, word.option)) for name, config in configs.items() if field != "preset"
            }
            row = table_row(f"`{word.option}`", value_words(word), word.meaning, default_words(values))
            sections.setdefault(section, []).append(row)
    yield from ["## Short names\n", "| option | stands for | meaning |", "|---|---|---|"]
    for name, (field, meaning) in SHORT_NAMES.items():
        yield table_row(f"`--{name.replace('_', '-')}`", f"`--{field}`", meaning)
    yield ""
    for section, rows in sections.items():
        yield f"## {section or 'Data, tasks and folder'}\n\n{summary_of(Config, section)}\n"
        yield from ["| option | value | meaning | default |", "|---|---|---|---|", *rows, ""]


def command_tables() -> Iterator[str]:
    """Yield a section for each command, evaluation and analysis."""
    contexts = [context for context in all_contexts() if context.path]
    for context in contexts:
        (name, *rest) = context.path
        yield f"##{'#' * len(rest)} unshuffle {' '.join(context.path)}\n"
        if context.options is None:
            siblings = [other for other in contexts if other.path[0] == name and other.options is not None]
            yield from [overview_of(name), ""]
            yield from option_table(siblings[0], common_words(siblings))
            continue
        siblings = [other for other in contexts if rest and other.path[0] == name and other.options is not None]
        common = common_words(siblings)
        yield f"{first_line(context.options)}\n"
        is_config = issubclass(context.options, Config)
        own = {field.name for field in dataclasses.fields(context.options)}
        own -= {field.name for field in dataclasses.fields(Config)} if is_config else set()
        yield from option_table(
            context, [word for word in options(context) if word not in common and top_name(word) in own]
        )
        if is_config:
            yield "It also takes every [option of a run](options.md).\n"
        elif common:
            yield f"It also takes the options of [all of them](#unshuffle-{name}).\n"


def option_table(context: Context, wanted: Iterable[Word]) -> list[str]:
    """Return the table of some options of a command."""
    rows = []
    for word in wanted:
        name, value = (f"`{word.option}`", value_words(word)) if word.option else (f"`{word.metavar}`", "")
        rows.append(table_row(name, value, word.meaning, default_of(context.options, word)))
    return ["| option | value | meaning | default |", "|---|---|---|---|", *rows, ""] if rows else []


def api_entries() -> Iterator[str]:
    """Yield what mkdocstrings replaces by the documentation of each public name."""
    for name in sorted(unshuffle.__all__, key=str.lower):
        yield f"::: unshuffle.{name}"
        if name in MEMBERS:
            members = ", ".join(MEMBERS[name].split())
            yield f"    options:\n      inherited_members: true\n      members: [{members}]"
        yield ""


def options(context: Context) -> list[Word]:
    """Return the options of a command without `--help` and the negations of switches."""
    return [word for word in context.words if "help" not in word.option and not word.meaning.startswith("Not: ")]


def common_words(contexts: Iterable[Context]) -> list[Word]:
    """Return the options that all these commands have, with the same meaning."""
    first, *others = [options(context) for context in contexts] or [[]]
    return [word for word in first if word.option and all(word in other for other in others)]


def top_name(word: Word) -> str:
    """Return the field of a command that an option or argument belongs to."""
    name = (
        word.option.removeprefix("--").partition(".")[0] if word.option else word.metavar.removesuffix(" ...").lower()
    )
    return name.replace("-", "_")


def overview_of(name: str) -> str:
    """Return the summary of a command that has further names, and these names."""
    (top,) = [context for context in all_contexts() if not context.path]
    (context,) = [context for context in all_contexts() if context.path == (name,)]
    rows = [table_row(f"[`{each}`](#unshuffle-{name}-{each})", summary) for each, summary in context.names.items()]
    return "\n".join([f"{top.names[name]}\n", "| name | does |", "|---|---|", *rows, "", "All of them take:"])


def value_words(word: Word) -> str:
    """Return the values of an option: those to choose from, or their type."""
    if not word.takes_value:
        return "switch"
    several = ", …" if word.metavar.endswith(" ...") else ""
    kinds = {"INT": "integer", "FLOAT": "number", "STR": "text", "PATH": "path"}
    kind = word.metavar.removesuffix(" ...")
    return (", ".join(f"`{choice}`" for choice in word.choices) or kinds[kind]) + several


def default_words(values: dict[str, str]) -> str:
    """Return the value of an option in the preset `paper`, and in those that differ."""
    usual = values.get("paper", "")
    others: dict[str, list[str]] = {}
    for preset, value in values.items():
        if value != usual:
            others.setdefault(value, []).append(f"`{preset}`")
    return "<br>".join([usual, *(f"{value} in {', '.join(presets)}" for value, presets in others.items())])


def default_of(owner: Any, word: Word) -> str:
    """Return the default of a command's option."""
    if not word.option:
        return ""
    value: Any = owner
    for part in word.option.removeprefix("--").replace("-", "_").split("."):
        field = next((field for field in dataclasses.fields(value) if field.name == part), None)
        if field is None:
            return ""
        value = field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default
    return "required" if value is dataclasses.MISSING else shown(value)


def value_at(config: Config, option: str) -> Any:
    """Return the value of an option in a config."""
    value: Any = config
    for part in option.removeprefix("--").split("."):
        value = getattr(value, part)
    return value


def shown(value: Any) -> str:
    """Return a default as the command line would take it."""
    if value is None or value == ():
        return ""
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"`{' '.join(map(str, value)) if isinstance(value, tuple) else value}`"


def summary_of(owner: type, section: str) -> str:
    """Return the first line about a section of the config."""
    for part in filter(None, section.split(".")):
        owner, _ = plain_type(field_types(owner)[part])
    return first_line(owner) if section else "What a run is made of."


def first_line(owner: type) -> str:
    """Return the first line of a docstring."""
    return (owner.__doc__ or "").partition("\n")[0]


def table_row(*cells: str) -> str:
    """Return a row of a table, with nothing in it that would end a cell or begin an HTML element."""
    return f"| {' | '.join(re.sub(r'<(?!br>)', '&lt;', cell.replace('|', '&#124;')) for cell in cells)} |"


def notebook_page(file: Path) -> str:
    """Return a notebook as a page: its text, code and outputs."""
    parts = []
    for cell in json.loads(file.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
        elif cell["cell_type"] == "code" and source.strip():
            parts.append(f"```python\n{source.rstrip()}\n```")
            parts.extend(_output(output) for output in cell["outputs"])
    return "\n\n".join([*parts, f"[Download this page as a notebook]({file.name})\n"])


def _output(output: dict[str, Any]) -> str:
    data = output.get("data", {"text/plain": output.get("text", "")})
    for kind in ("image/png", "image/jpeg"):
        if kind in data:
            return f"![](data:{kind};base64,{''.join(data[kind]).strip()})"
    if "text/html" in data:
        return "".join(data["text/html"])
    return f"```text\n{''.join(data['text/plain']).rstrip()}\n```"


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "site"))
