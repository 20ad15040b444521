"""`ragbench`: keys of sentences, check of the evidence, and scores."""

from judge_traces import LONG, SHORT, all_samples
from support.cases import each_case
from support_answers import answer, figures, of_response, scored, trace

from judges.catalog.ragbench import JUDGE
from judges.core.prompt import Block, render
from judges.requests.request import truncate_to_context
from tracejudge import Document, Trace

TRACE = trace(["One is here. Two is here.", "Three is here."], "First it says. Then it says.")
"""Sentences 0a, 0b and 1a; a and b."""

SPECIAL = ["supported_without_sentence", "general", "well_known_fact", "numerical_reasoning"]

BOTH = [of_response("a", ["0a"]), of_response("b", ["1a"])]


def details(*entries: object, **changes: object) -> dict[str, object]:
    """Score an answer about TRACE, without the part that other tests are for."""
    details = dict(scored(JUDGE, TRACE, answer(entries, **changes)).details)
    assert details.pop("document_sentences") == 3
    return details


def support(rows: dict[str, object]) -> dict[str, tuple[list[str], bool]]:
    listed: list[dict[str, object]] = rows["sentence_support"]  # type: ignore[assignment]
    return {e["response_sentence_key"]: (e["supporting_sentence_keys"], e["fully_supported"]) for e in listed}  # type: ignore[misc]


def blocks(asked: Trace) -> tuple[Block, ...]:
    (prompt,) = JUDGE.prompts(asked)
    return prompt.blocks


class TestPrompt:
    def test_sentences_stand_one_a_line_behind_their_keys(self) -> None:
        assert blocks(TRACE) == (
            Block("question", "How is it?"),
            Block("documents", "0a. One is here.\n0b. Two is here.\n1a. Three is here."),
            Block("answer", "a. First it says.\nb. Then it says."),
        )

    def test_a_blank_document_keeps_its_index(self) -> None:
        assert blocks(trace(["One.", " \n", Document("Three.", id="x")]))[1].value == "0a. One.\n2a. Three."

    def test_keys_go_on_behind_z(self) -> None:
        documents = ["One.", " ".join(f"Line {number} ends here." for number in range(28))]
        lines = blocks(trace(documents, documents[1]))
        assert [line.split(". ")[0] for line in lines[1].value.split("\n")][-4:] == ["1y", "1z", "1aa", "1ab"]
        assert [line.split(". ")[0] for line in lines[2].value.split("\n")][-4:] == ["y", "z", "aa", "ab"]

    @each_case("sign", ["\n", "\r\n", "\r", "\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u2029"], ids=ascii)
    def test_no_sign_within_a_document_begins_a_keyed_line(self, sign: str) -> None:
        asked = trace([f"One is here{sign}9z. Two{sign}{sign}9y. Three."])
        (prompt,) = JUDGE.prompts(asked)
        content = render(prompt)[1].content
        shown = content.split("<<documents ")[1].split("<<end documents ")[0].split("\n")[1:-1]
        assert [line.split(". ")[0] for line in shown] == list(prompt.about.documents.sentences)
        assert not any(key.startswith("9") for key in prompt.about.documents.sentences)

    @each_case("asked", [SHORT, LONG, TRACE, *all_samples()[:9]], ids=lambda asked: asked.trace_id)
    def test_the_sentences_of_the_prompt_are_the_scored_ones(self, asked: Trace) -> None:
        if JUDGE.missing(asked) is None:
            (prompt,) = JUDGE.prompts(asked)
            about = [prompt.about.documents, prompt.about.answer]
            rebuilt = ["\n".join(f"{key}. {text}" for key, text in keyed.sentences.items()) for keyed in about]
            assert [block.value for block in prompt.blocks[-2:]] == rebuilt

    def test_a_cut_leaves_the_remaining_sentences_as_the_whole(self) -> None:
        long = trace(["One is here.", "Two is here.", "filler " * 9_000])
        fitted = truncate_to_context(JUDGE, long, 4_000)
        assert fitted is not None
        assert fitted.left_out == {"context": 1}
        reading = scored(JUDGE, fitted.trace, answer(all_relevant_sentence_keys=["0a", "2a"]))
        assert figures(reading)["relevance"] == 1 / 2
        assert (reading.details["document_sentences"], reading.details["fabricated_evidence"]) == (2, 1)


class TestEvidence:
    def test_details_list_all_valid_keys(self) -> None:
        counted = details(
            *reversed(BOTH), all_relevant_sentence_keys=["1A.", "0a"], all_utilized_sentence_keys=["1a", "0b", "1a"]
        )
        assert counted == {
            "relevant": ["0a", "1a"],
            "utilized": ["0b", "1a"],
            "adherence_checked": True,
            "fabricated_evidence": 0,
            "completeness_undefined": 0,
            "check_differs": 0,
            "contradictions": 0,
            "sentence_support": [
                {"response_sentence_key": "a", "supporting_sentence_keys": ["0a"], "fully_supported": True},
                {"response_sentence_key": "b", "supporting_sentence_keys": ["1a"], "fully_supported": True},
            ],
            "supported_by_nothing": 0,
            "missing_entries": 0,
            "repeated_entries": 0,
            "unknown_entries": 0,
        }

    def test_unknown_keys_leave_every_list_and_are_counted(self) -> None:
        counted = details(
            of_response("a", ["0a", "0c", "a"]),
            of_response("b", ["1a"]),
            all_relevant_sentence_keys=["0a", "7a"],
            all_utilized_sentence_keys=["1a", "1b"],
        )
        assert (counted["relevant"], counted["utilized"]) == (["0a"], ["1a"])
        assert support(counted) == {"a": (["0a"], True), "b": (["1a"], True)}
        assert (counted["fabricated_evidence"], counted["adherence_checked"]) == (4, True)

    def test_an_entry_left_with_nothing_is_no_longer_supported(self) -> None:
        counted = details(of_response("a", ["0a"]), of_response("b", ["9z", "8y"]))
        assert support(counted) == {"a": (["0a"], True), "b": ([], False)}
        assert (counted["fabricated_evidence"], counted["supported_by_nothing"]) == (2, 0)
        assert (counted["adherence_checked"], counted["contradictions"]) == (False, 0)

    def test_full_support_by_an_empty_list_is_read_as_none(self) -> None:
        counted = details(of_response("a", ["0a"]), of_response("b", []))
        assert support(counted) == {"a": (["0a"], True), "b": ([], False)}
        assert (counted["fabricated_evidence"], counted["supported_by_nothing"]) == (0, 1)
        assert (counted["adherence_checked"], counted["contradictions"]) == (False, 1)

    def test_keys_beside_false_are_kept_as_support_in_part(self) -> None:
        counted = details(of_response("a", ["0a"]), of_response("b", ["1a"], full=False), overall_supported=False)
        assert support(counted) == {"a": (["0a"], True), "b": (["1a"], False)}
        assert (counted["adherence_checked"], counted["contradictions"]) == (False, 0)

    @each_case("word", SPECIAL)
    def test_a_special_word_supports_a_sentence_alone_and_beside_keys(self, word: str) -> None:
        counted = details(of_response("a", [word]), of_response("b", ["1a", word.upper() + "."]))
        assert support(counted) == {"a": ([word], True), "b": (["1a", word], True)}
        assert (counted["fabricated_evidence"], counted["adherence_checked"]) == (0, True)

    @each_case("word", SPECIAL)
    def test_a_special_word_is_no_document_sentence(self, word: str) -> None:
        counted = details(*BOTH, all_relevant_sentence_keys=[word, "0a"], all_utilized_sentence_keys=[word])
        assert (counted["relevant"], counted["utilized"], counted["fabricated_evidence"]) == (["0a"], [], 2)

    def test_another_word_is_fabricated(self) -> None:
        counted = details(of_response("a", ["common_sense"]), of_response("b", ["1a"]))
        assert support(counted) == {"a": ([], False), "b": (["1a"], True)}
        assert counted["fabricated_evidence"] == 1


class TestEntries:
    def test_an_entry_on_no_sentence_is_counted_and_ignored(self) -> None:
        counted = details(*BOTH, of_response("c", ["9z"], full=False), of_response("0a", []))
        assert support(counted) == {"a": (["0a"], True), "b": (["1a"], True)}
        assert (counted["unknown_entries"], counted["fabricated_evidence"], counted["supported_by_nothing"]) == (
            2,
            0,
            0,
        )
        assert (counted["adherence_checked"], counted["contradictions"]) == (True, 0)

    def test_of_several_entries_on_a_sentence_the_last_one_counts(self) -> None:
        counted = details(of_response("a", ["9z"], full=False), *BOTH, of_response("A.", ["0b"]))
        assert support(counted) == {"a": (["0b"], True), "b": (["1a"], True)}
        assert (counted["repeated_entries"], counted["fabricated_evidence"]) == (2, 0)

    def test_a_sentence_without_an_entry_is_counted_and_not_borne_out(self) -> None:
        counted = details(of_response("b", ["1a"]))
        assert support(counted) == {"b": (["1a"], True)}
        assert (counted["missing_entries"], counted["adherence_checked"], counted["contradictions"]) == (1, False, 0)


class TestAdherence:
    @each_case(
        ("overall", "entries", "checked", "contradictions", "differs"),
        [
            (True, BOTH, True, 0, 0),
            (True, [of_response("a", ["0a"]), of_response("b", ["9z"])], False, 0, 1),
            (True, [of_response("a", ["0a"], full=False), of_response("b", [], full=False)], False, 2, 1),
            (True, [], False, 0, 1),
            (False, BOTH, False, 1, 1),
            (False, [BOTH[0], of_response("b", [], full=False)], False, 0, 0),
            (False, [of_response("a", ["0a"]), of_response("b", ["9z"])], False, 1, 0),
            (False, BOTH[:1], False, 0, 0),
        ],
        ids=[
            "all holds",
            "evidence of one is invented",
            "both unsupported in a supported whole",
            "supported whole without a single entry",
            "unsupported whole of supported sentences",
            "one sentence unsupported",
            "the same, by the check only",
            "the other sentence may be the unsupported one",
        ],
    )
    def test_the_score_is_the_model_s_and_the_check_is_a_detail(
        self,
        overall: bool,  # noqa: FBT001 - a parameter
        entries: list[object],
        checked: bool,  # noqa: FBT001 - a parameter
        contradictions: int,
        differs: int,
    ) -> None:
        reading = scored(JUDGE, TRACE, answer(entries, overall_supported=overall))
        adherence = reading.scores[-1]
        assert (adherence.value, adherence.passed) == (float(overall), overall)
        assert (reading.details["adherence_checked"], reading.details["contradictions"]) == (checked, contradictions)
        assert reading.details["check_differs"] == differs


class TestHeuristic:
    ASKED = Trace(
        trace_id="1",
        service="s",
        input="How long is the warranty?",
        output="The warranty lasts two years. And so it is. Shipping costs 5 EUR on Mars.",
        context=["The warranty lasts two years for devices. Shipping costs 4 EUR.", "We sell plants."],
    )

    def test_the_explanations_of_the_heuristic_name_the_compared_counts(self) -> None:
        (prompt,) = JUDGE.prompts(self.ASKED)
        near = "of its words and {} of its numbers appear in the document sentences nearest to it."
        words = [f"{share} {near.format(lot)}" for share, lot in [("100%", "all"), ("100%", "all"), ("60%", "not all")]]
        told = [f"Sentence {key}: {text}" for key, text in zip("abc", words, strict=True)]
        assert JUDGE.heuristic(self.ASKED, prompt) == {
            "relevance_explanation": "1 of 3 sentences share a quarter of the question's words.",
            "all_relevant_sentence_keys": ["0a"],
            "overall_supported_explanation": " ".join(
                [*told, "2 of 3 sentences compared share half of their words and all of their numbers."]
            ),
            "overall_supported": False,
            "sentence_support_information": [
                {**of_response("a", ["0a"]), "explanation": words[0], "supporting_sentence_keys": ("0a",)},
                {**of_response("b", ["general"]), "explanation": words[1]},
                {**of_response("c", full=False), "explanation": words[2], "supporting_sentence_keys": ("0b",)},
            ],
            "all_utilized_sentence_keys": ["0a", "0b"],
        }
