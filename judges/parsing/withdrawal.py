"""Whether the text around an answer takes it back, by words of withdrawal or by stating another of the values offered.

Reasons may use the same words: a value that a sentence says of the material is no verdict. A verdict is stated by a
sentence about the verdict ("The score is 3"), or by one that says nothing else ("So no."). Behind an answer, if
reasons are rare, a short line with any label before a word that was offered states it as well.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Final, Literal

from judges.parsing.layouts import spelled

Place = Literal["before", "behind", "reasons"]
"""The place of a text: before an answer, behind it, or as the reasons for an answer that is no object."""

_MAX_CHARS: Final = 20_000
# Each begins a sentence that takes back the text before it.
_WORDS: Final = (
    r"wait(?=\W*$|\s*[^\w\s])", "correction", r"corrected \w+", "scratch that", "my mistake", "hold on",
    "hmm+", "oops",
    "on (?:second thoughts?|(?:closer )?(?:reflection|inspection))", "i was (?:wrong|mistaken)", "i made a mistake",
    "i (?:must|have to|need to|should) correct", "i (?:changed?|withdraw|revise|retract)",
    "let me (?:correct|revise|reconsider)",
    r"moment(?=\s*[^\w\s])", "korrektur", "doch nicht", "ich (?:korrigiere|muss mich korrigieren|ziehe)",
    "ich habe mich (?:geirrt|vertan)", "je retire", "attendez", "je (?:me )?corrige", r"je me suis tromp\w+",
    "esper[ea]", "correcci\u00f3n", "me corrijo", r"me (?:he )?equivo\w+", "eu errei", "me enganei",
    "corre\u00e7\u00e3o", "подождите", "исправление", "поправка", r"я ошиб\w+",
    "انتظر", "تصحيح", "لقد أخطأت", "रुकिए", "सुधार", "मुझसे गलती",
)  # fmt: skip
# In scripts where no blank ends a word.
_UNDIVIDED: Final = ("等等", "等一下", "更正", "不对", "修正", "訂正", "待って", "いや", "間違", "我错了", "我弄错了")
# Reasons use these too: they take back an answer before them only if a comma follows.
_TURNS: Final = ("actually", "en fait", "en realidad", "na verdade", "на самом деле")
_START: Final = r"""(?:\A|[.!?:\n\u3002\uff01\uff1f])[\s*_>"'-]{0,8}(?:(?:but|no|oh|so|however|hm+),? )?"""
_WITHDRAWS: Final = re.compile(rf"{_START}(?:(?:{'|'.join(_WORDS)})(?!\w)|{'|'.join(_UNDIVIDED)})", re.IGNORECASE)
_TURN: Final = re.compile(rf"{_START}(?:{'|'.join(_TURNS)})\s*[,:\u2013\u2014-]", re.IGNORECASE)
_ABOVE: Final = (
    r"(?:\w+ ){0,3}?(?:above|answer|verdict|result|score|rating|grade|object|json|that|this|it|previous|first)"
)
# In any place, unless the text is itself the reasons, which may speak of what an answer should be.
_PHRASES: Final = re.compile(
    r"should (?:rather )?(?:be|have been|read)\b|do(?:es)? ?n[o']t stand\b|take \S{1,10}(?: \S{1,20}){0,2} back\b"
    rf"|(?:disregard|ignore) {_ABOVE}\b|changed my mind\b|i was wrong\b"
    r"|sollte .{1,40}(?:sein|lauten)\b|devrait \u00eatre\b|deber\u00eda ser\b|deveria ser\b"
    "|应该是|应为|应改为|должно быть",
    re.IGNORECASE,
)

# Words for the verdict, and those that are one only outside of reasons or with an adjective.
_NAMES: Final = (
    "verdict", "score", "rating", "grade", "judge?ment", "assessment", "edit(?:ed)?", "corrected", "revised",
    "updated?", "amended", r"(?:final|overall|revised|corrected|correct|right|actual|my) \w+",
    "urteil", "bewertung", "note", r"(?:endg\u00fcltige[sr]?|richtige[sr]?) \w+", "veredicto", "puntuaci\u00f3n",
    "nota", "pontua\u00e7\u00e3o", "вердикт", "оценка", "итог", "الحكم", "التقييم", "النتيجة", "स्कोर",
    "निर्णय", "अंतिम \\w+",
)  # fmt: skip
_WEAK_NAMES: Final = (
    "answer", "result", "label", "conclusion", "decision", "correction", "ergebnis", "antwort", "r\u00e9sultat",
    "r\u00e9ponse", "resultado", "respuesta", "resposta", "результат", "ответ", "الإجابة", "परिणाम", "उत्तर",
)  # fmt: skip
_UNDIVIDED_NAMES: Final = ("结论", "评分", "得分", "最终\\w{2}", "判定", "評価", "最終\\w{2}", "スコア")
_WEAK_UNDIVIDED_NAMES: Final = ("结果", "答案", "結果", "答え")
_IS: Final = (
    r"(?:is|was|are|be|been|becomes?|remains?|stays?|to|as|of|at|ist|lautet|est|es|\u00e9|\u044d\u0442\u043e)"
    r"(?: (?:an?|now|therefore|thus|hence|rather|actually|really|still|clearly|simply|in fact|eine?|une?))?"
)
_JOINT: Final = (
    rf"[*_`]{{0,3}}(?:(?: [^\W\d]+){{0,3}}? {_IS} |(?:应该|应当|应|又)?[是为は]\s*"
    r"|\s?[*_`]{0,3}[:=\uff1a\u2013\u2014\u2192-]{1,2}[*_`]{0,3}\s?)"
)
# Words of sentences that say nothing but a verdict.
_SAYING_TEXT: Final = """
a actually after again all also am an and answer answers apologies be been but change changed choose clearly closer
conclude conclusion correct corrected correction d definitely edit final finally go going grade hence hm hmm however
i in inspection instead is it just ll m make makes mean meant must my mistake no now of oh ok okay on oops overall
rather rating reflection result revise revised right s said say score second short should simply so sorry still sum
summary that the then therefore this thought thoughts thus to ultimately verdict wait was we well with
would give gave yes
also dann das doch eigentlich entschuldigung es ergebnis ich ist meine meinte nein richtig sage urteil
alors c'est ce dire donc désolé est fait je pardon veux voulais entonces es perdón quise resultado decir
desculpe então é quis dizer итак значит извините имел в виду это я
"""
_SAYING: Final = frozenset(_SAYING_TEXT.split())
# Words of sentences about a verdict that is not given, or about the material.
_NOT_SAID: Final = re.compile(
    r"n't\b|\b(?:not|never|nor|neither|cannot|if|unless|otherwise|whether|would|could|might|may|had|than|from"
    r"|instead of|nicht|kein\w*|wenn|ob|w\u00e4re|w\u00fcrde|pas|si|serait|ser\u00eda|seria|n\u00e3o|если|бы|не)\b"
    r"|不|如果|是否|もし",
    re.IGNORECASE,
)
_MATERIAL: Final = re.compile(
    r"\b(?:document|context|source|reference|expected|text|question|query|user|history|passage|excerpt|article|sentence"
    r"|claim|statement|fact|says?|said|states?|reads?)s?\b|\d",
    re.IGNORECASE,
)
_SPOKEN: Final = re.compile(
    r"\b(?:document|context|source|reference|text|user|passage|article|claim|say|state|mention|contain|read|write)s?\b",
    re.IGNORECASE,
)
_SENTENCE_END: Final = re.compile(r"(?<=[.!?;])\s+|(?<=[\u3002\uff01\uff1f\uff1b\u0964])\s*")
# Of more than one word, which a text mentions; a single one may be the value that it states.
_QUOTATION: Final = re.compile(
    '"[^"\\s]+[ :][^"]*"|\u201c[^\u201d\\s]+[ :][^\u201d]*\u201d|\u300c[^\u300d\\s]+[ :\uff1a][^\u300d]*\u300d'
    "|`[^`\\s]+[ :][^`]*`"
)
_LIST_SIGN: Final = re.compile(r"(?:[-*\u2022#]+|\d{1,2}[.)])\s+")
_TOKEN: Final = re.compile(r"[^\W\d_]+(?:['\u2019][^\W\d_]+)?")
_LABEL: Final = re.compile(r"[*_`]{0,3}([^\W\d_][^:=\uff1a\n]{0,60}?)[*_`]{0,3}\s?[:=\uff1a\u2192][*_`]{0,3}\s?")
_COPULA: Final = re.compile(r"[*_`]{0,3}([^\W\d_][^:=\n]{0,40}?) (?:is|was|be|remains|ist|est|es|\u00e9) ")
_MAX_LABEL_WORDS: Final = 5
_MAX_VALUE_WORDS: Final = 4
_MAX_SENTENCE_CHARS: Final = 400
# Words that may come between a value and the rest of its sentence.
_BREAKS: Final = (*".,;:!?\u2026\u3002\uff0c\uff01\uff1b\uff1a*", '"')
_REASONS_TEXT: Final = "because since as for due given rather instead but weil da car parce porque pois"
_REASONS: Final = frozenset(_REASONS_TEXT.split())


def is_withdrawn(text: str, *, is_reason: bool = False) -> bool:
    """Return whether a text behind an answer takes it back; ``is_reason`` if it holds the reasons for the answer."""
    text = text[:_MAX_CHARS].replace("\u2019", "'")
    if _WITHDRAWS.search(text) is not None:
        return True
    return not is_reason and (_TURN.search(text) is not None or _PHRASES.search(text) is not None)


def stated(
    text: str, read: Callable[[str], object | None], *, place: Place, keys: Sequence[str] = ()
) -> Iterator[object]:
    """Yield the values that the sentences of a text, of any length, state as the verdict.

    ``read`` returns the value that some words are, None if they are none of those offered. Keys of the verdict are
    further names for it.
    """
    text = text[-_MAX_CHARS:] if place == "before" else text[:_MAX_CHARS]
    about = _about(tuple(keys), place)
    for written in text.replace("\u2019", "'").split("\n"):
        line = _LIST_SIGN.sub("", written.strip(), count=1)
        # Objects, rows of tables and quotations.
        if not line or line[0] == ">" or (line[0] in "{[|" and ":" in line):
            continue
        sentences = [each for each in _SENTENCE_END.split(_QUOTATION.sub("\u2026", line)) if each]
        for sentence in sentences:
            if len(sentence) <= _MAX_SENTENCE_CHARS:
                is_alone = place == "behind" or (place == "before" and len(sentences) == 1)
                yield from _of_sentence(sentence, read, about, is_alone=is_alone, is_behind=place == "behind")


def stated_of(key: str, text: str, read: Callable[[str], object | None]) -> Iterator[object]:
    """Yield the values that the sentences of a text state for one key of several, as in "Sorry, truth is 2"."""
    about = re.compile(rf"(?<!\w)(?:{spelled((key,))})(?!\w){_JOINT}", re.IGNORECASE)
    for line in text[:_MAX_CHARS].split("\n"):
        for sentence in _SENTENCE_END.split(line):
            if len(sentence) <= _MAX_SENTENCE_CHARS:
                yield from _of_sentence(sentence, read, about, is_alone=False, is_behind=False)


def _of_sentence(
    sentence: str, read: Callable[[str], object | None], about: re.Pattern[str], *, is_alone: bool, is_behind: bool
) -> Iterator[object]:
    for named in about.finditer(sentence):
        value = _first_value(sentence[named.end() :], read)
        is_stated = (
            _NOT_SAID.search(sentence, 0, named.end()) is None and _SPOKEN.search(sentence, 0, named.start()) is None
        )
        if value is not None and is_stated:
            yield value
            return
    if is_alone and (value := _only_value(sentence, read)) is not None:
        yield value
        return
    for form in (_LABEL, _COPULA) if is_behind else ():
        label = form.match(sentence)
        if label is None or len(label[1].split()) > _MAX_LABEL_WORDS:
            continue
        if _NOT_SAID.search(label[0]) or _MATERIAL.search(label[0]):
            continue
        value = _first_value(sentence[label.end() :], read)
        # A number behind any other label counts something.
        if isinstance(value, str) and not value.isdigit():
            yield value
            return


def _first_value(text: str, read: Callable[[str], object | None]) -> object | None:
    """Return the value with which a text begins, if the text ends or gives reasons behind it."""
    words = text.split(maxsplit=_MAX_VALUE_WORDS)
    for count in range(min(len(words), _MAX_VALUE_WORDS), 0, -1):
        following = words[count : count + 1]
        is_end = not following or words[count - 1].endswith(_BREAKS) or not following[0][0].isalnum()
        if is_end or following[0].strip(",").lower() in _REASONS:
            value = read(" ".join(words[:count]))
            if value is not None:
                return value
    return None


def _only_value(sentence: str, read: Callable[[str], object | None]) -> object | None:
    """Return the value at the end of a sentence that says nothing else."""
    words = sentence.split()
    for count in range(min(len(words), _MAX_VALUE_WORDS), 0, -1):
        before = " ".join(words[:-count]).lower()
        lead = _TOKEN.findall(before)
        if not any(map(str.isdigit, before)) and all(
            word in _SAYING or set(word.split("'")) <= _SAYING for word in lead
        ):
            value = read(" ".join(words[-count:]))
            if value is not None and (lead or len(words) == count):
                return value
    return None


@cache
def _about(keys: tuple[str, ...], place: Place) -> re.Pattern[str]:
    """Match the beginning of a statement of the verdict, up to its value."""
    names = (*_NAMES, *_WEAK_NAMES) if place != "reasons" else _NAMES
    undivided = (*_UNDIVIDED_NAMES, *_WEAK_UNDIVIDED_NAMES) if place != "reasons" else _UNDIVIDED_NAMES
    words = "|".join((*names, spelled(keys))) if keys else "|".join(names)
    return re.compile(rf"(?:(?<!\w)(?:{words})(?!\w)|{'|'.join(undivided)}){_JOINT}", re.IGNORECASE)
