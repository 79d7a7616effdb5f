import shutil
import subprocess
from pathlib import Path

import pytest

from unshuffle.cli import COMMANDS, run


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the script of each shell."""
    folder = tmp_path_factory.mktemp("scripts")
    with pytest.MonkeyPatch.context() as patch:
        for shell in ("bash", "zsh", "fish"):
            printed: list[str] = []
            patch.setattr("builtins.print", printed.append)
            assert run(["completion", shell]) == 0
            (folder / shell).write_text("\n".join(printed))
    return folder


def completed(shell: str, line: str, scripts: Path, described: bool = False) -> list[str]:
    """Return what the shell itself offers at the end of a command line."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    script = scripts / shell
    if shell == "fish":
        program = f"source {script}; complete -C '{line}'"
        command = ["fish", "--no-config", "-c", program]
    else:
        split = [*line.split(), *([""] if line.endswith(" ") else [])]
        words = " ".join(f"'{word}'" for word in split)
        assignment = f"COMP_WORDS=({words}); COMP_CWORD={len(split) - 1}"
        call = 'printf "%s\\n" "${COMPREPLY[@]}"'
        if shell == "bash":
            command = ["bash", "--norc", "-c", f"source {script}; {assignment}; _unshuffle; {call}"]
        else:  # as bashcompinit calls the function
            program = f"source {script} 2>/dev/null; {assignment}; emulate ksh -c _unshuffle; {call}"
            command = ["zsh", "-f", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, cwd=scripts, check=True, timeout=60)
    if described:
        return done.stdout.splitlines()
    offered = [word.partition("\t")[0] for word in done.stdout.splitlines() if word]
    begun = line.rpartition(" ")[2]
    return [word for word in offered if word.startswith(begun)] if shell == "zsh" else offered  # zsh itself filters


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("unshuffle pre", ["pretrain"]),
        ("unshuffle --", ["--help", "--version"]),
        ("unshuffle evaluate ret", ["retrieval"]),
        ("unshuffle pretrain --preset pap", ["paper", "paper-literal"]),
        ("unshuffle pretrain --optim.mile", ["--optim.milestones"]),
        ("unshuffle pretrain --log.no_pic", ["--log.no_pictures"]),
        ("unshuffle pretrain --batch", ["--batch-size"]),
        ("unshuffle pretrain --images a --log.to tra", ["trackio"]),
        ("unshuffle evaluate retrieval --pres", ["--preset"]),
        ("unshuffle export --format on", ["onnx"]),
        ("unshuffle completion ", ["bash", "fish", "zsh"]),
        ("unshuffle pack vid", ["videos"]),
    ],
)
def test_the_shell_completes(shell: str, line: str, expected: list[str], scripts: Path) -> None:
    assert sorted(completed(shell, line, scripts)) == expected


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shell_lists_all_commands(shell: str, scripts: Path) -> None:
    assert sorted(completed(shell, "unshuffle ", scripts)) == sorted(COMMANDS)


def test_fish_describes_options_in_full_and_each_value_by_itself(scripts: Path) -> None:
    (option,) = completed("fish", "unshuffle export --down", scripts, described=True)
    meaning = (
        "Download hf:OWNER/NAME if it is not in the Hugging Face cache of this machine, or not in its latest version."
    )
    assert option == f"--download\t{meaning}"
    (option,) = completed("fish", "unshuffle pretrain --tas", scripts, described=True)
    assert "Joined by +" in option, "more than its first sentence"
    values = completed("fish", "unshuffle export --format ", scripts, described=True)
    assert "safetensors\twith metadata" in values and "onnx\tchecked against torch in onnxruntime" in values


def test_another_shell_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["completion", "csh"]) == 2
    assert "bash" in capsys.readouterr().err
