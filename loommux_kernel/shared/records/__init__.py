"""The record store of one kernel process: what ran, what it printed, what it showed.

One process writes a store (`writer`), any number of others read it meanwhile and after its
death (`reader`), and when the writer died, `finisher` completes it. The store is one SQLite
file that survives the process, not the machine; what has begun and is not in it yet stands
in a note beside it (`start_note`). Called by `capture` and by the host.
"""
