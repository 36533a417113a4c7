"""Both faces of MCP: our own conversation over stdio, and the SDK's server over HTTP.

Owns the tools' words and arguments, the way of a call from either face to the use-cases and
back, and everything that is taken from the SDK (`sdk`). Knows no kernel. Called by `server`;
`api` and `bridge` use its tables.
"""
