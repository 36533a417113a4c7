"""What every HTTP request passes before anything answers it, whatever app is behind.

Owns the checks of Host, Origin, token and body, the one shape of an error, and how uvicorn is
run. Knows no route. Called by `server`, `console`, `api` and `mcp`.
"""
