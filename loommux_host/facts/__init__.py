"""Plain values and words that every package above uses.

Owns what the use-cases answer, each status word with its text, how single facts are worded,
and the limits of a result. Pure: no I/O and no clock. Called by everybody.
"""
