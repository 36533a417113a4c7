"""Other interpreters than the server's own: what they have, what a kernel lacks there, and where that comes from.

Owns the overlay: packages that a kernel needs and its interpreter has not, or has too old, laid out in the user's cache
for that one process. Knows no kernel and no server. Called by `processes.launcher`; `finders` runs in the kernel's
process.
"""
