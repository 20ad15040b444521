"""An example provider of judge models in one file: its model repeats the name it was given."""

from collections.abc import Mapping
from typing import Final

from judges.core.model import ChatRequest, ChatResponse, ModelSettings
from judges.models.provider import ModelSettingsError, ProbeRequest, Provider


class EchoModel:
    """Answers every question with yes."""

    def __init__(self, settings: ModelSettings) -> None:
        self.settings = settings

    async def complete(self, request: ChatRequest) -> ChatResponse:
        """Answer in the form of the judges with yes and no."""
        assert request.messages
        return ChatResponse('{"rationale": "as always", "result": "yes"}', model=self.settings.model)

    async def aclose(self) -> None:
        """Release nothing."""


def check(settings: ModelSettings) -> None:
    """Require the name of a model."""
    if not settings.model:
        raise ModelSettingsError("model: name the echo")


def make(settings: ModelSettings, _environment: Mapping[str, str], _proxy: str | None) -> EchoModel:
    """Make the model of checked settings."""
    return EchoModel(settings)


def probe(settings: ModelSettings, key: str | None) -> ProbeRequest:
    """Make the request that lists models."""
    return ProbeRequest(f"{settings.base_url}/echoes", {"x-echo-key": key or ""})


ROW: Final = Provider(__name__, has_check=True, has_probe=True)
"""Its row in the registry."""
