"""Images of a trace: what a model gets of them, and what a verdict says of those that it did not see."""

from collections.abc import Sequence
from typing import Any

from judge_traces import yes_no_text
from model_client import Client
from support.endpoint import ChatEndpoint
from support.messages import MessagesEndpoint
from support.replies import Behaviour, answers, failing

from judges.core.model import ModelSettings
from judges.core.verdict import Assessment
from judges.models.registry import build
from judges.registry import catalogue
from tracejudge import Message, Trace
from tracejudge.content.convert import Notes, convert_trace

SHOP, MAP = "https://shop.example/a.png?x=1", "https://maps.example:8443/b"
INWARDS = ("https://localhost/a", "https://10.0.0.1/a", "https://2130706433/a", "https://u:p@shop.example/a")
TRACE = Trace(
    trace_id="1",
    service="s",
    input=f"What is on these?\n[image {SHOP}]\n[image {MAP}]\n[image {SHOP}]\n[image 165 kB]",
    output="A parcel.",
    messages=[Message("user", "[image]\n[image https://u:[redacted password]@h.example/a] [image of a cat] [audio]")],
)


def shown(question: str, answer: str) -> Trace:
    return Trace(trace_id="1", service="s", input=question, output=answer)


YES = answers(yes_no_text("yes", "A parcel is on both."))


def run(server: ChatEndpoint, trace: Trace, behaviour: Behaviour = YES, **fields: Any) -> Assessment:
    server.forget()
    server.behaviour = behaviour
    model = build(ModelSettings(base_url=server.base_url, model="m", **fields), {})
    return Client(model).judge(catalogue()["relevance_to_query"], trace)


def addresses(body: dict[str, Any]) -> Sequence[str]:
    """Return the addresses of the images in the last message, which come after its text."""
    content = body["messages"][-1]["content"]
    if isinstance(content, str):
        return []
    text, *images = content
    assert f"[image {SHOP}]" in text["text"]
    sources = [image["image_url"] if image["type"] == "image_url" else image["source"] for image in images]
    assert all(source.get("type", "url") == "url" for source in sources)
    return [source["url"] for source in sources]


def test_addresses_are_passed_on_where_the_model_takes_them_and_the_others_are_counted() -> None:
    with ChatEndpoint() as chats, MessagesEndpoint() as messages:
        for provider, server in (("openai", chats), ("anthropic", messages)):
            for images, passed, count in ((None, [], 6), ("mark", [], 6), ("url", [SHOP, MAP], 3)):
                assessment = run(server, TRACE, provider=provider, images=images)
                (call,) = server.calls
                assert addresses(call.body) == passed, (provider, images)
                assert assessment.details == {"images_left_out": count}, (provider, images)
                assert assessment.outcome == "scored"


def test_nothing_leads_inwards_and_no_request_has_more_than_twenty() -> None:
    inwards = shown("\n".join(f"[image {url}]" for url in INWARDS), "o")
    many = shown("".join(f"[image {SHOP}{n}]" for n in range(25)), f"[image {SHOP}]")
    none = shown("[imagine] [image", "[image of a cat]")
    with ChatEndpoint() as server:
        for trace, left_out in ((inwards, len(INWARDS)), (many, 6), (none, None)):
            assessment = run(server, trace, images="url")
            assert assessment.details.get("images_left_out") == left_out, trace.input
            assert str(server.calls[0].body).count("'image_url': {") == (20 if trace is many else 0)


def test_images_that_an_endpoint_refuses_are_left_out_and_its_words_are_kept() -> None:
    def refusing(call: Any) -> Any:
        has_images = isinstance(call.body["messages"][-1]["content"], list)
        return failing(400, "the image is gone") if has_images else YES

    with ChatEndpoint() as server:
        assessment = run(server, TRACE, refusing, images="url")
        assert [len(addresses(call.body)) for call in server.calls][-1] == 0
        assert assessment.details == {"images_refused": "the image is gone", "images_left_out": 6}
        assert {call.status for call in assessment.calls} == {"bad_request", "ok"}
        assert run(server, shown("Hello?", "o"), failing(400, "no"), images="url").reason == "bad_request"


def test_no_form_of_an_image_brings_base64_into_a_trace_and_its_address_is_kept() -> None:
    data = "data:image/png;base64," + "aGk=" * 1_000
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in (SHOP, data, "http://h/a.png")]
    fields = convert_trace({"input": [{"type": "text", "text": "Look"}, *parts], "output": "o"}, Notes())
    assert fields["input"] == f"Look\n[image {SHOP}]\n[image 3 kB]\n[image]"
