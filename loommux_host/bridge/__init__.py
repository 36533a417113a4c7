"""``loommux connect``: MCP over stdio on this side, Streamable HTTP on the other, messages unread.

Owns the requests in flight and what becomes of them while the server is away. Knows both
protocol eras as `mcp.eras` has them, and no tool. Called by `commands.connect`.
"""
