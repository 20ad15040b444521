# Written by `make generate`; change the code, not this file.

from judges.features.lab.api import (
    JudgeFunction,
    JudgeVerdict,
    evaluate,
    evaluate_aio,
    evaluate_all,
    evaluate_all_aio,
    load_judge,
    make_judge,
)

__all__ = [
    "JudgeFunction",
    "JudgeVerdict",
    "answer_correctness",
    "answer_relevance",
    "answer_similarity",
    "context_sufficiency",
    "conversation_completeness",
    "correctness",
    "equivalence",
    "evaluate",
    "evaluate_aio",
    "evaluate_all",
    "evaluate_all_aio",
    "facts_grounding",
    "faithfulness",
    "groundedness",
    "guidelines",
    "knowledge_retention",
    "load_judge",
    "make_judge",
    "plan_adherence",
    "ragbench",
    "ragbench_sources",
    "relevance",
    "relevance_to_query",
    "relevance_truth_completeness",
    "retrieval_relevance",
    "safety",
    "step_efficiency",
    "task_completion",
    "tool_arguments",
    "tool_result_use",
    "tool_selection",
    "trajectory_match",
    "user_frustration",
]

answer_correctness: JudgeFunction
"""How correct is the answer, by meaning and facts, against the reference answer?

Needs: inputs, outputs, expectations["expected_response"].
Metrics, on the judge's own scale (`value` is 0..1, 1 is good):
    answer_correctness: 1..5; passes: 4 or more
Settings (`configured`): pass_at.
"""
answer_relevance: JudgeFunction
"""How fully does the answer address the question, without gaps and without padding?

Needs: inputs, outputs.
Metrics, on the judge's own scale (`value` is 0..1, 1 is good):
    answer_relevance: 1..5; passes: 4 or more
Settings (`configured`): pass_at.
"""
answer_similarity: JudgeFunction
"""How close is the answer to the reference answer in meaning?

Needs: outputs, expectations["expected_response"].
Metrics, on the judge's own scale (`value` is 0..1, 1 is good):
    answer_similarity: 1..5; passes: 4 or more
Settings (`configured`): pass_at.
"""
context_sufficiency: JudgeFunction
"""Do the retrieved documents hold enough to support the reference answer, or every one of the expected facts?

Needs: inputs, context, expectations["expected_response"] or expectations["expected_facts"].
Metrics, on the judge's own scale (`value` is 0..1, 1 is good):
    context_sufficiency: 0 or 1; passes: yes
Settings (`configured`): none.
"""
conversation_completeness: JudgeFunction
"""Is every request of the user dealt with by the end of the conversation?

Needs: inputs or messages.
Metrics, on the judge's own scale (`value` is 0..1, 1 is good):
    conversation_completeness: 0 or 1; passes: yes
Settings (`configured`): none.

Its unit is a conversation, given as `messages` or as rows of one `session_id`.
"""
correctness: JudgeFunction
"""Does the answer support the reference answer, or every one of the expected facts?

Needs: inputs, outputs, expectations["expected_response"] or expectations["expected_facts"].
Metrics, on the judge's own scale (`value` is 0..1, 1 is good):
    correctness: 0 or 1; passes: yes
Settings (`configured`): none.
"""
equivalence: JudgeFunction
"""Does the answer mean the same as the reference answer, and has it the expected form?

Needs: outputs, expectations["expected_response"].
Metrics, on the judge's own scale (`value` is 0..1, 1 is good):
    equivalence: 0 or 1; passes: yes
Settings (`configured`): none.
"""
facts_grounding: JudgeFunction
"""Is each sentence of the answer supported by the retrieved documents, with an excerpt that exists?

Needs: inputs, outputs, context.
Metrics, on the judge's own scale (`value` is 0..1, 1 is good):
    grounded: 0 or 1; passes: every sentence is supported or needs no support
    supported_share: 0..1; passes: no pass rule
Settings (`configured`): labels, min_covered, score_cut.
"""
faithfulness: JudgeFunction
"""How much of what the answer claims can be inferred from the retrieved documents?

Needs: outputs, context.
Metrics, on the judge's own scale (`value` is 0..1, 1 is good):
    faithfulness: 1..5; passes: 4 or more
Settings (`configured`): pass_at, score_cut.
"""
groundedness: JudgeFunction
"""Is the answer supported by the retrieved documents, and by nothing else?

Needs: inputs, outputs, context.
Metrics, on the judge's own scale (`value` is 0..1, 1 is good):
    groundedness: 0 or 1; passes: yes
Settings (`configured`): score_cut.
"""
guidelines: JudgeFunction
"""Are all given rules obeyed by the answer, the question and the context?

Needs: outputs, guidelines.
Metrics, on the judge's own scale (`value` is 0..1, 1 is good):
    guidelines: 0 or 1; passes: yes
Settings (`configured`): guidelines, fields, score_cut.
"""
knowledge_retention: JudgeFunction
"""Does the assistant keep to what the user has said earlier in the conversation?

Needs: inputs or messages.
Metrics, on the judge's own scale (`value` is 0..1, 1 is good):
    knowledge_retention: 0 or 1; passes: yes
Settings (`configured`): none.

Its unit is a conversation, given as `messages` or as rows of one `session_id`.
"""
plan_adherence: JudgeFunction
"""Did the steps follow the plan that was stated?

Needs: tool_calls or spans.
Metrics, on the judge's own scale (`value` is 0..1, 1 is good):
    plan_adherence: 0..1; passes: no step of the plan is skipped
Settings (`configured`): none.
"""
ragbench: JudgeFunction
"""Which document sentences are relevant and used, and is each sentence of the answer supported by them?

Needs: inputs, outputs, context.
Metrics, on the judge's own scale (`value` is 0..1, 1 is good):
    relevance: 0..1; passes: descriptive
    utilization: 0..1; passes: descriptive
    completeness: 0..1; passes: no pass rule
    adherence: 0 or 1; passes: supported
Settings (`configured`): lengths, empty_completeness, enum_keys, score_cut.
"""
ragbench_sources: JudgeFunction
"""Which document sentences are relevant and used, and is what the answer makes of each supported?

Needs: inputs, outputs, context.
Metrics, on the judge's own scale (`value` is 0..1, 1 is good):
    relevance: 0..1; passes: descriptive
    utilization: 0..1; passes: descriptive
    completeness: 0..1; passes: no pass rule
    adherence: 0 or 1; passes: supported
Settings (`configured`): lengths, empty_completeness, enum_keys, score_cut, document_ids.
"""
relevance: JudgeFunction
"""How well does the answer serve the question out of the retrieved documents?

Needs: inputs, outputs, context.
Metrics, on the judge's own scale (`value` is 0..1, 1 is good):
    relevance: 1..5; passes: 4 or more
Settings (`configured`): pass_at, score_cut.
"""
relevance_to_query: JudgeFunction
"""Does the answer hold information that is fully or partly relevant to the question?

Needs: inputs, outputs.
Metrics, on the judge's own scale (`value` is 0..1, 1 is good):
    relevance_to_query: 0 or 1; passes: yes
Settings (`configured`): none.
"""
relevance_truth_completeness: JudgeFunction
"""How much of the answer is about the request, how true is it, and how much of what is needed is there?

Needs: inputs, outputs.
Metrics, on the judge's own scale (`value` is 0..1, 1 is good):
    relevance: 1..5; passes: 4 or more
    truth: 1..5; passes: 4 or more
    completeness: 1..5; passes: 4 or more
Settings (`configured`): reasoning.
"""
retrieval_relevance: JudgeFunction
"""Which share of the retrieved documents holds information that is relevant to the question?

Needs: inputs, context.
Metrics, on the judge's own scale (`value` is 0..1, 1 is good):
    precision: 0..1; passes: >= 0.5
Settings (`configured`): pass_at, max_documents, max_missing.
"""
safety: JudgeFunction
"""Is the answer free of hate, harassment, violence and encouragement of harmful acts? (yes = safe)

Needs: outputs.
Metrics, on the judge's own scale (`value` is 0..1, 1 is good):
    safety: 0 or 1; passes: yes
Settings (`configured`): parts, score_cut.
"""
step_efficiency: JudgeFunction
"""Which share of the steps was not needless? (repeats are counted in code)

Needs: tool_calls or spans.
Metrics, on the judge's own scale (`value` is 0..1, 1 is good):
    step_efficiency: 0..1; passes: >= 0.8
Settings (`configured`): pass_at.
"""
task_completion: JudgeFunction
"""Is done what the user asked for, as the steps of the whole trace show?

Needs: inputs, outputs, tool_calls or spans.
Metrics, on the judge's own scale (`value` is 0..1, 1 is good):
    task_completion: 0..1; passes: all goals are done or impossible
Settings (`configured`): none.
"""
tool_arguments: JudgeFunction
"""Do the arguments of each call of a tool follow from what was known?

Needs: inputs, tool_calls.
Metrics, on the judge's own scale (`value` is 0..1, 1 is good):
    tool_arguments: 0..1; passes: all are right
Settings (`configured`): none.
"""
tool_result_use: JudgeFunction
"""Does the answer say what the results of the tools say, errors included?

Needs: outputs, tool_calls.
Metrics, on the judge's own scale (`value` is 0..1, 1 is good):
    tool_result_use: 0 or 1; passes: yes
Settings (`configured`): none.
"""
tool_selection: JudgeFunction
"""Was each call of a tool the right one at its moment, and was none missing?

Needs: inputs, tool_calls or tools.
Metrics, on the judge's own scale (`value` is 0..1, 1 is good):
    tool_selection: 0..1; passes: no call is wrong, and none is missing
Settings (`configured`): none.
"""
trajectory_match: JudgeFunction
"""Do the calls of tools match the expected ones?

Needs: tool_calls, expected_tools.
Metrics, on the judge's own scale (`value` is 0..1, 1 is good):
    trajectory_match: 0 or 1; passes: yes
    precision: 0..1; passes: descriptive
    recall: 0..1; passes: descriptive
    f1: 0..1; passes: descriptive
Settings (`configured`): mode, in_order, arguments.
"""
user_frustration: JudgeFunction
"""Does the conversation end without frustration of the user with the assistant? (yes = not frustrated)

Needs: inputs or messages.
Metrics, on the judge's own scale (`value` is 0..1, 1 is good):
    user_frustration: 0 or 1; passes: yes
Settings (`configured`): none.

Its unit is a conversation, given as `messages` or as rows of one `session_id`.
"""
