"""A kernel and its processes as the host knows them: named, run, watched, interrupted, restarted.

Owns the registry, one process's life, what is known of it without asking, and its records
as they are read. Knows no caller and no wording. Called by `usecases`, `sessions`,
`succession`, `server` and the faces.
"""
