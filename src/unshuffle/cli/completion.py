"""`unshuffle completion`."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Annotated, Literal

from unshuffle.analysis.analysis import ANALYSES
from unshuffle.cli.parsing import POSITIONAL, Word, parse, words
from unshuffle.evaluation.protocol import EVALUATIONS

TOP_WORDS = (Word("--help", "List the commands.", False, ()), Word("--version", "Print the version.", False, ()))
"""What `unshuffle` takes in place of a command."""


@dataclass(frozen=True)
class CompletionCommand:
    """Print a script that lets a shell complete commands, options and their values."""

    shell: Annotated[Literal["bash", "zsh", "fish"], POSITIONAL]
    """Which shell the script is for."""


@dataclass(frozen=True)
class Context:
    """What can follow a command, or the name that follows it, such as an evaluation."""

    path: tuple[str, ...]
    names: dict[str, str]
    """Names that follow, with their summaries."""
    options: type | None = None
    """The dataclass whose fields are the options."""
    words: Sequence[Word] = ()

    @property
    def positional(self) -> list[str]:
        """Names and values that are given without an option."""
        return [*self.names, *(choice for word in self.words if not word.option for choice in word.choices)]


def main(args: Sequence[str]) -> int:
    """Print the script."""
    command = parse(CompletionCommand, "completion", args)
    contexts = list(all_contexts())
    print({"bash": _bash, "zsh": _zsh, "fish": _fish}[command.shell](contexts))
    return 0


def all_contexts() -> Iterable[Context]:
    """Return every command, and every evaluation and analysis, with its options."""
    from unshuffle.cli import COMMANDS

    nested = {"evaluate": EVALUATIONS, "analyze": ANALYSES}
    yield Context((), {name: summary or "" for name, (_, summary) in COMMANDS.items()}, words=TOP_WORDS)
    for name in COMMANDS:
        if name not in nested:
            options = getattr(import_module(f"unshuffle.cli.{name}"), f"{name.capitalize()}Command")
            yield Context((name,), {}, options, words(options))
            continue
        yield Context((name,), {each: entry.summary for each, entry in nested[name].items()})
        for each, entry in nested[name].items():
            options = entry.load()
            yield Context((name, each), {}, options, words(options, positional=name == "analyze"))


def _bash(contexts: Sequence[Context]) -> str:
    nested = "|".join(dict.fromkeys(context.path[0] for context in contexts if len(context.path) == 2))
    lines = [
        "# completion of unshuffle for bash: source this file",
        "_unshuffle() {",
        '    local current="${COMP_WORDS[COMP_CWORD]}" previous="${COMP_WORDS[COMP_CWORD-1]}" context="" words=""',
        '    [ "$COMP_CWORD" -gt 1 ] && context="${COMP_WORDS[1]}"',
        f'    case "$context" in {nested})',
        '        [ "$COMP_CWORD" -gt 2 ] && context="$context ${COMP_WORDS[2]}" ;;',
        "    esac",
        '    case "$context $previous" in',
    ]
    for context in contexts:
        for word in context.words:
            if word.option and word.choices:
                lines.append(f'        "{" ".join(context.path)} {word.option}") words="{" ".join(word.choices)}" ;;')
    lines += ['        *) case "$current" in', '            -*) case "$context" in']
    for context in contexts:
        if options := [word.option for word in context.words if word.option]:
            lines.append(f'                "{" ".join(context.path)}") words="{" ".join(options)}" ;;')
    lines += ["            esac ;;", '            *) case "$context" in']
    for context in contexts:
        if context.positional:
            lines.append(f'                "{" ".join(context.path)}") words="{" ".join(context.positional)}" ;;')
    return "\n".join(
        [
            *lines,
            "            esac ;;",
            "        esac ;;",
            "    esac",
            '    COMPREPLY=($(compgen -W "$words" -- "$current"))',
            "}",
            "complete -o default -F _unshuffle unshuffle  # files, where nothing else fits",
        ]
    )


def _zsh(contexts: Sequence[Context]) -> str:
    return f"autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit\n{_bash(contexts)}"


def _fish(contexts: Sequence[Context]) -> str:
    lines = ["# completion of unshuffle for fish"]
    for context in contexts:
        seen = " && ".join(f"__fish_seen_subcommand_from {name}" for name in context.path)
        after = " ".join(context.names)
        here = seen if not after else f"not __fish_seen_subcommand_from {after}" + (f" && {seen}" if seen else "")
        for name, summary in context.names.items():
            lines.append(f"complete -c unshuffle -f -n {_quoted(here)} -a {name} -d {_quoted(summary)}")
        for word in context.words:
            if word.option or word.choices:
                name = f"-l {word.option.removeprefix('--')} " if word.option else ""
                meaning = _quoted(" ".join(word.meaning.split()))
                lines.append(f"complete -c unshuffle -n {_quoted(here)} {name}{_fish_values(word)}-d {meaning}")
    return "\n".join(lines)


def _fish_values(word: Word) -> str:
    """Return the values of an option or argument, each with what its help says of this value alone."""
    if not word.choices:
        return "-r " if word.takes_value else ""
    values = []
    for choice in word.choices:
        meaning = re.search(rf"(?:^|[.;,] ){re.escape(choice)}: ([^.;]*)", " ".join(word.meaning.split()))
        values.append(f"{choice}\\t{_quoted(meaning[1] if meaning else '')}")
    return f"{'-x' if word.option else '-f'} -a {_quoted(' '.join(values))} "


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
