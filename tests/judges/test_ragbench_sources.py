"""`ragbench_sources`: keys and names of documents, and the entries on their sentences."""

from support.cases import each_case
from support_answers import answer, of_source, scored, trace, with_ids

from judges.catalog.ragbench_sources import JUDGE
from judges.core.prompt import Block
from tracejudge import Document, Trace

TRACE = trace(["One is here. Two is here.", " ", "Three is here."], "First it says.\n\nThen it says.")
"""Sentences D1_S1, D1_S2 and D3_S1."""

NAMED = JUDGE.configured({"document_ids": True})


def keys(asked: Trace, *, named: bool = True) -> list[str]:
    (prompt,) = (NAMED if named else JUDGE).prompts(asked)
    lines = prompt.blocks[1].value.split("\n")
    assert [line.split(": ")[0] for line in lines] == list(prompt.about.sentences)
    return list(prompt.about.sentences)


def details(*entries: object, **changes: object) -> dict[str, object]:
    details = dict(scored(JUDGE, TRACE, answer(entries, **changes)).details)
    assert details.pop("document_sentences") == 3
    return details


class TestPrompt:
    def test_document_sentences_are_keyed_and_the_answer_stands_whole(self) -> None:
        (prompt,) = JUDGE.prompts(TRACE)
        assert prompt.blocks == (
            Block("question", "How is it?"),
            Block("documents", "D1_S1: One is here.\nD1_S2: Two is here.\nD3_S1: Three is here."),
            Block("answer", "First it says.\n\nThen it says."),
        )

    def test_ids_are_no_keys_unless_configured(self) -> None:
        assert keys(trace(with_ids("manual", "faq")), named=False) == ["D1_S1", "D2_S1"]

    @each_case(
        ("ids", "expected"),
        [
            (("manual-7", "FAQ_2"), ["manual-7_S1", "FAQ_2_S1"]),
            (("manual", None), ["manual_S1", "D2_S1"]),
            ((None, None), ["D1_S1", "D2_S1"]),
            (("D1", "faq"), ["D1_S1", "faq_S1"]),
            (("a" * 40, "faq"), [f"{'a' * 40}_S1", "faq_S1"]),
            (("a" * 41, "faq"), ["D1_S1", "D2_S1"]),
            (("same", "same"), ["D1_S1", "D2_S1"]),
            (("same", "SAME"), ["D1_S1", "D2_S1"]),
            (("D2", None), ["D1_S1", "D2_S1"]),
            (("d2", "D1"), ["D1_S1", "D2_S1"]),
            (("", "faq"), ["D1_S1", "D2_S1"]),
            (("a b", "faq"), ["D1_S1", "D2_S1"]),
            (("a\nD9_S9: x", "faq"), ["D1_S1", "D2_S1"]),
            (("faq\n", "a"), ["D1_S1", "D2_S1"]),
            (("größe", "faq"), ["D1_S1", "D2_S1"]),
        ],
        ids=[
            "plain",
            "one without",
            "none",
            "its own default name",
            "40 characters",
            "41 characters",
            "the same twice",
            "the same but for case",
            "name of another",
            "names of each other",
            "empty",
            "blank inside",
            "a line of its own",
            "line break at the end",
            "other letters",
        ],
    )
    def test_ids_replace_numbers_when_all_of_them_serve(self, ids: tuple[str | None, ...], expected: list[str]) -> None:
        assert keys(trace(with_ids(*ids))) == expected

    def test_an_id_that_looks_like_a_key_makes_no_two_keys_alike(self) -> None:
        documents = [Document("One is here. Two is here.", id="x"), Document("Three is here.", id="x_S1")]
        assert keys(trace(documents)) == ["x_S1", "x_S2", "x_S1_S1"]

    def test_keys_with_ids_are_read_in_any_case(self) -> None:
        text = answer([of_source("MANUAL_s1.")], all_relevant_sentence_keys=["manual_S1", "D1_S1"])
        details = scored(NAMED, trace(with_ids("Manual", "faq")), text).details
        assert (details["relevant"], details["fabricated_evidence"]) == (["Manual_S1"], 1)
        assert details["sentence_support"] == [{"sentence_key": "Manual_S1", "is_supported": True}]

    def test_the_setting_changes_the_version(self) -> None:
        assert NAMED.version != JUDGE.version == JUDGE.configured({"document_ids": False}).version


class TestScore:
    def test_details_list_all_valid_keys(self) -> None:
        counted = details(
            of_source("d3_s1"),
            of_source("D1_S1:"),
            all_relevant_sentence_keys=["D3_S1", "D1_S1"],
            all_utilized_sentence_keys=["D3_S1"],
        )
        assert counted == {
            "relevant": ["D1_S1", "D3_S1"],
            "utilized": ["D3_S1"],
            "fabricated_evidence": 0,
            "completeness_undefined": 0,
            "check_differs": 0,
            "contradictions": 0,
            "sentence_support": [
                {"sentence_key": "D1_S1", "is_supported": True},
                {"sentence_key": "D3_S1", "is_supported": True},
            ],
            "missing_entries": 0,
            "repeated_entries": 0,
        }

    def test_unknown_keys_leave_every_list_and_are_counted(self) -> None:
        counted = details(
            of_source("D2_S1"),
            of_source("D1_S1"),
            all_relevant_sentence_keys=["D1_S1", "D1_S3"],
            all_utilized_sentence_keys=["D9_S9", "general"],
        )
        assert (counted["relevant"], counted["utilized"], counted["fabricated_evidence"]) == (["D1_S1"], [], 4)
        assert counted["sentence_support"] == [{"sentence_key": "D1_S1", "is_supported": True}]

    def test_listed_sentences_without_an_entry_are_counted_and_scored_all_the_same(self) -> None:
        text = answer(all_relevant_sentence_keys=["D1_S1", "D3_S1"], all_utilized_sentence_keys=["D3_S1", "D1_S2"])
        reading = scored(JUDGE, TRACE, text)
        assert reading.details["missing_entries"] == 3
        assert [score.value for score in reading.scores] == [2 / 3, 2 / 3, 1 / 2, 1.0]

    def test_entries_beyond_the_lists_are_welcome(self) -> None:
        counted = details(of_source("D1_S2"))
        assert counted["sentence_support"] == [{"sentence_key": "D1_S2", "is_supported": True}]
        assert counted["missing_entries"] == 0

    def test_of_several_entries_on_a_sentence_the_last_one_counts(self) -> None:
        counted = details(of_source("D1_S1"), of_source("d1_s1", supported=False), overall_supported=False)
        assert counted["sentence_support"] == [
            {"sentence_key": "D1_S1", "is_supported": False, "explanation": "It says so."}
        ]
        assert counted["repeated_entries"] == 1

    @each_case(
        ("overall", "single", "contradictions"),
        [(True, True, 0), (True, False, 2), (False, False, 0), (False, True, 0)],
        ids=["all supported", "supported whole, unsupported parts", "all unsupported", "an invented fact beside them"],
    )
    def test_adherence_is_the_models_and_parts_that_speak_against_it_are_counted(
        self,
        overall: bool,  # noqa: FBT001 - a parameter
        single: bool,  # noqa: FBT001 - a parameter
        contradictions: int,
    ) -> None:
        entries = [of_source("D1_S1", supported=single), of_source("D1_S2", supported=single)]
        reading = scored(JUDGE, TRACE, answer(entries, overall_supported=overall))
        assert (reading.scores[-1].value, reading.scores[-1].passed) == (float(overall), overall)
        assert reading.details["contradictions"] == contradictions


def test_the_rationale_of_the_heuristic_names_the_compared_counts() -> None:
    asked = Trace(
        trace_id="1",
        service="s",
        input="How long is the warranty?",
        output="The guarantee lasts two years.",
        context=["It lasts two years. The warranty covers devices.", "We sell plants."],
    )
    (prompt,) = JUDGE.prompts(asked)
    assert JUDGE.heuristic(asked, prompt) == {
        "relevance_explanation": "1 of 3 sentences share a quarter of the question's words.",
        "all_relevant_sentence_keys": ["D1_S2"],
        "overall_supported_explanation": (
            "Sentence a: 75% of its words and all of its numbers appear in the document sentences nearest to it. "
            "1 of 1 sentences compared share half of their words and all of their numbers."
        ),
        "overall_supported": True,
        "sentence_support_information": [
            {"sentence_key": "D1_S1", "is_supported": True, "explanation": "100% of its words appear in the answer."},
            {"sentence_key": "D1_S2", "is_supported": True, "explanation": "Not used."},
        ],
        "all_utilized_sentence_keys": ["D1_S1"],
    }
