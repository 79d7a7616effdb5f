"""Draw docs/images/architecture.svg from the real imports, and fill the table of docs/explanation/architecture.md.

python tools/architecture.py; the layers are those of [tool.importlinter] in pyproject.toml.
"""

import ast
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from pathlib import Path

import grimp
import numpy as np
from sklearn.isotonic import isotonic_regression

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "unshuffle"
PICTURE = ROOT / "docs" / "images" / "architecture.svg"
PAGE = ROOT / "docs" / "explanation" / "architecture.md"
BEGIN, END = "<!-- begin: written by tools/architecture.py -->", "<!-- end -->"
BOX_WIDTH, BOX_HEIGHT, ROW_HEIGHT = 138, 36, 70
GAP, LANE = 26, 26
"""Horizontal space between boxes, and the width of an arrow that passes a row."""
MARGIN, HEADER, PORT = 30, 58, 14
SWEEPS = 24
COLOURS = {"package": ("#dbe9f6", "#2f6ea5"), "module": ("#f3ecdc", "#a07c2c")}
"""Fill and outline."""

Imports = dict[str, set[str]]


@dataclass(frozen=True)
class Part:
    """A package or a top-level module."""

    name: str
    kind: str
    summary: str


def main() -> None:
    """Write the picture and the table."""
    layers = read_layers()
    names = [name for layer in layers for name in layer]
    parts = {name: read_part(name) for name in names}
    PICTURE.write_text(draw(layers, parts, transitive_reduction(direct_imports(names))))
    PAGE.write_text(with_table(PAGE.read_text(), table(parts.values())))
    print(f"{PICTURE}\n{PAGE}")


def read_layers() -> list[list[str]]:
    """Return the layers from the highest to the lowest, without `__main__`."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (contract,) = [contract for contract in settings["contracts"] if contract["type"] == "layers"]
    layers = [[name.strip() for name in layer.split("|")] for layer in contract["layers"]]
    return [layer for layer in layers if layer != ["__main__"]]


def read_part(name: str) -> Part:
    """Return the docstring's first sentence of a package or module."""
    package = SOURCE / name
    if package.is_dir():
        main_file, kind = package / "__init__.py", "package"
    else:
        main_file, kind = SOURCE / f"{name}.py", "module"
    docstring = ast.get_docstring(ast.parse(main_file.read_text())) or ""
    summary = docstring.split("\n\n")[0].replace("\n", " ")
    return Part(name, kind, summary)


def direct_imports(names: Iterable[str]) -> Imports:
    """Return for each name the others that its modules import, also inside functions."""
    graph = grimp.build_graph("unshuffle", cache_dir=None, exclude_type_checking_imports=True)
    imports: Imports = {name: set() for name in names}
    for importer in graph.modules:
        for imported in graph.find_modules_directly_imported_by(importer):
            source, target = ((*module.split("."), "")[1] for module in (importer, imported))
            if source != target and source in imports and target in imports:
                imports[source].add(target)
    return imports


def transitive_reduction(imports: Imports) -> Imports:
    """Drop the imports that follow from others."""
    reachable: Imports = {}

    def reach(name: str) -> set[str]:
        if name not in reachable:
            reachable[name] = set().union(*({target} | reach(target) for target in imports[name]))
        return reachable[name]

    return {
        name: {target for target in targets if not any(target in reach(other) for other in targets - {target})}
        for name, targets in imports.items()
    }


# The layout is Sugiyama's: an arrow that passes a row has a lane there, named by its ends; the rows are sorted by the
# mean position of their neighbours, and then moved towards them.


def draw(layers: Sequence[Sequence[str]], parts: Mapping[str, Part], imports: Imports) -> str:
    """Return the SVG."""
    arrows = [lanes(layers, name, target) for name in parts for target in sorted(imports[name])]
    rows = place_in_rows(layers, arrows)
    x = coordinates(rows, arrows)
    left = min(x[name] - BOX_WIDTH / 2 for name in parts) - MARGIN
    right = max([x[name] + BOX_WIDTH / 2 for name in parts] + [x[node] for row in rows for node in row]) + MARGIN
    y = {node: HEADER + BOX_HEIGHT / 2 + ROW_HEIGHT * number for number, row in enumerate(rows) for node in row}
    width, height = round(right - left), HEADER + ROW_HEIGHT * (len(rows) - 1) + BOX_HEIGHT + MARGIN
    x = {node: round(value - left, 1) for node, value in x.items()}
    boxes = [box(part, x[name], y[name]) for name, part in parts.items()]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            'font-family="system-ui, sans-serif" text-anchor="middle">',
            "<title>The packages of unshuffle and their imports</title>",
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
            'orient="auto"><path d="M0 0.5 L8 4 L0 7.5 z" fill="#555"/></marker></defs>',
            f'<rect width="{width}" height="{height}" rx="8" fill="#fff"/>',
            *legend(),
            *(arrow(path, x, y, arrows) for path in arrows),
            *boxes,
            "</svg>\n",
        ]
    )


def lanes(layers: Sequence[Sequence[str]], source: str, target: str) -> list[str]:
    """Return the nodes of an arrow: its ends, and a lane in each row that it passes."""
    first, last = (next(n for n, layer in enumerate(layers) if name in layer) for name in (source, target))
    return [source, *(f"{source}>{target}@{row}" for row in range(first + 1, last)), target]


def neighbours(arrows: Iterable[Sequence[str]]) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Return the nodes above and below each node."""
    above: dict[str, list[str]] = {}
    below: dict[str, list[str]] = {}
    for path in arrows:
        for upper, lower in pairwise(path):
            above.setdefault(lower, []).append(upper)
            below.setdefault(upper, []).append(lower)
    return above, below


def place_in_rows(layers: Sequence[Sequence[str]], arrows: Sequence[Sequence[str]]) -> list[list[str]]:
    """Return the boxes and lanes of each row, sorted so that few arrows cross."""
    rows = [list(layer) for layer in layers]
    for path in arrows:
        for node in path[1:-1]:
            rows[int(node.rpartition("@")[2])].append(node)
    best, fewest = rows, crossings(rows, arrows)
    for sweep in range(SWEEPS):
        related = neighbours(arrows)[sweep % 2]
        position = {node: (n + 0.5) / len(row) for row in rows for n, node in enumerate(row)}
        rows = [list(row) for row in rows]
        for row in rows if sweep % 2 == 0 else reversed(rows):
            row.sort(key=lambda node: mean(position, related.get(node, [node])))
            position |= {node: (n + 0.5) / len(row) for n, node in enumerate(row)}
        if (count := crossings(rows, arrows)) < fewest:
            best, fewest = rows, count
    return best


def mean(position: Mapping[str, float], nodes: Sequence[str]) -> float:
    """Return the mean position of some nodes."""
    return sum(position[node] for node in nodes) / len(nodes)


def crossings(rows: Sequence[Sequence[str]], arrows: Sequence[Sequence[str]]) -> int:
    """Return how many pairs of arrows cross."""
    position = {node: n for row in rows for n, node in enumerate(row)}
    number = {node: n for n, row in enumerate(rows) for node in row}
    steps = [step for path in arrows for step in pairwise(path)]
    return sum(
        (position[a] - position[c]) * (position[b] - position[d]) < 0
        for n, (a, b) in enumerate(steps)
        for c, d in steps[:n]
        if number[a] == number[c]
    )


def coordinates(rows: Sequence[Sequence[str]], arrows: Sequence[Sequence[str]]) -> dict[str, float]:
    """Return the horizontal centres: as near to the neighbours as the others of the row allow."""
    offsets = [np.cumsum([0.0, *(distance(left, right) for left, right in pairwise(row))]) for row in rows]
    x = {
        node: float(offset - row_offsets.mean())
        for row, row_offsets in zip(rows, offsets, strict=True)
        for node, offset in zip(row, row_offsets, strict=True)
    }
    above, below = neighbours(arrows)
    for _ in range(SWEEPS):
        for row, row_offsets in zip(rows, offsets, strict=True):
            wanted = [mean(x, above.get(node, []) + below.get(node, []) or [node]) for node in row]
            placed = isotonic_regression(np.array(wanted) - row_offsets) + row_offsets
            x |= dict(zip(row, map(float, placed), strict=True))
    return x


def distance(left: str, right: str) -> float:
    """Return the least distance between the centres of two neighbours in a row."""
    widths = [LANE if "@" in node else BOX_WIDTH for node in (left, right)]
    return sum(widths) / 2 + (0 if all("@" in node for node in (left, right)) else GAP)


def arrow(path: Sequence[str], x: Mapping[str, float], y: Mapping[str, float], arrows: Sequence[Sequence[str]]) -> str:
    """Return the curve of an import, through its lanes."""
    start = x[path[0]] + port(path, [other for other in arrows if other[0] == path[0]], x, 1)
    end = x[path[-1]] + port(path, [other for other in arrows if other[-1] == path[-1]], x, -2)
    points = [(start, y[path[0]] + BOX_HEIGHT / 2)]
    for node in path[1:-1]:
        points += [(x[node], y[node] - BOX_HEIGHT / 2), (x[node], y[node] + BOX_HEIGHT / 2)]
    points.append((end, y[path[-1]] - BOX_HEIGHT / 2))
    curve = f"M{points[0][0]:.1f} {points[0][1]:.1f}"
    for (x1, y1), (x2, y2) in pairwise(points):
        middle = (y1 + y2) / 2
        curve += f" C{x1:.1f} {middle:.1f} {x2:.1f} {middle:.1f} {x2:.1f} {y2:.1f}"
    return f'<path d="{curve}" fill="none" stroke="#555" stroke-width="1.4" marker-end="url(#head)"/>'


def port(path: Sequence[str], siblings: list[Sequence[str]], x: Mapping[str, float], node: int) -> float:
    """Return where an arrow leaves or enters its box, so that siblings do not cross."""
    siblings = sorted(siblings, key=lambda sibling: x[sibling[node]])
    return PORT * (siblings.index(path) - (len(siblings) - 1) / 2)


def box(part: Part, x: float, y: float) -> str:
    """Return the box of a part, with its name."""
    fill, outline = COLOURS[part.kind]
    return (
        f'<rect x="{x - BOX_WIDTH / 2:.1f}" y="{y - BOX_HEIGHT / 2:.1f}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" '
        f'rx="6" fill="{fill}" stroke="{outline}"><title>{escape(part.summary)}</title></rect>'
        f'<text x="{x:.1f}" y="{y + 5:.1f}" font-size="15" font-weight="600" fill="#111">{part.name}</text>'
    )


def legend() -> list[str]:
    """Return the legend above the boxes."""
    fills = {kind: f'fill="{fill}" stroke="{outline}"' for kind, (fill, outline) in COLOURS.items()}
    return [
        '<g font-size="13" fill="#333" text-anchor="start">',
        f'<rect x="{MARGIN}" y="18" width="16" height="16" rx="3" {fills["package"]}/>',
        f'<rect x="{MARGIN + 100}" y="18" width="16" height="16" rx="3" {fills["module"]}/>',
        f'<text x="{MARGIN + 24}" y="31">package</text><text x="{MARGIN + 124}" y="31">module</text>',
        '<path d="M226 26 H256" stroke="#555" stroke-width="1.4" marker-end="url(#head)"/>',
        '<text x="264" y="31">imports (those that follow from others are not drawn)</text>',
        "</g>",
    ]


def table(parts: Iterable[Part]) -> str:
    """Return the Markdown table of packages and modules, from the highest layer to the lowest."""
    rows = [f"| `{part.name}{'/' if part.kind == 'package' else '.py'}` | {part.summary} |" for part in parts]
    return "\n".join(["| part | what it holds |", "|---|---|", *rows])


def with_table(page: str, text: str) -> str:
    """Return the page with the text between the markers."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{text}\n{END}{after}"


if __name__ == "__main__":
    main()
