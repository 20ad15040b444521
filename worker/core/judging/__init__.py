"""Judging: lease batches in shifts, evaluate them in one event loop, record verdicts, and complete the batches.

Methods that call Redis raise ``StoreError`` when it does not answer. A lease then lapses, its batch is ready again, and
evaluations in the ledger are not judged again.
"""
