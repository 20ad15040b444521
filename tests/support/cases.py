"""Loops of cases inside one test: every case runs, and the failure names each one that failed.

``@each_case`` takes the arguments of ``@pytest.mark.parametrize``. One test with a thousand cases is collected at once,
where a thousand tests take each process of the suite seconds before the first one runs. Use ``parametrize`` for what is
worth selecting and distributing by itself (a judge, a server), ``each_case`` for the inputs.
"""

import functools
import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

__all__ = ["CasesFailedError", "each_case", "in_parts", "refuse_shared_state"]

_MAX_NAME = 100
_RENEWED = {"monkeypatch", "tmp_path", "capsys"}
_WITHOUT_STATE = {"span", "run"}


class CasesFailedError(ExceptionGroup):
    """Failures of the cases of one test, each noted with the name of its case."""

    def derive(self, excs: Sequence[Exception]) -> "CasesFailedError":
        return CasesFailedError(self.message, excs)


def each_case(
    names: str | Sequence[str],
    values: Iterable[Any],
    *,
    ids: Iterable[str] | Callable[[Any], str] | None = None,
    share: str | None = None,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test once for each of the values, all inside one test.

    Each case has its own ``monkeypatch``, ``tmp_path`` and ``capsys`` as far as the test itself asks for them.

    Args:
        names: The arguments that a case fills, as ``parametrize`` takes them.
        values: One value a case, or a sequence of as many values as there are names.
        ids: Names of the cases, or a function that makes one of a value.
        share: A parametrised argument, which the test does not take: with (1, 5) the second of each five cases runs.
    """
    arguments = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    cases = _named(arguments, list(values), ids)
    if not cases:
        raise ValueError(f"no cases for {', '.join(arguments)}: the test would check nothing")

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(test)
        asked = set(signature.parameters)
        if missing := set(arguments) - asked:
            raise TypeError(f"{test.__qualname__} takes no {', '.join(sorted(missing))}")

        @functools.wraps(test)
        def loop(*positional: Any, **fixtures: Any) -> None:
            failed: list[Exception] = []
            first, step = fixtures.pop(share) if share else (0, 1)
            for number, (name, case) in list(enumerate(cases.items()))[first::step]:
                with _collected(failed, name), _renewed(fixtures, number) as own:
                    test(*positional, **own, **dict(zip(arguments, case, strict=True)))
            if failed:
                names_of_failed = "\n  ".join(error.__notes__[-1] for error in failed)
                message = f"{len(failed)} of {len(cases)} cases failed:\n  {names_of_failed}\n"
                raise CasesFailedError(message, failed)

        rest = [parameter for name, parameter in signature.parameters.items() if name not in arguments]
        if share:
            rest.append(inspect.Parameter(share, inspect.Parameter.KEYWORD_ONLY))
        loop.__signature__ = signature.replace(parameters=rest)  # type: ignore[attr-defined]
        loop.loop_cases = (arguments, list(cases.values()))  # type: ignore[attr-defined]
        return loop

    return decorate


def in_parts(count: int, *, rarely: Collection[int] = ()) -> pytest.MarkDecorator:
    """Run one in so many cases of ``each_case(..., share="share")`` in `make test`, and the others in CI only.

    Args:
        count: Number of parts; in each a judge or family of a product of two tables meets other cases.
        rarely: Parts that only `make test-long` runs.
    """
    tiers = [pytest.mark.endurance if part in rarely else pytest.mark.slow for part in range(count)]
    others = [pytest.param((part, count), marks=tiers[part]("the other cases")) for part in range(1, count)]
    return pytest.mark.parametrize("share", [(0, count), *others])


def refuse_shared_state(items: Iterable[pytest.Item]) -> None:
    """Refuse tests whose cases would share a fixture that must be new for each test.

    Raises:
        pytest.UsageError: For the first such test.
    """
    for item in items:
        if not isinstance(item, pytest.Function) or not hasattr(item.function, "loop_cases"):
            continue
        fixtures = item._fixtureinfo.name2fixturedefs
        for name in set(inspect.signature(item.function).parameters) - _RENEWED - _WITHOUT_STATE:
            definitions = fixtures.get(name, ())
            if definitions and definitions[-1].scope == "function" and not _is_argument(definitions[-1]):
                raise pytest.UsageError(f"{item.nodeid}: its cases would share {name}; parametrise the test instead")


def _is_argument(definition: Any) -> bool:
    """Distinguish values of ``parametrize`` from real fixtures: pytest wraps both in the same way."""
    return bool(definition.func.__module__.startswith("_pytest."))


def _named(
    arguments: list[str], values: list[Any], ids: Iterable[str] | Callable[[Any], str] | None
) -> dict[str, Sequence[Any]]:
    identifiers = list(ids) if ids is not None and not callable(ids) else None
    if identifiers is not None and len(identifiers) != len(values):
        raise ValueError(f"{len(values)} cases for {', '.join(arguments)}, but {len(identifiers)} ids")
    cases: dict[str, Sequence[Any]] = {}
    for number, value in enumerate(values):
        case, name = _unpacked(arguments, value)
        if identifiers is not None:
            name = identifiers[number]
        elif callable(ids):
            name = ids(case[0])
        name = ascii(name)[1:-1] if name is not None else _described(arguments, case)
        cases[name if name not in cases else f"{name} ({number})"] = case
    return cases


def _unpacked(arguments: list[str], value: Any) -> tuple[Sequence[Any], str | None]:
    if hasattr(value, "marks") and hasattr(value, "values") and hasattr(value, "id"):  # pytest.param
        if value.marks:
            raise ValueError(f"a case of {', '.join(arguments)} cannot have marks: parametrise the test")
        case, name = value.values, value.id
    else:
        case, name = ((value,) if len(arguments) == 1 else value), None
    if len(case) != len(arguments):
        raise ValueError(f"{len(case)} values for {', '.join(arguments)}: {_described(arguments, case)}")
    return case, name if isinstance(name, str) else None


def _described(arguments: Sequence[str], case: Sequence[Any]) -> str:
    shown = ", ".join(f"{name}={_shown(value)}" for name, value in zip(arguments, case, strict=False))
    return shown if len(shown) <= 2 * _MAX_NAME else f"{shown[: 2 * _MAX_NAME]}..."


def _shown(value: Any) -> str:
    try:
        shown = ascii(value)
    except Exception as error:  # noqa: BLE001 - hostile values are what tests are about
        shown = f"{type(value).__name__} whose repr raises {type(error).__name__}"
    return shown if len(shown) <= _MAX_NAME else f"{shown[:_MAX_NAME]}..."


@contextmanager
def _renewed(fixtures: dict[str, Any], number: int) -> Iterator[dict[str, Any]]:
    """Renew what a case may change: patches that end with it, a folder of its own, no captured output."""
    own = dict(fixtures)
    if "tmp_path" in own:
        own["tmp_path"] = own["tmp_path"] / str(number)
        own["tmp_path"].mkdir()
    if "capsys" in own:
        own["capsys"].readouterr()
    if "monkeypatch" in own:
        with own["monkeypatch"].context() as patch:
            yield {**own, "monkeypatch": patch}
    else:
        yield own


@contextmanager
def _collected(failed: list[Exception], name: str) -> Iterator[None]:
    """Collect whatever a case raises, noted with its name, so that the other cases run."""
    try:
        yield
    except pytest.skip.Exception as skipped:
        failed.append(AssertionError(f"a case cannot be skipped: {skipped}"))
    except pytest.fail.Exception as failure:
        failed.append(AssertionError(str(failure)))
    except Exception as error:  # noqa: BLE001 - see above
        failed.append(error)
    else:
        return
    failed[-1].add_note(name)
