"""Who keeps which kernel, and until when: the rules alone.

Pure: events and the time they happened go in, decisions and the next deadline come out. Knows
no kernel, no clock and no caller but by name. Called by `sessions` and `succession`;
`server` and `api` read and change the policy.
"""
