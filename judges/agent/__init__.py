"""Judges that read a trace by tools: the loop, the conversation, and six tools over one trace.

The tools give an overview, single steps, a search, and a timing report. A tool returns a JSON text. Texts of the trace
are strings in it, with invisible characters made visible, so that none can pass for a part of the answer. All sizes and
places count bytes of UTF-8, as they are sent. Expectations, feedback and the user are not shown: a judge gets
expectations by a variable of its own.
"""
