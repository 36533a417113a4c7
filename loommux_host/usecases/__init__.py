"""The use-cases: one method for each tool, and those about whole kernels.

Owns what a call does and what it answers, as plain facts. Knows no protocol and no wording
of results. Called by the faces, `mcp` and `api`.
"""
