"""Make the pictures of the board for the documents: `python -m board.screenshots`, in `tests`."""

from pathlib import Path

import httpx
from redis import Redis
from support.board_parts import history, serving, summed
from support.browser import Browser
from support.processes import wait_until

from worker.base.embedded import EmbeddedRedis

IMAGES = Path(__file__).parents[3] / "docs" / "images"
PREFIX = "tracejudge"


def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    with EmbeddedRedis() as server, Redis.from_url(server.url) as redis:
        history(redis, PREFIX)
        with summed(redis, server.url, PREFIX), serving(server.url, PREFIX) as url, Browser() as browser:
            wait_until(lambda: "got worse" in httpx.get(url).text, what="the overview")
            listed = httpx.get(f"{url}/verdicts?outcome=failed&judge=facts_grounding&service=support-bot").text
            verdict = listed.split('href="/verdicts/')[1].split('"')[0]
            pages = {"overview": "/", "verdict": f"/verdicts/{verdict}", "labels": "/labels?judge=facts_grounding"}
            for width, height in ((1280, 900), (390, 844)):
                browser.resize(width, height)
                for name, path in pages.items():
                    browser.open(url + path)
                    browser.screenshot(IMAGES / f"board-{name}-{width}.png")


if __name__ == "__main__":
    main()
