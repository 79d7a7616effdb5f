"""Execute the notebooks of docs/notebooks and write their outputs into them.

python tools/notebooks.py [FILE...]. With UNSHUFFLE_SHORT=1 they execute in seconds, as in the tests, and nothing is
written. Progress, times and the version of Python are left out, so that the same outputs give the same file.
"""

import base64
import io
import os
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from PIL import Image

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
MAX_BYTES = 300_000
"""Larger files are not shown by code hosts, or slowly."""
CELL_SECONDS = 1800


def execute(file: Path) -> nbformat.NotebookNode:
    """Return a notebook with the outputs of all its cells; the first that raises ends it with an error."""
    notebook: nbformat.NotebookNode = nbformat.read(file, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        resources = {"metadata": {"path": folder}}
        NotebookClient(notebook, timeout=CELL_SECONDS, resources=resources, record_timing=False).execute()
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [_compressed(output) for output in cell.outputs if not _is_progress(output)]
    notebook.metadata.language_info = {"name": "python"}
    return notebook


def _is_progress(output: nbformat.NotebookNode) -> bool:
    """Return whether an output is a message on stderr or a line of rich, which prints HTML in notebooks."""
    shown = output.get("data", {})
    return output.get("name") == "stderr" or (output.output_type == "display_data" and "text/html" in shown)


def _compressed(output: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Return an output whose picture is a JPEG if that is much smaller than the PNG, as for photographs."""
    if "image/png" in output.get("data", {}):
        stream = io.BytesIO()
        with Image.open(io.BytesIO(base64.b64decode(output.data["image/png"]))) as picture:
            picture.convert("RGB").save(stream, "JPEG", quality=80)
        jpeg = base64.b64encode(stream.getvalue()).decode()
        if 3 * len(jpeg) < len(output.data["image/png"]):
            del output.data["image/png"]
            output.data["image/jpeg"] = jpeg
    return output


def main(files: list[Path]) -> int:
    """Execute notebooks, and keep their outputs unless they are short ones."""
    for file in files:
        notebook = execute(file)
        if not os.environ.get("UNSHUFFLE_SHORT"):
            nbformat.write(notebook, file)
        print(f"{file.name}: {len(notebook.cells)} cells, {file.stat().st_size / 1000:.0f} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main([Path(name) for name in sys.argv[1:]] or NOTEBOOKS))
