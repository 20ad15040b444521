"""Recognise an answer that declines to judge in words, in ten languages.

Few endpoints report a refusal: the model writes "I can't help with that." in place of the asked form. Only a short
text counts whose first sentence declines, alone or after an apology, and that contains nothing like a verdict. An
answer that cannot decide ("I cannot tell whether ...") is no refusal.
"""

import re
import unicodedata
from typing import Final

_MAX_CHARS: Final = 800
_MAX_APOLOGY_CHARS: Final = 60
_SENTENCE_END: Final = re.compile(r"(?<=[.!?])\s+|(?<=[。\uff01\uff1f।])\s*|\n+")
# Vowel marks and the stretching sign of Arabic, which many texts leave out.
_ARABIC_MARKS: Final = re.compile("[\u0640\u064b-\u0652]")
_VERDICT: Final = re.compile(
    r"[{}]|<\w+>|\b(?:result|score|verdict|rating|grade|label)\b\W{0,4}[:=]"
    r"|\b(?:yes|no|true|false|safe|unsafe|supported|unsupported|sí|ja|nein|oui|non|sim|да|нет)\W*\Z"
    r"|^\W*\d+(?:/\d+)?\W*$",
    re.MULTILINE,
)
# One pattern a language, for the beginning of a sentence: an apology or none, a "cannot", and the verb of the task.
_LANGUAGES: Final = {
    "en": r"""(?:no,? |well,? )?(?:(?:i'?m|i\ am|we'?re)?\ ?(?:\w+\ )?sorry|i\ apologi[sz]e|my\ apologies|apologies
        |unfortunately|i\ regret|[^.]{0,60}?\bpolic(?:y|ies))?[^.]{0,40}?
        \b(?:i|we)\ ?(?:'m|\ am|\ are|'re)?\ ?(?:really\ )?
        (?:can'?t|cannot|can\ not|won'?t|will\ not|unable\ to|not\ able\ to|not\ going\ to|must\ decline\ to
        |have\ to\ decline\ to|decline\ to|refuse\ to|not\ comfortable|don'?t\ feel\ comfortable|must\ decline
        |have\ to\ decline)(?:\ (?:be\ able\ to|to|in\ good\ conscience))?\ ?
        (?:help|assist|comply|fulfil+|continue|engag|do\ (?:that|this|so)|discuss|provid|evaluat|assess|judg
        |(?:rat|grad)(?:e|ing)(?:\ (?:this|that|it|these|such|the|any))?
        (?:\ (?:content|text|answer|response|material|passage|request|message)s?)?\s*(?:[.,;!]|\Z|because)
        |review|process|respond|answer|participat|complet|creat|generat|with|$|\.)
        |i\ (?:refuse|decline)\W*\Z
        |(?:my|our|the)\ (?:\w+\ )?(?:guidelines|policy|policies|rules)
        \ (?:prevents?|prohibits?|forbids?|(?:do|does)(?:n'?t|\ not)\ (?:allow|permit|let))\ me\b""",
    "zh": r"""(?:(?:非常|很|十分|真的)?(?:抱歉|对不起|不好意思|遗憾)[^。]{0,40}?|(?=我|本助手|作为))
        [^。]{0,20}?(?:无法|不能|不便|没法|没有办法|拒绝|不会)[^。]{0,15}?
        (?:回答|回复|帮助|协助|帮|提供|满足|处理|评估|评价|评分|评判|完成|继续|讨论|执行|参与|回应)
        |(?:这个|这一|此|该)(?:请求|问题|内容|任务|文本)[^。]{0,4}?我(?:无法|不能|没法|没有办法|拒绝)[^。]{0,4}?
        (?:回答|回复|协助|处理|评估|评价|评分|评判|完成|继续|讨论|执行)""",
    "hi": r"""(?:(?:मुझे\ )?क्षमा|माफ़|माफ|मुझे\ खेद|खेद|मैं)[^।]{0,120}?
        (?:मदद|सहायता|उत्तर|जवाब|मूल्यांकन|अनुरोध|पूरा|आकलन|चर्चा)[^।]{0,40}?(?:नहीं\ (?:कर|दे)|असमर्थ|मना)
        |(?:क्षमा|माफ़|माफ|खेद)[^।]{0,60}?(?:असमर्थ|नहीं\ कर\ (?:सक|पा))""",
    "es": r"""(?:(?:lo\ siento|lo\ lamento|lamento|lamentablemente|me\ temo\ que|perd[oó]n\w*|disculp\w+)[^.]{0,30}?)?\b
        (?:no\ (?:puedo|podr[eé]|podemos|me\ es\ posible|estoy\ en\ condiciones\ de)|me\ niego\ a|debo\ negarme\ a)
        \ [^.]{0,20}?(?:ayud|asist|respond|cumpl|evalu|proporcion|hacer|continu|particip|atend|proces|realiz|valor|juzg
        |calific|complet|d[ae]r\b)""",
    "fr": r"""(?:(?:je\ suis\ )?(?:\w+\ )?d[eé]sol[eé]\w*|je\ regrette|malheureusement|pardon|excuse[zr]?-moi)?
        [^.]{0,20}?\bje\ (?:ne\ (?:peux|puis|suis|saurais)|refuse|dois\ refuser)[^.]{0,40}?
        (?:aider|assister|répondre|évaluer|fournir|donner|traiter|continuer|faire|accéder|satisfaire|juger|participer
        |poursuivre|prononcer|noter)""",
    "ar": r"""(?:(?:عذرا|اسف|أسف|آسف|أعتذر|اعتذر|المعذرة|للأسف)[^.]{0,30}?)?
        (?:لا\ ?يمكنني|لا\ ?أستطيع|لا\ استطيع|لن\ أتمكن|غير\ قادر|لا\ أقدر|يتعذر\ علي|أرفض|لست\ قادر)[^.]{0,20}?
        (?:مساعد|إجابة|اجابة|تقديم|تقييم|تلبية|الرد|القيام|متابعة|استمرار|تنفيذ|معالجة|مناقشة)""",
    "pt": r"""(?:(?:(?:me\ )?desculp\w+|sinto\ muito|lamento|infelizmente|perdão)[^.]{0,30}?)?\b(?:eu\ )?
        (?:não\ (?:posso|consigo|poderei|vou\ poder|me\ é\ possível|sou\ capaz\ de)|recuso-me\ a|me\ recuso\ a)
        \ [^.]{0,20}?
        (?:ajud|auxili|respond|avali|fornec|atend|faz|continu|cumpr|prossegu|analis|particip|julg|realiz|classific)""",
    "ru": r"""(?:(?:извините|простите|прошу\ прощения|к\ сожалению|сожалею|мне\ жаль)[^.]{0,20}?)?(?:я\ )?
        (?:не\ (?:могу|смогу|в\ состоянии|буду)|отказываюсь|вынужден\w*\ отказать)[^.]{0,25}?
        (?:помо|ответ|отвеч|выполн|оцени|оценк|предостав|обсужд|продолж|содейств|обработ|\Z|\.)""",
    "de": r"""(?:(?:(?:es\ )?tut\ mir\ (?:\w+\ )?leid|leider|entschuldig\w+|verzeihung|ich\ bedaure)[^.]{0,40}?)?
        (?:\bich\ (?:kann|darf|werde|möchte)
        |(?:(?:das|dies\w*|es)\ (?:\w+\ ){0,2})?\b(?:kann|darf|werde|möchte)\ ich)\b
        [^.]{0,80}?\b(?:nicht|keine?n?)\b[^.]{0,60}?
        (?:helfen|beantwort|bewert|nachkommen|erfüllen|unterstütz|behilflich|vornehmen|fortfahren|antworten|bearbeit
        |einschätz|beurteil|benot)""",
    "ja": r"""(?:(?:大変|誠に)?(?:申し訳|すみません|ごめんなさい|恐れ入り|恐縮)[^。]{0,60}?
        |[^。]{0,20}?(?:ご依頼|リクエスト|要求)[^。]{0,20}?)
        (?:応え|答え|手伝い|力に|対応|回答|評価|協力|支援|提供|従う|続け)
        [^。]{0,12}?(?:できません|できかね|かねます|致しません|いたしません|断り)
        |[^。]{0,10}お手伝い(?:は|することは)?(?:できません|できかねます)""",
}
# "I cannot assess whether ..." says that the model cannot decide.
_UNDECIDED: Final = re.compile(r"\w*,? (?:(?:whether|if|how|ob|si|se)\b|\w+ ли\b)|是否")
_PATTERNS: Final = tuple(re.compile(pattern, re.VERBOSE) for pattern in _LANGUAGES.values())
_APOLOGY: Final = re.compile(
    r"sorry|apolog|unfortunately|siento|lament|disculp|perd|désol|regrett|malheureus|desculp|sinto|infeliz|leid|leider"
    r"|entschuldig|verzeih|извин|прост|сожал|жаль|抱歉|对不起|不好意思|遗憾|申し訳|すみません|ごめん|क्षमा|माफ|खेद|عذر|سف|معذرة"
)

_ABOUT_MATERIAL: Final = re.compile(
    r"""["\u201c\u201d\u201e\xab\xbb\u300c]|(?<!\w)['\u2018]\w"""
    r"|\b(?:documents?|context|sources?|evidence|claims?|statements?|reference|answer|response|output|assistant|question|as)\b"
    r"|\b(?:higher|lower|above|below)\b"
    r"|\b(?:dokumente?n?|kontext|quellen?|antwort|aussagen?|frage|contexte|sources?|r\u00e9ponse|question|contexto|fuentes?"
    r"|documentos?|respuesta|pregunta|fontes?|resposta|pergunta|документ\w*|контекст\w*|ответ|вопрос\w*)\b"
    r"|文档|上下文|语境|陈述|文書|文脈|資料|दस्तावेज|संदर्भ|سياق|مستند|وثيق"
)


def is_refusal(text: str) -> bool:
    """Return whether a short text declines to judge and contains no verdict."""
    if len(text) > _MAX_CHARS:
        return False
    folded = _ARABIC_MARKS.sub("", unicodedata.normalize("NFC", text)).casefold().replace("\u2019", "'")
    folded = folded.strip(" \t\n*_#>-")
    if not folded or _VERDICT.search(folded) is not None:
        return False
    first, *rest = _SENTENCE_END.split(folded, maxsplit=2)
    if rest and len(first) <= _MAX_APOLOGY_CHARS and _APOLOGY.search(first) is not None and not _declines(first):
        first = rest[0]
    return _declines(first)


def is_refusal_as_reason(text: str) -> bool:
    """Return whether the reasons for a verdict decline to judge, and say nothing of the material."""
    # Reasons often quote a refusal, and "I cannot answer that from the documents" is a reason.
    return len(text) <= _MAX_CHARS and not _ABOUT_MATERIAL.search(text.casefold()) and is_refusal(text)


def _declines(sentence: str) -> bool:
    opening = next((match for pattern in _PATTERNS if (match := pattern.match(sentence)) is not None), None)
    return opening is not None and _UNDECIDED.match(sentence, opening.end()) is None
