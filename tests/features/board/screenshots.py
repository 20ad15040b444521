"""Make the pictures of the board for the documents from a demo: `python -m features.board.screenshots`, in `tests`."""

import tempfile
from pathlib import Path

import httpx
from support.browser import Browser
from support.processes import Program

IMAGES = Path(__file__).parents[3] / "docs" / "images"


def main() -> None:
    demo = ("-m", "worker.cli", "demo", "--keep")
    with tempfile.TemporaryDirectory() as folder, Browser() as browser, Program(*demo, folder=Path(folder)) as program:
        url = program.wait_for(r"board \((http://\S+)\) and worker keep running")[1].rstrip("/")
        listed = httpx.get(f"{url}/verdicts?outcome=failed&judge=groundedness&service=support-bot").text
        verdict = listed.split('href="/verdicts/')[1].split('"')[0]
        pages = {"overview": "/", "verdict": f"/verdicts/{verdict}", "labels": "/labels?judge=groundedness"}
        for width, height in ((1280, 900), (390, 844)):
            browser.resize(width, height)
            for name, path in pages.items():
                browser.open(url + path)
                browser.screenshot(IMAGES / f"board-{name}-{width}.png")


if __name__ == "__main__":
    main()
