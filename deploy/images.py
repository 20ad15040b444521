"""Image versions: ``versions.env`` names each once, and Dockerfile, compose and chart are rewritten from it."""

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from deploy.rules.alert_settings import FOLDER

VERSIONS: Final = FOLDER / "versions.env"
USERS: Final = ("Dockerfile", "compose.yaml", "helm/tracejudge/values.yaml", "helm/tracejudge/Chart.yaml")
"""The files that name images, in lines that begin with ``FROM`` or ``image:``, and the chart's own version."""
PLATFORMS: Final = frozenset({"linux/amd64", "linux/arm64"})
_OWN: Final = "TRACEJUDGE"
_LINE: Final = re.compile(
    r"^(?P<name>[A-Z]+)=(?P<image>(?P<repository>[\w./:-]+):[\w.-]+)(?P<digest>@sha256:[0-9a-f]{64})?$"
)
_INSPECT: Final = ("docker", "buildx", "imagetools", "inspect", "--format", "{{json .Manifest}}")


class ImageError(ValueError):
    """An image is written wrong, or has no digest for all platforms."""


def read(text: str | None = None) -> dict[str, "re.Match[str]"]:
    """Read the images by name; raises ``ImageError`` unless a line is a comment or `NAME=repository:tag[@digest]`."""
    images = {}
    for line in (VERSIONS.read_text(encoding="utf-8") if text is None else text).splitlines():
        if line and not line.startswith("#"):
            match = _LINE.match(line)
            if match is None:
                raise ImageError(f"{VERSIONS.name}: write NAME=repository:tag[@sha256:digest], not {line!r}")
            images[match["name"]] = match
    return images


def rewritten(images: Mapping[str, "re.Match[str]"], folder: Path = FOLDER) -> dict[str, str]:
    """Return the text of each file that names images, with the versions of ``images``."""
    texts = {}
    for user in USERS:
        text = (folder / user).read_text(encoding="utf-8")
        for name, image in images.items():
            # Compose builds our own image, and a built image has no digest in a registry yet.
            shown = image["image"] if user == "compose.yaml" and name == _OWN else image[0].partition("=")[2]
            # The registry may be another one than before.
            former = rf"(?:\S+/)?{re.escape(image['repository'].rpartition('/')[2])}[:@]\S+"
            text = re.sub(rf"(?m)^(FROM |\s*image: ){former}", rf"\g<1>{shown}", text)
        version = images[_OWN]["image"].rpartition(":")[2]
        # Charts have semantic versions, whose pre-releases are written otherwise than Python's.
        semantic = re.sub(r"\.?(dev|a|b|rc)(\d+)$", r"-\1.\2", version)
        texts[user] = re.sub(
            r"(?m)^(version|appVersion): .*$",
            lambda match: f"{match[1]}: {semantic if match[1] == 'version' else version}",  # noqa: B023 - called now
            text,
        )
    return texts


def with_digests(text: str) -> str:
    """Return the text of ``versions.env`` with a digest for every image.

    A missing one comes from the registry; ``ImageError`` without its answer, or an image for all of ``PLATFORMS``.
    """
    for image in (image_line for image_line in read(text).values() if not image_line["digest"]):
        if image["name"] == _OWN and "/" not in image["repository"]:
            raise ImageError(f"{VERSIONS.name}: push our image and name its registry: {_OWN}=REGISTRY/{image['image']}")
        try:
            asked = subprocess.run([*_INSPECT, image["image"]], capture_output=True, text=True, check=True)  # noqa: S603
            index = msgspec.json.decode(asked.stdout)
        except (OSError, subprocess.CalledProcessError, msgspec.DecodeError) as error:
            detail = getattr(error, "stderr", "") or error
            raise ImageError(f"{image['image']}: docker buildx finds no digest: {detail}".strip()) from error
        platforms = {"{os}/{architecture}".format(**manifest["platform"]) for manifest in index.get("manifests", ())}
        if missing := PLATFORMS - platforms:
            raise ImageError(f"{image['image']}: no image for {', '.join(sorted(missing))}; build it for all platforms")
        text = text.replace(image[0], f"{image[0]}@{index['digest']}")
    return text
