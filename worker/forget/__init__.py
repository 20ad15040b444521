"""Forget a trace or a person: in the stream, in gathered feedback, in batches, dead letters and verdicts.

What stays in Redis: ``chosen:`` and ``ledger:`` keys until their TTL ends, which hold an evaluation id and one word,
or the scores where they are combined with others', and the counts of the books. An evaluation id is a hash; nobody can
tell from it whose it is who does not know the trace already. Without these keys an evaluation that is
published, replayed or retried again would count twice.

In the books, an evaluation that had not ended counts as ``removed``, one that had stays what it was. A trace that
nobody had read yet counts as ``cut_off``: the stream lost it unread, whoever took it out. Workers do not tell of it in
``cut_off_total`` and ``outbox_cut_off_total``, which are about losses.

What nobody can recall from here: spans and events that exporters have sent, exemplars in Prometheus, log lines that
bear a trace id. A worker that has a trace in its hands may finish asking its judge model; what it finds is not written.
"""
