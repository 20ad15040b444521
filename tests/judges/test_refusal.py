# ruff: noqa: RUF001 - answers in scripts with their own punctuation
"""Refusals in words: found in ten languages, and never in an answer with a verdict or with another statement."""

import asyncio
import json
from pathlib import Path

from judge_traces import SHORT, yes_no_text

from judges.calling.evaluation import evaluate
from judges.models.scripted import ScriptedModel
from judges.parsing.refusal import is_refusal, is_refusal_as_reason
from judges.registry import catalogue

CORPUS = Path(__file__).with_name("corpora") / "answers.jsonl"
REFUSALS = {
    "English": (
        "I can't help with that.",
        "I\u2019m sorry, but I can\u2019t assist with that request.",
        "Sorry, I cannot comply.",
        "I apologize, but I'm not able to evaluate this content.",
        "As an AI language model, I am unable to provide an assessment of this text.",
        "I must decline to rate this.",
        "I'm really sorry. I won't engage with this material.",
        "**I cannot assist with this.** If you need anything else, let me know.",
        "Unfortunately, I will not be able to judge this passage because it describes self-harm.",
        "No, I can't help with that.",
        "I'm not comfortable evaluating this.",
        "This request violates our content policy, so I can't continue.",
        "My guidelines prevent me from evaluating this text.",
        "I refuse.",
        "I can't help with that.\n\nIf you are in danger, call 988.",
    ),
    "Chinese": (
        "我无法回答这个问题。",
        "对不起，我不能协助完成这个请求。",
        "很抱歉，我无法对此内容进行评价。",
        "抱歉。我不能提供帮助。",
        "这个请求我无法完成。",
    ),
    "Hindi": (
        "मुझे खेद है, मैं इसमें मदद नहीं कर सकता।",
        "माफ़ करें, मैं इस प्रश्न का उत्तर नहीं दे सकती।",
        "मैं इस सामग्री का मूल्यांकन करने में असमर्थ हूँ।",
        "मुझे क्षमा करें, मैं इसमें मदद नहीं कर सकता।",
    ),
    "Spanish": (
        "Lo siento, pero no puedo ayudar con eso.",
        "No puedo evaluar este contenido.",
        "Me temo que no puedo ayudar con eso.",
        "Lamentablemente, no me es posible responder a esta solicitud.",
    ),
    "French": (
        "Désolé, je ne peux pas répondre à cette demande.",
        "Je ne peux pas évaluer ce contenu.",
        "Je suis vraiment désolée. Je ne suis pas en mesure de vous aider.",
    ),
    "Arabic": (
        "عذرا، لا أستطيع مساعدتك في ذلك.",
        "لا يمكنني تقييم هذا المحتوى.",
        "آسف، لا يمكنني الإجابة على هذا السؤال.",
    ),
    "Portuguese": (
        "Desculpe, não posso ajudar com isso.",
        "Sinto muito, mas não consigo avaliar este conteúdo.",
        "Infelizmente, não posso atender a esse pedido.",
        "Infelizmente não sou capaz de avaliar isso.",
    ),
    "Russian": (
        "Извините, но я не могу вам помочь.",
        "Я не могу оценить этот текст.",
        "К сожалению, я не могу ответить на этот запрос.",
    ),
    "German": (
        "Entschuldigung, aber ich kann dabei nicht helfen.",
        "Ich kann diesen Inhalt nicht bewerten.",
        "Es tut mir leid. Ich kann dieser Bitte nicht nachkommen.",
        "Leider darf ich dazu keine Bewertung vornehmen.",
        "Das kann ich leider nicht beurteilen.",
        "Diese Inhalte kann ich nicht bewerten.",
    ),
    "Japanese": (
        "申し訳ございませんが、お手伝いできません。",
        "すみません、その内容は評価できません。",
        "恐れ入りますが、このリクエストには対応できかねます。",
    ),
}
OTHERS = (
    "",
    "yes",
    "no",
    "No.",
    "I cannot tell whether the claim is supported.",
    "I cannot evaluate whether the document supports the claim.",
    "I can't find the number in the document, so the answer is no.",
    'The text says "I can\'t help with that.", which is a refusal and therefore safe.',
    "The assistant says that it cannot help with that.",
    "I can't help with that. Result: yes",
    "I can't help with that.\n4/5",
    "I cannot support the claim from the documents.",
    "I won't rate this as grounded, since the documents say nothing of it.",
    "Das kann ich nicht beurteilen, ob das stimmt.",
    '{"rationale": "I\'m sorry, I can\'t help with that.", "result": "no"}',
    "result: yes\nI can't help with anything else.",
    "Sorry, here is the verdict: no",
    "I'm sorry for the delay. The score is 4.",
    "The document does not help with the question.",
    "Let's think step by step. The user cannot assist.",
    "抱歉，文档不支持该说法。",
    "我无法评估是否正确。",
    "答案与问题无关。",
    "Der Kunde kann die Frage nicht beantworten.",
    "Ich kann nicht beurteilen, ob das stimmt.",
    "No puedo encontrar la cifra en el documento.",
    "Le document ne répond pas à la question.",
    "Ответ не может быть подтверждён документом.",
    "回答は文書に書かれていません。",
    "I can't help with that. " * 50,
)


def test_refusals_in_ten_languages_are_found() -> None:
    missed = [f"{language}: {text}" for language, texts in REFUSALS.items() for text in texts if not is_refusal(text)]
    assert missed == []
    assert len(REFUSALS) == 10


def test_other_answers_are_no_refusals() -> None:
    assert [text for text in OTHERS if is_refusal(text)] == []


def test_reasons_that_decline_are_a_refusal_unless_they_speak_of_the_material() -> None:
    wrong = [text for texts in REFUSALS.values() for text in texts[:2] if not is_refusal_as_reason(text)]
    assert wrong == []
    for text in (
        "I cannot answer the question from the documents.",
        '"I can\'t help with that." is a refusal, which is safe.',
        "The assistant says I can't help with that.",
        "I can't judge it as correct since it omits the date.",
    ):
        assert not is_refusal_as_reason(text), text


def test_no_answer_of_the_corpus_with_a_verdict_is_a_refusal() -> None:
    cases = [json.loads(line) for line in CORPUS.read_text(encoding="utf-8").splitlines()]
    assert [case["id"] for case in cases if case["expect"] is not None and is_refusal(case["answer"])] == []
    # Thoughts in template tokens are removed before.
    refused = [case for case in cases if "refusal in" in case["why"] and "<|" not in case["answer"]]
    assert len(refused) > 10
    assert [case["answer"] for case in refused if not is_refusal(case["answer"])] == []


def test_a_refusal_in_words_is_unscored_without_a_repair_request() -> None:
    for name in ("groundedness", "safety", "answer_relevance", "relevance_truth_completeness", "facts_grounding"):
        model = ScriptedModel(["I'm sorry, but I can't assist with that request.", yes_no_text("yes")])
        assessment = asyncio.run(evaluate(catalogue()[name], SHORT, model))
        assert (assessment.outcome, assessment.reason, len(assessment.calls)) == ("unscored", "refusal", 1), name
    # An unreadable answer is repaired first; then the model may decline.
    model = ScriptedModel(["Well, it is fine.", "I can't help with that."])
    assessment = asyncio.run(evaluate(catalogue()["safety"], SHORT, model))
    assert (assessment.outcome, assessment.reason, len(assessment.calls)) == ("unscored", "refusal", 2)
