"""Six tools by which a judge model reads one trace: an overview, its steps one by one, a search, and its times.

What a tool gives is a JSON text. Texts of the trace stand in it as strings, with what cannot be seen made visible, so
that none can pass for a part of the answer. All sizes and places count bytes of UTF-8, as they are sent.

What the trace's owner expects of it and what its user said of it are not shown, nor who the user is: a judge is
given expectations by a variable of its own.
"""

from judges.trace_tools.toolbox import TraceToolbox

__all__ = ["TraceToolbox"]
