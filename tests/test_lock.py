import subprocess
import sys
from pathlib import Path

import pytest

from unshuffle.errors import UserError
from unshuffle.lock import held


def test_what_another_holds_is_refused_until_it_lets_go(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("kept")
    with held(path, "first"), pytest.raises(UserError, match="second"), held(path, "second"):
        pass
    with held(path, "third"):
        assert path.read_text() == "kept"


@pytest.mark.skipif(sys.platform == "win32", reason="files are not locked there")
def test_a_killed_process_holds_nothing(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    hold = "import sys, time; from pathlib import Path; from unshuffle.lock import held\n"
    hold += "with held(Path(sys.argv[1]), ''): print('held', flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", hold, str(path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"held\n"
        with pytest.raises(UserError, match="busy"), held(path, "busy"):
            pass
        process.kill()
    with held(path, "busy"):
        pass
