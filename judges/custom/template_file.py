"""Published template files: YAML with a prompt, its variables, and metadata.

The format is that of Hugging Face's prompt-templates: `prompt: {template, template_variables, metadata,
client_parameters, custom_data}`. The template is a text or a list of chat messages, with variables as `{{ name }}`.

Nothing in a file is executed. It is read as texts, lists and tables only, without tags and aliases, and a variable is a
bare name, without filters, attributes and statements. ``metadata`` is only displayed. ``client_parameters`` and
``custom_data`` are ignored: `[models.*]` configures the requests.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple

import yaml
from msgspec import Struct

from judges.core.prompt import neutralise
from judges.custom.definition import PLACEHOLDER, DefinitionError, convert, listed, placeholders, short
from judges.parsing.answer import encodable

_MAX_DEPTH: Final = 20
_TEMPLATE: Final = "prompt.template"
_VARIABLES: Final = "prompt.template_variables"


class _Message(Struct, frozen=True):
    role: Literal["system", "developer", "user", "assistant"]
    content: str


class _Prompt(Struct, frozen=True):
    template_variables: tuple[str, ...]
    template: str | tuple[_Message, ...] = ""
    metadata: object = ""


class _File(Struct, frozen=True):
    prompt: _Prompt


class Part(NamedTuple):
    """One message of a template; a template that is a single text has no role."""

    role: str | None
    text: str


@dataclass(frozen=True)
class TemplateFile:
    """A template."""

    parts: tuple[Part, ...]  # Its messages.
    variables: tuple[str, ...]  # The declared variables, in their order.
    metadata: Mapping[str, object] = field(default_factory=dict)  # Texts, and lists and tables of texts.

    @property
    def description(self) -> str | None:
        """The description on one printable line; None if absent."""
        description = self.metadata.get("description")
        return " ".join(neutralise(description).split()) or None if isinstance(description, str) else None


@lru_cache(maxsize=256)
def parse(text: str) -> TemplateFile:
    """Read a template file, or raise ``DefinitionError``."""
    prompt = convert(_loaded(text), _File).prompt
    template, variables, metadata = prompt.template, prompt.template_variables, prompt.metadata
    messages = [(None, template)] if isinstance(template, str) else [(turn.role, turn.content) for turn in template]
    parts = tuple(Part(role, content.strip()) for role, content in messages)
    if not any(part.text for part in parts):
        raise DefinitionError(_TEMPLATE, "is empty; write what the judge is to do")
    if not variables or len(set(variables)) < len(variables):
        raise DefinitionError(_VARIABLES, "must list each variable of the template once, in the order they are shown")
    used = {name for part in parts for name in placeholders(part.text, _TEMPLATE)}
    if undeclared := sorted(used - set(variables)):
        fix = f"declare it in {_VARIABLES}, or take it out"
        raise DefinitionError(_TEMPLATE, f"uses {short(undeclared[0])}, which is not declared; {fix}")
    # In another form a model would see `{answer}` without a value.
    unused = [name for name in variables if name not in used]
    if single := [name for name in unused if any(f"{{{name}}}" in part.text for part in parts)]:
        raise DefinitionError(_TEMPLATE, f"writes {listed(single)} in single braces; write {{{{ {single[0]} }}}}")
    if isinstance(metadata, str) and metadata in {"", "~", "null"}:
        metadata = {}
    if not isinstance(metadata, dict):
        raise DefinitionError("prompt.metadata", "must be a table, as {description: ..., version: ...}")
    return TemplateFile(parts, variables, metadata)


def fill(text: str, values: Mapping[str, str]) -> str:
    """Insert values for the variables of a checked text."""
    return PLACEHOLDER.sub(lambda match: values[match[1].strip()], text)


class _Loader(yaml.SafeLoader):
    """Builds texts, lists and tables only: a date or a number stays a text."""

    yaml_implicit_resolvers: dict[Any, Any] = {}  # noqa: RUF012 - so declared by the library
    _depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Reject tags, and what lets a short text grow without bound: aliases and deep nesting."""
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent):
            raise _refusal("an alias is not allowed", event)
        if getattr(event, "tag", None) not in {None, "!", "tag:yaml.org,2002:str"}:
            raise _refusal("a tag is not allowed", event)
        if self._depth == _MAX_DEPTH:
            raise _refusal(f"it is nested deeper than {_MAX_DEPTH}", event)
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_scalar(self, node: Any) -> Any:
        """Join two halves of a character, as JSON escapes it; a half alone could never be written again."""
        return encodable(super().construct_scalar(node))

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:  # noqa: FBT001, FBT002 - the library's signature
        """Reject duplicate keys, of which the library would use the last."""
        mapping = super().construct_mapping(node, deep=deep)
        if len(mapping) < len(node.value):
            raise _refusal("a key stands twice in one table", node)
        return mapping


def _refusal(problem: str, at: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=at.start_mark)


def _loaded(text: str) -> object:
    try:
        return yaml.load(text, _Loader)  # noqa: S506 - a safe loader, and less
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = "the file" if mark is None else f"line {mark.line + 1}"
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "it cannot be read"
        raise DefinitionError(place, f"is not YAML as it is taken here: {problem}; fix it there") from error
    except (OverflowError, ValueError) as error:
        # The library converts escapes and versions to numbers without checking their size.
        problem = "a number in an escape or a version is too large"
        raise DefinitionError("the file", f"is not YAML as it is taken here: {problem}; fix it there") from error
