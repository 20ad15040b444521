"""Published template files: YAML with a prompt, its variables, and metadata.

The format is that of Hugging Face's prompt-templates: `prompt: {template, template_variables, metadata,
client_parameters, custom_data}`. The template is a text or a list of chat messages, with variables as `{{ name }}`.

Nothing in a file is executed. It is read as texts, lists and tables only, without tags and aliases, and a variable is a
bare name, without filters, attributes and statements. ``metadata`` is only displayed. ``client_parameters`` and
``custom_data`` are ignored: `[models.*]` configures the requests.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, NamedTuple

import yaml

from judges.core.prompt import neutralise
from judges.custom.definition import listed, short
from judges.parsing.answer import encodable

_MAX_DEPTH: Final = 20
_ROLES: Final = ("system", "developer", "user", "assistant")
# Without braces inside, so that the search stays linear for thousands of open ones.
_PLACEHOLDER: Final = re.compile(r"\{\{([^{}]*)\}\}")
_NAME: Final = re.compile(r"\s*([^\W\d]\w*)\s*")
_STATEMENT: Final = re.compile(r"\{[%#]")
_EMPTY: Final = frozenset({"", "~", "null"})
_PLAIN_TAGS: Final = frozenset({None, "!", "tag:yaml.org,2002:str"})


class TemplateError(ValueError):
    """A file is no usable template; the message names the key and the fix, in one line."""


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
        """The description on one printable line; None where there is none."""
        found = self.metadata.get("description")
        return " ".join(neutralise(found).split()) or None if isinstance(found, str) else None


@lru_cache(maxsize=256)
def parse(text: str) -> TemplateFile:
    """Read a template file, or raise ``TemplateError``."""
    prompt = _table(_table(_loaded(text), "the file").get("prompt"), "prompt")
    parts = _parts(prompt.get("template", ""))
    variables = _variables(prompt.get("template_variables", ""))
    used = set[str]().union(*(_used(part.text) for part in parts))
    undeclared = sorted(used - set(variables))
    if undeclared:
        fix = "declare it in prompt.template_variables, or take it out"
        raise TemplateError(f"prompt.template: uses {short(undeclared[0])}, which is not declared; {fix}")
    # In another form a model would see `{answer}` without a value.
    unused = [name for name in variables if name not in used]
    single = [name for name in unused if any(f"{{{name}}}" in part.text for part in parts)]
    if single:
        raise TemplateError(f"prompt.template: writes {listed(single)} in single braces; write {{{{ {single[0]} }}}}")
    metadata = prompt.get("metadata", "")
    if isinstance(metadata, str) and metadata in _EMPTY:
        metadata = {}
    if not isinstance(metadata, dict):
        raise TemplateError("prompt.metadata: must be a table, as {description: ..., version: ...}")
    return TemplateFile(parts, variables, metadata)


def fill(text: str, values: Mapping[str, str]) -> str:
    """Insert values for the variables of a checked text."""
    return _PLACEHOLDER.sub(lambda found: values[found[1].strip()], text)


class _Loader(yaml.SafeLoader):
    """Builds texts, lists and tables only: a date or a number stays a text."""

    yaml_implicit_resolvers: dict[Any, Any] = {}  # noqa: RUF012 - so declared by the library
    _depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Reject tags, and what lets a short text grow without bound: aliases and deep nesting."""
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent):
            raise _refusal("an alias is not allowed", event)
        if getattr(event, "tag", None) not in _PLAIN_TAGS:
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
        found = super().construct_mapping(node, deep=deep)
        if len(found) < len(node.value):
            raise _refusal("a key stands twice in one table", node)
        return found


def _refusal(problem: str, at: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=at.start_mark)


def _loaded(text: str) -> object:
    try:
        return yaml.load(text, _Loader)  # noqa: S506 - a safe loader, and less
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = "" if mark is None else f"line {mark.line + 1}: "
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "it cannot be read"
        raise TemplateError(f"{line}is not YAML as it is taken here: {problem}; fix it there") from error
    except (OverflowError, ValueError) as error:
        # The library converts escapes and versions to numbers without checking their size.
        problem = "a number in an escape or a version is too large"
        raise TemplateError(f"is not YAML as it is taken here: {problem}; fix it there") from error


def _table(value: object, key: str) -> Mapping[str, object]:
    if isinstance(value, dict):
        return value
    if key == "prompt" and value is None:
        raise TemplateError("prompt: is missing; write the template under prompt.template")
    raise TemplateError(f"{key}: must be a table, as prompt: {{template: ..., template_variables: [...]}}")


def _parts(template: object) -> tuple[Part, ...]:
    key = "prompt.template"
    if isinstance(template, str):
        parts: tuple[Part, ...] = (Part(None, template.strip()),)
    elif isinstance(template, list):
        parts = tuple(_message(message, f"{key}[{number}]") for number, message in enumerate(template))
    else:
        raise TemplateError(f"{key}: must be a text, or a list of messages with role and content")
    if not any(part.text for part in parts):
        raise TemplateError(f"{key}: is empty; write what the judge is to do")
    return parts


def _message(message: object, key: str) -> Part:
    if not isinstance(message, dict) or not {"role", "content"} <= message.keys():
        raise TemplateError(f"{key}: must be a message with role and content")
    role, content = message["role"], message["content"]
    if role not in _ROLES:
        raise TemplateError(f"{key}.role: must be one of {', '.join(_ROLES)}")
    if not isinstance(content, str):
        raise TemplateError(f"{key}.content: must be a text; other kinds of content are not sent")
    return Part(role, content.strip())


def _variables(declared: object) -> tuple[str, ...]:
    key = "prompt.template_variables"
    if not isinstance(declared, list) or not declared or not all(isinstance(name, str) for name in declared):
        raise TemplateError(f"{key}: must be a list of the variables, in the order they are shown")
    if len(set(declared)) < len(declared):
        raise TemplateError(f"{key}: holds a variable twice; name each once")
    return tuple(declared)


def _used(text: str) -> Iterator[str]:
    """Yield the variables of a text, and reject everything else that a template engine would execute."""
    if (statement := _STATEMENT.search(text)) is not None:
        fix = "write {{ name }} alone, nothing in a template is executed"
        raise TemplateError(f"prompt.template: holds a statement or comment ({statement[0]}); {fix}")
    for found in _PLACEHOLDER.finditer(text):
        name = _NAME.fullmatch(found[1])
        if name is None:
            fix = "write {{ name }} alone, nothing in a template is executed"
            raise TemplateError(f"prompt.template: {short(found[0])} is more than a variable; {fix}")
        yield name[1]
    if "{{" in _PLACEHOLDER.sub("", text):
        raise TemplateError("prompt.template: {{ stands before no name that }} closes; write {{ name }}")
