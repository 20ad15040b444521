"""Draw the Mermaid diagrams of the pages as SVG, with npm's mermaid in Chromium; `--check` compares without either.

A picture stands in `docs/diagrams/` under the first digits of its source's hash: a changed diagram has another name,
and is drawn anew. Colours are variables of the page, with those of light pages where a page defines none.
"""

import base64
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
from html import unescape
from pathlib import Path
from typing import Final

__all__ = ["main", "picture"]

_DOCS: Final = Path(__file__).parent
_FOLDER: Final = _DOCS / "diagrams"
_VERSION: Final = "11.17.2"
_DIAGRAM: Final = re.compile(r"^```mermaid\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Mermaid computes with colours, so it gets these, and the picture the variables.
_COLOURS: Final = {
    "#e8eaf6": "var(--tj-node, #e8eaf6)",
    "#5c6bc0": "var(--tj-edge, #5c6bc0)",
    "#1a1a2e": "var(--tj-text, #1a1a2e)",
    "#f5f5f5": "var(--tj-group, #f5f5f5)",
    "#ffffff": "var(--tj-label, #ffffff)",
}
_NODE, _EDGE, _TEXT, _GROUP, _LABEL = _COLOURS
_THEME: Final = {
    "primaryColor": _NODE,
    "mainBkg": _NODE,
    "primaryBorderColor": _EDGE,
    "nodeBorder": _EDGE,
    "lineColor": _EDGE,
    "primaryTextColor": _TEXT,
    "textColor": _TEXT,
    "nodeTextColor": _TEXT,
    "titleColor": _TEXT,
    "clusterBkg": _GROUP,
    "clusterBorder": _EDGE,
    "edgeLabelBackground": _LABEL,
    "labelBackgroundColor": _LABEL,
    "fontSize": "20px",
}
_PAGE: Final = """<!doctype html><meta charset="utf-8"><body><script src="mermaid.min.js"></script><script>
const sources = SOURCES, settings = SETTINGS;
(async () => {
  mermaid.initialize(settings);
  for (const [name, source] of Object.entries(sources)) {
    const holder = document.createElement("script");
    holder.type = "text/plain"; holder.id = "svg-" + name;
    try { holder.textContent = btoa(unescape(encodeURIComponent((await mermaid.render("d" + name, source)).svg))); }
    catch (error) { holder.textContent = "failed: " + error.message; }
    document.body.append(holder);
  }
})();
</script>"""


def main() -> int:
    """Draw what is new and remove what no page shows, or with `--check` name both; 1 when something is missing."""
    sources = {_name(source): source for path in sorted(_DOCS.glob("**/*.md")) for source in _sources(path)}
    present = {path.stem for path in _FOLDER.glob("*.svg")}
    if "--check" in sys.argv[1:]:
        wrong = [f"not drawn: {name}" for name in sources.keys() - present]
        wrong += [f"in no page: {name}.svg" for name in present - sources.keys()]
        print("\n".join([*wrong, "run `make generate` and commit the result"]) if wrong else "diagrams: up to date")
        return int(bool(wrong))
    for name in present - sources.keys():
        (_FOLDER / f"{name}.svg").unlink()
    absent = {name: source for name, source in sources.items() if name not in present}
    for name, svg in (_draw(absent) if absent else {}).items():
        (_FOLDER / f"{name}.svg").write_text(f"{svg}\n", encoding="utf-8")
        print(f"wrote {name}.svg")
    return 0


def picture(block: str) -> str:
    """Return the SVG of a block of a page."""
    (source,) = _DIAGRAM.findall(block)
    return (_FOLDER / f"{_name(source)}.svg").read_text(encoding="utf-8")


def _sources(path: Path) -> list[str]:
    return _DIAGRAM.findall(path.read_text(encoding="utf-8"))


def _name(source: str) -> str:
    return hashlib.sha256(source.encode()).hexdigest()[:12]


def _draw(sources: dict[str, str]) -> dict[str, str]:
    # Labels as text and not as HTML: a picture with HTML in it is shown by browsers only.
    flat = {"htmlLabels": False, "useMaxWidth": True, "nodeSpacing": 30, "rankSpacing": 40, "padding": 10}
    settings = {"startOnLoad": False, "theme": "base", "themeVariables": _THEME, "htmlLabels": False, "flowchart": flat}
    settings |= {"fontFamily": "system-ui, sans-serif", "deterministicIds": True}
    with tempfile.TemporaryDirectory(prefix="tracejudge-diagrams-") as folder:
        page = Path(folder) / "page.html"
        (page.parent / "mermaid.min.js").write_bytes(_script())
        filled = _PAGE.replace("SOURCES", json.dumps(sources)).replace("SETTINGS", json.dumps(settings))
        page.write_text(filled, encoding="utf-8")
        options = ("--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=60000", "--dump-dom")
        command = ["chromium", *options, f"--user-data-dir={folder}/profile", page.as_uri()]
        dumped = subprocess.run(command, capture_output=True, text=True, check=True).stdout  # noqa: S603
    return {name: _svg(name, dumped) for name in sources}


def _svg(name: str, dumped: str) -> str:
    found = re.search(rf'id="svg-{name}">([^<]*)<', dumped)
    if found is None or found[1].startswith("failed"):
        sys.exit(f"diagram {name} cannot be drawn: {unescape(found[1]) if found else 'no answer from the browser'}")
    svg = base64.b64decode(found[1]).decode()
    for colour, variable in _COLOURS.items():
        svg = svg.replace(colour, variable)
    # Text is 20 px high in the drawing, so that wide ones can be read when they are made smaller; 15 px is enough.
    return re.sub(r"max-width: ([\d.]+)px", lambda width: f"max-width: {float(width[1]) * 0.75:.0f}px", svg, count=1)


def _script() -> bytes:
    """Return the script of mermaid from npm; it is loaded once into `.browser/`."""
    folder = _DOCS.parent / ".browser" / f"mermaid-{_VERSION}"
    script = folder / "package" / "dist" / "mermaid.min.js"
    if not script.exists():
        folder.mkdir(parents=True, exist_ok=True)
        pack = ["npm", "pack", "--silent", f"mermaid@{_VERSION}"]
        packed = subprocess.run(pack, cwd=folder, capture_output=True, text=True, check=True)  # noqa: S603
        shutil.unpack_archive(folder / packed.stdout.strip().splitlines()[-1], folder)
    return script.read_bytes()


if __name__ == "__main__":
    sys.exit(main())
