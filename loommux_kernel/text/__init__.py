"""Text as a terminal has it: lines, a screen, control characters, rows that are too long.

Pure: text in, text out; no I/O and no clock. Called by `shared`, its `records`, `capture` and
`running`.
"""
